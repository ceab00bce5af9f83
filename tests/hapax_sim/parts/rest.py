"""The REST API with two replicas that die, and callers that repeat unanswered calls at either replica, under their key.

A group's position is shifted: each request takes effect once, however often it was sent. Two callers delete a topic
under its ETag, and it is created again: neither deletes the new one. A transaction is aborted by name, and the call is
repeated while the producer's next transaction runs: that one commits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from hapax.admin.gate import Gate
from hapax.admin.service import compose
from hapax.client import Admin, Consumer, FatalError, NewTopic, Producer, RetriableError, TopicPartition
from hapax.runtime import telemetry
from hapax.runtime.settings import load
from hapax_sim.clients import Life, Program
from hapax_sim.loop import CURRENT, SimProcess
from hapax_sim.parts.part import PartTopic, a_few_of_each

_MOVED: Final = "rest-moved"
_REMADE: Final = "rest-remade"
_WHERE: Final = TopicPartition(_MOVED, 0)  # type: ignore[arg-type]
_RECORDS: Final = 400
_GROUP: Final = "rest-group"
_ID: Final = "rest-transaction"
_REPLICAS: Final = ("rest-0", "rest-1")
_ANSWER_S: Final = 12.0
"""A caller waits this long, which is shorter than the API's own limit. So an answer may have no receiver."""
_TRANSACTION_MS: Final = 600_000
"""Far more than a transaction takes: only a call aborts it."""
_CRASHES: Final = 0.1
"""Share of the calls during which the replica dies."""
_NONE: Final = 0
"""In place of a status: there was no answer."""


class Rest:
    topics: Mapping[str, PartTopic] = {_MOVED: PartTopic(1), _REMADE: PartTopic(1)}

    def __init__(self) -> None:
        self.found: list[str] = []
        self._gates: dict[str, tuple[SimProcess, Gate]] = {}
        self._keys = 0
        self._revisions: dict[str, int] = {}
        """Topic id -> the revision with which it was last seen."""
        self._calling = {"shifter-0", "deleter-0", "aborter-0"}

    def programs(self) -> dict[str, Program]:
        replicas: dict[str, Program] = dict.fromkeys(_REPLICAS, self.serve)
        return {
            **replicas, "shifter-0": self._caller(self.shift), "deleter-0": self._caller(self.delete),
            "aborter-0": self._caller(self.abort)}

    def _caller(self, program: Program) -> Program:
        """The replicas run until all callers have ended."""

        async def call(life: Life) -> None:
            self._calling.add(life.name)
            try:
                await program(life)
            finally:
                self._calling.discard(life.name)

        return call

    # --- the API, and calls to it

    async def serve(self, life: Life) -> None:
        """One replica, without sockets. A call is a task of its process."""
        settings = load(
            ["admin.auth=none", "admin.request.timeout.ms=5000"], environment={})
        gate, view, clients = await compose(
            life.ports, settings, None, lambda reason: life.recorder.loop.trace(reason),  # type: ignore[arg-type]
            telemetry.Metrics())
        process = CURRENT.get()
        assert process is not None
        self._gates[life.name] = process, gate
        while self._calling or not life.stopping():  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await clients.close()
        await view.close()

    async def _ask(
        self, life: Life, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """(status, headers, answer) of one of the replicas. No status if there was no answer."""
        alive = [each for each in _REPLICAS if each in self._gates]
        if not alive:
            await asyncio.sleep(1.0)
            return _NONE, {}, None
        process, gate = self._gates[life.rng.choice(alive)]
        loop = life.recorder.loop
        content = b"" if body is None else json.dumps(body).encode()
        names = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
            "headers": [(name.encode(), text.encode()) for name, text in names.items()],
            "server": ("sim", 1), "client": ("sim", 2),
        }
        sent: list[Any] = []
        answered: asyncio.Future[None] = loop.create_future()

        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def handle() -> None:
            await asyncio.sleep(life.rng.uniform(0, 0.01))
            try:
                await gate(scope, receive, send)
            finally:
                if not answered.done():
                    answered.set_result(None)

        loop.spawn(process, handle(), f"{process.name} {method} {path}")
        if method == "POST" and life.rng.random() < _CRASHES:
            loop.call_later(life.rng.uniform(0, 0.06), self._crash, life, process)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await answered
        except TimeoutError:
            sent.clear()
        if len(sent) < 2 or life.rng.random() < 0.2:  # or the answer is lost on its way
            return _NONE, {}, None
        text = b"".join(each.get("body", b"") for each in sent[1:])
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, json.loads(text) if text else None

    def _crash(self, life: Life, process: SimProcess) -> None:
        """Crashes a replica that is handling a call, if it has not died since."""
        if process.alive and self._gates[process.name][0] is process and not life.stopping():  # or none would follow
            del self._gates[process.name]
            life.crash(process.name)

    def _key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    # --- the callers

    async def shift(self, life: Life) -> None:
        """The only user of its group: each requested move must take effect exactly once."""
        where = 0
        async with (
            Admin(life.settings(default__api__timeout__ms="20000"), ports=life.ports) as admin,
            Producer(life.writing(), ports=life.ports) as producer,
        ):
            for number in range(_RECORDS):
                await self._surely(lambda number=number: producer.send_and_wait(  # type: ignore[misc]
                    _MOVED, str(number).encode(), partition=0))
            where = _RECORDS // 2
            # Under one key: a request of another that got no answer could still take effect after the first shifts.
            key, status = self._key(), _NONE
            while status != 200:
                status, _, _ = await self._reset(life, key, {"offset": where})
            while not life.stopping():
                by = life.rng.randrange(-20, 21) or 1
                if not 0 <= where + by <= _RECORDS:
                    continue
                key, status, answer = self._key(), _NONE, None
                while status in (_NONE, 409) or status >= 500:
                    status, _, answer = await self._reset(life, key, {"shift": by})
                    if status == 409 and "still runs" not in answer["detail"]:
                        break
                    await asyncio.sleep(life.rng.uniform(0, 1))
                life.recorder.counts["rest shifts"] += 1
                if status != 200:
                    self.found.append(f"rest-refused: a shift by {by} under {key}: {status} {answer}")
                    return
                where += by
                offsets = await self._surely(lambda: admin.group_offsets(_GROUP))
                if offsets[_WHERE].offset != where:
                    self.found.append(
                        f"shifted-wrongly: {key} by {by}: the group is at {offsets[_WHERE].offset}, not at {where}")
                    return
                await life.pause()

    async def _reset(self, life: Life, key: str, to: dict[str, int]) -> tuple[int, dict[str, str], Any]:
        return await self._ask(
            life, "POST", f"/v1/groups/{_GROUP}/reset", {"to": to, "topics": [_MOVED], "dry_run": False},
            idempotency_key=key)

    async def delete(self, life: Life) -> None:
        """Two callers delete the topic that both have seen. Once one of them has done it, the name belongs to a new
        topic."""
        async with Admin(life.settings(default__api__timeout__ms="20000"), ports=life.ports) as admin:
            while not life.stopping():
                status, headers, seen = await self._ask(life, "GET", f"/v1/topics/{_REMADE}")
                if status != 200:
                    await self._surely(lambda: admin.create_topics([NewTopic(_REMADE, 1, 3)], exist_ok=True))
                    continue
                etag = headers["etag"]
                revision = self._revisions[seen["topic_id"]] = int(etag.strip('"'))
                first = asyncio.ensure_future(self._repeated(life, "DELETE", f"/v1/topics/{_REMADE}", None, etag))
                if life.rng.random() < 0.5:
                    other = self._repeated(life, "DELETE", f"/v1/topics/{_REMADE}", None, etag)
                else:
                    change = {"set": {"retention.ms": str(life.rng.randrange(10**9, 10**10))}}
                    other = self._repeated(life, "PATCH", f"/v1/topics/{_REMADE}/config", change, etag)
                second = asyncio.ensure_future(other)
                await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
                await self._surely(lambda: admin.create_topics([NewTopic(_REMADE, 1, 3)], exist_ok=True))
                made = await self._topic_id(admin)
                if (await first, await second) == (204, 200):
                    self.found.append(f"deleted-unseen: two changes of the topic of ETag {etag} were both made")
                    return
                await self._ask(life, "DELETE", f"/v1/topics/{_REMADE}", if_match=etag)
                if made == "" or self._revisions.get(made, revision + 1) <= revision:
                    continue  # the answer of one node is not newer than what was seen, because it lags behind
                if not await self._is_there(admin, made):
                    self.found.append(f"deleted-another: the ETag {etag} was of the topic before {made}")
                    return
                life.recorder.counts["rest deletions"] += 1
                await life.pause()

    async def _repeated(self, life: Life, method: str, path: str, body: Any, etag: str) -> int:
        """Repeats the call until it is answered: 404 and 412 say that something else was done before."""
        await asyncio.sleep(life.rng.uniform(0, 0.05))
        status = _NONE
        while status == _NONE or status >= 500:
            status, _, _ = await self._ask(life, method, path, body, if_match=etag)
        return status

    async def _is_there(self, admin: Admin, topic_id: str) -> bool:
        """A broker may lag behind the others."""
        for _ in range(50):
            if await self._topic_id(admin) == topic_id:
                return True
            await asyncio.sleep(0.2)
        return False

    async def _topic_id(self, admin: Admin) -> str:
        topics = await self._surely(admin.list_topics)
        return next((topic.topic_id for topic in topics if topic.name == _REMADE), "")

    async def abort(self, life: Life) -> None:
        """A transaction is aborted by its serial. The call is repeated, late, while the id's next transaction runs."""
        writing = life.writing(transactional__id=_ID) | {"transaction.timeout.ms": str(_TRANSACTION_MS)}
        while not life.stopping():
            async with Producer(writing, ports=life.ports) as producer:
                producer.begin()
                await producer.send_and_wait(_MOVED, b"aborted", partition=0)
                status, _, found = await self._ask(life, "GET", f"/v1/transactions/{_ID}")
                if status != 200 or found["state"] != "Ongoing":
                    await producer.abort()
                    continue
                key, wanted = self._key(), {"serial": found["serial"], "reason": "for the simulation"}
                path = f"/v1/transactions/{_ID}/abort"
                status = _NONE
                while status == _NONE or status == 409 or status >= 500:
                    status, _, answer = await self._ask(life, "POST", path, wanted, idempotency_key=key)
                    if status == 409 and "still runs" not in answer["detail"]:
                        break
                    await asyncio.sleep(life.rng.uniform(0, 1) if status != 200 else 0)
            again = asyncio.ensure_future(
                self._ask(life, "POST", path, wanted, idempotency_key=life.rng.choice((key, self._key()))))
            async with Producer(writing, ports=life.ports) as producer:
                producer.begin()
                await producer.send_and_wait(_MOVED, b"committed", partition=0)
                await asyncio.wait([again])
                try:
                    await self._surely(producer.commit)
                except FatalError as error:
                    self.found.append(f"aborted-another: {wanted} was repeated, and the next one has {error}")
                    return
                life.recorder.counts["rest aborts"] += 1
            await life.pause()

    @staticmethod
    async def _surely(call: Any) -> Any:
        """Repeats the call until it is done."""
        while True:
            try:
                return await call()
            except RetriableError:
                await asyncio.sleep(0.2)

    # --- the end

    async def finish(self, life: Life) -> None:
        settings = life.settings(
            isolation__level="read_committed", auto__offset__reset="earliest", enable__auto__commit="false")
        async with Consumer(settings, ports=life.ports) as consumer:
            end = (await consumer.end_offsets([_WHERE]))[_WHERE]
            consumer.assign([_WHERE])
            while await consumer.position(_WHERE) < end:
                records = await consumer.poll(timeout_ms=200, max_records=1000)
                if any(record.value == b"aborted" for record in records):
                    self.found.append("G1a: a record of a transaction that was aborted by REST can be read")
                    return

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)
