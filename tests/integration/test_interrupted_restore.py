"""A restore that ends at any step goes on when the same command is given again, or says that nothing is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conftest import end_clusters, start_cluster
from hapax.backup import manifests
from hapax.backup.cluster import BackedUpCluster
from hapax.backup.errors import BackupError
from hapax.backup.restoring import Restorer
from hapax.backup.store import open_store
from hapax.client import Producer, TopicPartition
from hapax.client.admin import NewTopic
from hapax.client.leases import Leases
from hapax.client.tokens import CommitToken
from hapax.core.types import PartitionIndex
from hapax.local.cluster import LocalCluster
from integration.backup_world import hapax, offsets_of, read
from integration.waiting import until

IDS = ("orders", "payments", "shipments")
CHANGES = (
    "reserve_producer_ids", "create_topics", "import_transactional_id", "alter_group_offsets", "import_batches",
    "import_lease", "alter_quotas", "alter_group_config", "end_restoring", "note_backup")
FIRST = TopicPartition("t", PartitionIndex(0))


class Killed(BaseException):
    pass


class Interrupted(BackedUpCluster):
    """Ends the restore before its n-th change."""

    left = 0


def _interrupted(name: str) -> Any:
    async def change(self: Interrupted, *values: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Killed(name)
        return await getattr(BackedUpCluster, name)(self, *values, **named)

    return change


for _name in CHANGES:
    setattr(Interrupted, _name, _interrupted(_name))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """With two backups: one without topics, and one with a topic."""
    folder = tmp_path_factory.mktemp("interrupted")
    with ExitStack() as ending:
        cluster = start_cluster(folder / "source")
        ending.callback(end_clusters, [cluster])
        asyncio.run(fill(cluster, folder / "backups"))
        yield cluster, folder / "backups"


async def fill(cluster: LocalCluster, place: Path) -> None:
    options = {"bootstrap.servers": cluster.bootstrap}
    async with BackedUpCluster(options) as admin:
        await admin.create_topics([NewTopic("gone", 1)])
        async with Leases(options) as leases:
            await leases.take("loader", [TopicPartition("gone", PartitionIndex(0))], expire_ms=600_000, holder="h")
        await admin.delete_topics(["gone"])
        await admin.alter_quotas({"user": "alice"}, {"producer_byte_rate": 1e6})
        await admin.alter_group_config("readers", {"consumer.session.timeout.ms": "50000"})
        for name in IDS:
            async with Producer({**options, "transactional.id": name}):
                pass

        async def no_topic() -> bool:
            return not (await admin.topics_by_kind())[0]

        await until(no_topic, "deletion")
        await asyncio.to_thread(hapax, "backup", str(place), "--bootstrap", cluster.bootstrap)
        await admin.create_topics([NewTopic("t", 2)])
    async with Producer({**options, "transactional.id": IDS[0]}) as producer:
        producer.begin()
        for number in range(10):
            await producer.send("t", b"%d" % number, partition=number % 2)
        await producer.send_offsets({FIRST: 3}, "readers")
        await producer.commit(CommitToken("query", 5, records=10, allow_unknown_history=True))
    await asyncio.to_thread(hapax, "backup", str(place), "--bootstrap", cluster.bootstrap)


@pytest.mark.parametrize("topics", [False, True], ids=["without topics", "with topics"])
async def test_a_restore_goes_on_from_every_step(
    source: tuple[LocalCluster, Path], topics: bool, tmp_path: Path
) -> None:
    origin, place = source
    store = open_store(str(place))
    manifest = manifests.read(store, manifests.listed(store)[topics])
    target = start_cluster(tmp_path / "target")
    with ExitStack() as ending:
        ending.callback(end_clusters, [target])
        stopped_at = []
        async with Interrupted({"bootstrap.servers": target.bootstrap}) as cluster:
            for steps in count():
                cluster.left = steps
                try:
                    await Restorer(cluster, store, manifest).restore()
                    break
                except Killed as killed:
                    stopped_at.append(str(killed))
                except BackupError as error:
                    assert stopped_at[-1] == "note_backup" and "nothing is left to do" in str(error), stopped_at
                    break
            used = {each.transactional_id for each in await cluster.list_transactions()}
            assert used == set(IDS)
            (config,) = [await cluster.group_config("readers")]
            assert config["consumer.session.timeout.ms"].value == "50000"
        async with Leases({"bootstrap.servers": target.bootstrap}) as leases:
            assert [(each.name, each.producer_id) for each in await leases.list()] == [("loader", -1)]
        made = set(stopped_at)
        if not topics:
            assert made == {*CHANGES} - {"alter_group_offsets", "import_batches", "end_restoring"}
            return
        assert made == {*CHANGES}
        assert await read(target.bootstrap, ["t"]) == await read(origin.bootstrap, ["t"])
        assert await offsets_of(target.bootstrap, "readers") == {FIRST: 3}


async def test_an_id_that_a_producer_uses_is_not_taken_for_a_restored_one(
    source: tuple[LocalCluster, Path], tmp_path: Path
) -> None:
    """Nothing is changed: no producer of this cluster is fenced."""
    _, place = source
    store = open_store(str(place))
    manifest = manifests.read(store, manifests.listed(store)[0])
    target = start_cluster(tmp_path / "target")
    with ExitStack() as ending:
        ending.callback(end_clusters, [target])
        async with Producer({"bootstrap.servers": target.bootstrap, "transactional.id": IDS[1]}):
            pass
        async with Interrupted({"bootstrap.servers": target.bootstrap}) as cluster:
            with pytest.raises(BackupError, match="not empty: it has the transactional id 'payments'"):
                await Restorer(cluster, store, manifest).restore()
