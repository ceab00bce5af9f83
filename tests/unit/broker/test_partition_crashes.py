"""A crash at every disk operation while a topic is deleted and made again.

The new one has what it acknowledged and nothing of the old one, whose folder goes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hapax.codec.metadata import TopicRecord
from hapax.runtime.ports import Delete
from hapax_sim.disk import PowerLossDisk
from hapax_sim.loop import SimLoop, SimProcess
from hapax_sim.metadata import MetadataModel
from unit.broker.test_partitions import KEYS, NODE, Broker

OUTCOMES: Final = 3


class Crash(BaseException):
    """The machine has no power from here on."""


class SimBroker(Broker):
    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - virtual time, in which the disk's syncs end
                await asyncio.sleep(0.0001)


class History:
    """Both topics in turn, up to the disk's operation `crash_at`."""

    def __init__(self, crash_at: int, seed: int) -> None:
        self.loop = SimLoop()
        self.loop.set_exception_handler(lambda _, context: None)  # of tasks that the crash ended
        asyncio.set_event_loop(self.loop)
        self.store = PowerLossDisk(self.loop, random.Random(seed))
        self.store.about_to = self._about_to
        self.model = MetadataModel()
        self.crash_at = crash_at
        self.operations = 0
        self.crashed = asyncio.Event()
        self.acknowledged = {1: 0, 2: 0}
        """Of the topic of that number."""

    def _about_to(self, operation: str, path: str) -> None:
        if self.operations >= self.crash_at:
            self.crashed.set()
            raise Crash(f"{operation} {path}")
        self.operations += 1

    async def until_crash(self) -> None:
        living = self.loop.create_task(self._live())
        crashed = self.loop.create_task(self.crashed.wait())
        await asyncio.wait([living, crashed], return_when=asyncio.FIRST_COMPLETED)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        with suppress(Crash, asyncio.CancelledError):
            await living

    async def _live(self) -> None:
        broker = SimBroker(self.store.mount(SimProcess("first")), self.model)  # type: ignore[arg-type]
        await broker.start()
        topic_id = broker.make_topic(number=1)
        await broker.served()
        await broker.write(3)
        self.acknowledged[1] = broker.end_offset()
        broker.partitions.find("t", 0).maintenance.begin_checkpoint()
        new_id = broker.replace_topic(topic_id)
        await broker.until(lambda: any(known.topic_id == new_id for known in broker.partitions.replicas))
        await broker.served()
        await broker.write(2)
        self.acknowledged[2] = broker.end_offset()
        await broker.until(lambda: self.store.mount(SimProcess("looks")).list("") == ["t-0"])

    async def judge(self) -> None:
        kv = self.model.get(KEYS.topic("t"))
        if kv is None:
            return
        topic = TopicRecord.decode(kv.value)
        number = topic.topic_id[0]
        self.model.txn([], [Delete(KEYS.node(NODE))])
        disk = self.store.mount(SimProcess("second"))
        broker = SimBroker(disk, self.model)  # type: ignore[arg-type]
        await broker.start()
        broker.assign(topic.topic_id, epoch=1)
        await broker.served()
        replica = broker.partitions.find("t", 0)
        end = replica.machine.log_end_offset
        assert self.acknowledged[number] <= end <= {1: 3, 2: 2}[number], "as much as was acknowledged, and no other's"
        assert all(offset <= end for offset in replica.log.snapshot_offsets), "another topic's snapshot"
        await broker.write(1)
        assert broker.end_offset() == end + 1
        await broker.until(lambda: [name for name in disk.list("") if name.startswith("t-0")] == ["t-0"])
        await broker.stop(clean=True)


def test_a_crash_at_every_disk_operation_while_a_topic_is_deleted_and_made_again(task_failures: Counter[str]) -> None:
    crash_at, came_to_its_end = 0, False
    while not came_to_its_end:
        for seed in range(OUTCOMES):
            history = History(crash_at, seed)
            try:
                history.loop.run_until_complete(history.until_crash())
                history.store.about_to = lambda operation, path: None
                history.store.power_cut()
                task_failures.clear()  # the crash itself
                history.loop.run_until_complete(history.judge())
                assert not task_failures
            except BaseException as error:
                error.add_note(f"crash at operation {crash_at}, power cut {seed}")
                raise
            finally:
                history.loop.close()
                asyncio.set_event_loop(None)
        came_to_its_end = history.operations < crash_at
        crash_at += 1
    assert crash_at > 40, "the history is shorter than it was"
