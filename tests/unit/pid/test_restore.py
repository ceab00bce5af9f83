"""The allocator of a cluster that is restored from a backup."""

from __future__ import annotations

from hapax.codec.metadata import PidCounterRecord
from hapax.core.errors import ErrorCode
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.rpc.gen.hapax.v1 import restore_pb2 as pb
from hapax.runtime.audit_events import EVENTS
from unit.control_world import KEYS
from unit.pid.test_pid_service import Lab, in_lab


async def reserve(lab: Lab, floor: int) -> pb.ReserveProducerIdsResponse:
    return await lab.world.call(  # type: ignore[no-any-return]
        lab.service, "ReserveProducerIds", pb.ReserveProducerIdsRequest(producer_id_floor=floor),
        pb.ReserveProducerIdsResponse)


async def block(lab: Lab) -> int:
    answer = await lab.world.call(
        lab.service, "AllocateBlock", pid_pb2.AllocateBlockRequest(node_id=1, size=10), pid_pb2.AllocateBlockResponse)
    return int(answer.first)


async def import_lease(lab: Lab, count: int) -> pb.ImportLeaseResponse:
    first = lab.partitions[0]
    return await lab.world.call(lab.service, "ImportLease", pb.ImportLeaseRequest(  # type: ignore[no-any-return]
        name="loader", counts=[pb.ImportedCount(topic_id=first.topic_id, partition=0, record_count=count)]),
        pb.ImportLeaseResponse)


def test_ids_are_handed_out_above_the_floor() -> None:
    async def scenario(lab: Lab) -> None:
        before = await block(lab)
        assert (await reserve(lab, 1 << 33)).counter == 1 << 33
        assert before < 1 << 33 == await block(lab)
        kv = lab.world.model.get(KEYS.pid_next)
        assert kv is not None and PidCounterRecord.decode(kv.value).floor == 1 << 33, "a block keeps it"
        assert (await reserve(lab, 1 << 32)).error == 0, "it does not go back"
        assert await block(lab) == (1 << 33) + 10
        await lab.view.reached(lab.world.model.revision)
        assert lab.view.producer_id_floor == 1 << 33
        assert (await reserve(lab, -1)).error == ErrorCode.INVALID_REQUEST

    in_lab(scenario)


def test_a_restore_is_in_the_audit_log() -> None:
    async def scenario(lab: Lab) -> None:
        for _ in range(2):  # the second one changes nothing
            await reserve(lab, 1 << 33)
        for restored in (False, True):
            await lab.world.call(
                lab.service, "NoteBackup", pb.NoteBackupRequest(backup="b", restored=restored), pb.NoteBackupResponse)
        told = [(event, fields) for event, _, _, fields in lab.world.audit.events[1:]]  # after a topic
        assert told == [
            ("producer_ids_reserved", {"call": "ReserveProducerIds", "outcome": "done", "old": 0, "new": 1 << 33}),
            ("backup_taken", {"call": "NoteBackup", "outcome": "done", "backup": "b"}),
            ("backup_restored", {"call": "NoteBackup", "outcome": "done", "backup": "b"})]
        assert all(list(fields) == list(EVENTS[event].fields) for event, fields in told)

    in_lab(scenario)


def test_a_lease_goes_on_with_its_count_under_a_new_id() -> None:
    async def scenario(lab: Lab) -> None:
        assert (await import_lease(lab, 7)).error == 0
        assert (await import_lease(lab, 7)).error == 0, "repeated"
        lease = await lab.lease(0)
        assert lease.partitions[0].record_count == 7 and lease.partitions[0].generation == 0
        assert lab.write(lease, 0, 2)
        assert (await lab.progress(0, name="loader")).partitions[0].record_count == 9
        assert (await import_lease(lab, 7)).error == ErrorCode.INVALID_REQUEST, "it is in use"

    in_lab(scenario)
