"""What earlier releases stored can be read for ever; what this one stores is what its golden files say.

A change of a stored format fails `test_writing_yields_the_same_bytes`. If it is meant: give the format its next version
number where readers must tell the two apart, then `make golden VERSION=vN`, and commit the new folder. Old folders are
never rewritten.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from golden.versions import HERE, RECORDS, decoded, decoded_lines, metadata_of, versions
from golden.writing import write_everything
from hapax.cli.main import application
from hapax.codec import internal_records, offsets_log, transaction_log
from hapax.codec import metadata as etcd
from hapax.codec.control import decode_control
from hapax.codec.snapshot import decode_snapshot
from hapax.core.batch import BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.group.offsets import OffsetRecord
from hapax.core.group.values import GroupRecord, MembershipRecord
from hapax.core.partition.machine import AbortedTransaction, PartitionMachine
from hapax.core.partition.values import PartitionSnapshot
from hapax.core.transaction.record import Delta, Transaction
from hapax.log.config import LogConfig
from hapax.log.recovery import Recovery, open_log
from hapax.log.walk import Batch, walk
from hapax.runtime.disk import open_folder
from hapax.runtime.ports import Disk

VERSIONS = versions()
of_each_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)


def holds(expected: Any, found: Any) -> bool:
    """Whether everything expected is there. What later versions know besides has its default."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(k in found and holds(v, found[k]) for k, v in expected.items())
    if isinstance(expected, list):
        pairs = zip(expected, found, strict=False)
        return isinstance(found, list) and len(expected) == len(found) and all(holds(a, b) for a, b in pairs)
    return bool(expected == found)


RENAMED = {"MembershipRecord": "ClassicGroupRecord"}
"""Records whose bytes are what they were, but which the dump calls by another name since."""


def as_called_today(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"type": RENAMED[entry["type"]]} if entry.get("type") in RENAMED else entry


def test_there_is_one() -> None:
    assert VERSIONS


@of_each_version
def test_todays_code_reads_it(version: Path) -> None:
    lines = (version / "decoded.jsonl").read_text().splitlines()
    expected = [json.loads(line, object_hook=as_called_today) for line in lines]
    found = [json.loads(line) for line in decoded_lines(version)]
    differing = [(a, b) for a, b in zip(expected, found, strict=True) if not holds(a, b)]
    assert differing == []
    assert not any("damaged" in entry for entry in decoded(version))


@of_each_version
def test_nothing_in_it_is_wrong(version: Path) -> None:
    result = CliRunner().invoke(application(["verify"]), ["verify", "--json", str(version / "broker-0")])
    assert json.loads(result.stdout)["damage"] == []


class State:
    """`recovery.State`, as a replica is one."""

    def restore(
        self, snapshot: bytes | None, offset: int, start_offset: int, aborted: Sequence[AbortedTransaction],
        leader_epochs: Sequence[tuple[int, int]],
    ) -> None:
        self.machine = PartitionMachine(
            None if snapshot is None else decode_snapshot(snapshot, offset), log_start_offset=start_offset,
            aborted=aborted, leader_epochs=leader_epochs,
        )  # fmt: skip

    def replay(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        if header.is_control:
            self.machine.replay_control(header, decode_control(buffer, header, position))
        else:
            self.machine.replay(header)


async def opened(disk: Disk, folder: str, clean: bool) -> tuple[State, Recovery]:
    state = State()
    log, recovery = await open_log(disk, folder, LogConfig(), state, clean=clean)
    log.close()
    return state, recovery


@of_each_version
@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_starts_on_it(version: Path, tmp_path: Path, clean: bool) -> None:
    """From the snapshots after a clean stop; from the log, where the last snapshots are gone."""
    root = Path(shutil.copytree(version / "broker-0", tmp_path / "broker-0"))
    disk = open_folder(str(root))
    try:
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            newest = max(folder.glob("*.snapshot"))
            said = PartitionMachine(decode_snapshot(newest.read_bytes(), int(newest.stem)))
            if not clean:
                newest.unlink()
            state, recovery = asyncio.run(opened(disk, folder.name, clean))
            assert recovery.clean is clean and recovery.truncated_bytes == 0
            assert recovery.end_offset == int(newest.stem)
            state.machine.advance_high_watermark(recovery.end_offset)
            assert list(state.machine.describe_producers()) == list(said.describe_producers())
            assert state.machine.open_transactions() == said.open_transactions()
    finally:
        disk.close()


def transaction_log_of(version: Path) -> Iterator[Transaction | Delta]:
    for file in version.glob("broker-0/__transaction_state-*/*.log"):
        for batch in walk(file):
            assert isinstance(batch, Batch)
            if not batch.header.is_control:
                for _, key, value in internal_records.decode_batch(batch.data, batch.header):
                    record = transaction_log.decode_record(key, value)
                    if isinstance(record, Transaction | Delta):
                        yield record


def controls_of(version: Path) -> Iterator[Control]:
    for file in version.glob("broker-0/*/*.log"):
        for batch in walk(file):
            assert isinstance(batch, Batch)
            if batch.header.is_control:
                yield decode_control(batch.data, batch.header)


def offsets_log_of(version: Path) -> Iterator[GroupRecord]:
    for file in version.glob("broker-0/__consumer_offsets-*/*.log"):
        for batch in walk(file):
            assert isinstance(batch, Batch)
            if not batch.header.is_control:
                for _, key, value in internal_records.decode_batch(batch.data, batch.header):
                    record = offsets_log.decode_record(key, value)
                    assert record is not None
                    yield record


def snapshots_of(version: Path) -> Iterator[PartitionSnapshot]:
    for file in version.glob("broker-0/*/*.snapshot"):
        yield decode_snapshot(file.read_bytes(), int(file.stem))


def fields_of(value: Any) -> Iterator[tuple[str, bool]]:
    """Of a record and of all that is in it: each field, and whether it holds anything but its default."""
    if dataclasses.is_dataclass(value):
        fields = [
            (each.name, each.default if each.default_factory is dataclasses.MISSING else each.default_factory())
            for each in dataclasses.fields(value)
        ]
    elif hasattr(value, "_field_defaults"):
        fields = [(name, value._field_defaults.get(name, dataclasses.MISSING)) for name in value._fields]
    else:
        for each in value if isinstance(value, tuple) else ():
            yield from fields_of(each)
        return
    for name, default in fields:
        held = getattr(value, name)
        yield f"{type(value).__name__}.{name}", held != default
        yield from fields_of(held)


def always_default(records: Iterable[Any]) -> list[str]:
    """The fields that hold their default in each of the records."""
    told: dict[str, bool] = {}
    for record in records:
        for name, holds_something in fields_of(record):
            told[name] = told.get(name, False) or holds_something
    return [name for name, holds_something in told.items() if not holds_something]


def test_the_newest_holds_every_field_of_the_transaction_log() -> None:
    records = list(transaction_log_of(VERSIONS[-1]))
    assert {type(record) for record in records} == {Transaction, Delta}
    assert always_default(records) == []


def test_the_newest_holds_every_field_of_every_kind_of_key_of_the_metadata_store() -> None:
    kept = list(metadata_of(VERSIONS[-1]))
    assert {kind for _, kind, _ in kept} == set(get_args(etcd.KeyKind)) - {"unknown"}
    assert {kind for _, kind, _ in kept} - set(RECORDS) == {"draining"}
    assert always_default(held for _, kind, held in kept if kind in RECORDS) == []


def test_the_newest_holds_every_field_of_every_control_record() -> None:
    records = list(controls_of(VERSIONS[-1]))
    assert {type(record) for record in records} == set(get_args(Control))
    assert {record.commit for record in records if isinstance(record, Marker)} == {True, False}
    not_stored = ["Marker.first_offset", "Marker.transaction_version", "Marker.last_offset"]
    assert always_default(records) == not_stored


def test_the_newest_holds_every_field_of_an_offset() -> None:
    records = list(offsets_log_of(VERSIONS[-1]))
    kinds = {*get_args(MembershipRecord), OffsetRecord}
    assert {type(record) for record in records if record.value is not None} == kinds
    assert {type(record) for record in records if record.value is None} == kinds
    assert always_default(record for record in records if record.value is not None) == []


def test_the_newest_holds_every_field_of_a_snapshot() -> None:
    assert always_default(snapshots_of(VERSIONS[-1])) == []


def test_writing_yields_the_same_bytes(tmp_path: Path) -> None:
    newest = VERSIONS[-1]
    asyncio.run(write_everything(tmp_path))
    golden = {path.relative_to(newest) for path in newest.rglob("*") if path.is_file()} - {Path("decoded.jsonl")}
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} - {Path("broker-0/.lock")}
    assert written == golden
    differing = [str(name) for name in sorted(golden) if (newest / name).read_bytes() != (tmp_path / name).read_bytes()]
    assert differing == [], f"stored formats differ from {newest.relative_to(HERE.parent)}: see this module's text"
