"""`hapax dump PATH...`: what is in the files of a data folder, read without the cluster.

A file is read by its suffix: `.log`, `.index`, `.timeindex`, `.txnindex`, `.snapshot`; a folder stands for all such
files in it. Logs of `__transaction_state` and `__consumer_offsets` are decoded to what they mean. Nothing is changed,
and a damaged or torn entry is shown as such.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.codec.control import decode_control
from hapax.core.batch import BatchHeader
from hapax.core.errors import Refusal
from hapax.core.transaction.record import Delta, PartitionSet, Tombstone
from hapax.log import layout
from hapax.log.walk import Broken, walk

Entry = dict[str, Any]

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
DECODER_ERRORS = (Refusal, ValueError, IndexError, KeyError, struct.error)
"""What decoding a record raises where its bytes are not what its topic holds."""
_DECOMPRESSED_MAX = 256 << 20
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def dump(
    paths: Annotated[list[Path], typer.Argument(help="Files or folders.", exists=True)],
    records: Annotated[
        bool, typer.Option("--records", help="Print each record of a log, not only its batches.")
    ] = False,
    limit: Annotated[int, typer.Option("--max", help="Print at most this many entries of each file.")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print what is in segments, indexes, snapshots and coordinator logs."""
    damaged = False
    for path in [file for given in paths for file in files_of(given)]:
        shown: list[Entry] = []
        more = False
        for number, entry in enumerate(entries(path, records)):
            if number == limit:
                more = True
                break
            damaged = damaged or "damaged" in entry
            if as_json:
                output.print_json({"file": str(path), **entry})
            else:
                shown.append(entry)
        if not as_json:
            columns = list(dict.fromkeys(column for entry in shown for column in entry))
            title = f"{path}{f' (the first {limit})' if more else ''}"
            output.print_table(title, columns, [[_cell(entry.get(column)) for column in columns] for entry in shown])
    if damaged:
        raise typer.Exit(output.FAILED)


def files_of(path: Path) -> list[Path]:
    """The dumpable files that a path stands for, in order."""
    if path.is_file():
        if path.suffix not in _READERS:
            output.fail(f"{path}: not a log, index or snapshot ({', '.join(_READERS)})", output.USAGE)
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in _READERS)


def entries(path: Path, records: bool = False) -> Iterator[Entry]:
    """What is in one file. An entry with `damaged` stands for bytes that could not be read."""
    if path.suffix == layout.LOG:
        return log_entries(path, records)
    return _READERS[path.suffix](path)


# --- logs ---------------------------------------------------------------------------------------------------------


def log_entries(path: Path, records: bool) -> Iterator[Entry]:
    """One entry for each batch; for each record where asked, and for internal topics always."""
    place = layout.parse_partition_folder(path.parent.name)
    topic = place.topic if place is not None else ""
    for found in walk(path):
        if isinstance(found, Broken):
            yield {"position": found.position, "damaged": found.reason, "bytes": found.size}
        else:
            yield from batch_entries(found.data, found.header, found.position, topic, records)


def batch_entries(batch: bytes, header: BatchHeader, position: int, topic: str, records: bool) -> Iterator[Entry]:
    """One batch and what is in it: the control record, records of an internal topic, others where asked. Raises
    whatever the decoders raise (`DECODER_ERRORS`)."""
    entry: Entry = {
        "position": position,
        "offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "kind": "control" if header.is_control else "transactional" if header.is_transactional else "data",
        "compression": _CODECS[header.attributes & 7],
        "timestamp": header.max_timestamp,
    }
    if header.delete_horizon_ms is not None:
        entry["delete_horizon"] = header.delete_horizon_ms
    if header.is_control:
        control = decode_control(batch, header)
        yield entry | {"content": _plain(control)}
    elif topic == "__transaction_state":
        yield entry
        yield from _transaction_records(batch, header)
    elif topic == "__consumer_offsets":
        yield entry
        yield from _offset_records(batch, header)
    else:
        yield entry
        if records or topic == "__hapax_events":
            yield from _records(batch, header)


def _transaction_records(batch: bytes, header: BatchHeader) -> Iterator[Entry]:
    from hapax.codec import internal_records, transaction_log

    for offset, key, value in internal_records.decode_batch(batch, header):
        record = transaction_log.decode_record(key, value)
        if record is not None:
            kind = "member" if isinstance(record, Delta) else "transaction"
            yield {"offset": offset, "kind": kind, "key": record.transactional_id, "content": _plain(record)}
        elif (named := transaction_log.decode_delta_key(key)) is not None:
            content = {"type": Tombstone.__name__, "producer_id": named[1]}
            yield {"offset": offset, "kind": "member", "key": named[0], "content": content}
        else:
            yield {"offset": offset, "kind": "unknown key", "content": key.hex()}


def _offset_records(batch: bytes, header: BatchHeader) -> Iterator[Entry]:
    from hapax.codec import internal_records, offsets_log

    for offset, key, value in internal_records.decode_batch(batch, header):
        content = offsets_log.decode_record(key, value)
        yield {"offset": offset, "kind": "group", "content": _plain(content) if content else key.hex()}


def _records(batch: bytes, header: BatchHeader) -> Iterator[Entry]:
    from hapax.codec.bounded import decode_bounded

    try:
        found = decode_bounded(batch, header, 0, _DECOMPRESSED_MAX, header.record_count)
    except Refusal as refusal:  # its CRC is right: this is what a client sent
        yield {"offset": header.base_offset, "kind": "unreadable", "content": refusal.reason}
        return
    for record in found:
        yield {
            "offset": record.offset,
            "kind": "record",
            "timestamp": record.timestamp,
            "key": output.text_of(record.key),
            "value": output.text_of(record.value),
            "headers": {name: output.text_of(value) for name, value in record.headers},
        }


# --- indexes and snapshots ----------------------------------------------------------------------------------------


def offset_index_entries(path: Path) -> Iterator[Entry]:
    base = _base_offset(path)
    for relative, position in _OFFSET_ENTRY.iter_unpack(_whole(path, _OFFSET_ENTRY.size)):
        yield {"offset": base + relative, "position": position}


def time_index_entries(path: Path) -> Iterator[Entry]:
    base = _base_offset(path)
    for timestamp, relative in _TIME_ENTRY.iter_unpack(_whole(path, _TIME_ENTRY.size)):
        yield {"timestamp": timestamp, "offset": base + relative}


def aborted_entries(path: Path) -> Iterator[Entry]:
    from hapax.log.txn_index import decode_aborted

    for aborted in decode_aborted(path.read_bytes()):
        yield aborted._asdict()


def snapshot_entries(path: Path) -> Iterator[Entry]:
    """One entry for each producer of a snapshot, then the open transactions."""
    from hapax.codec.snapshot import DamagedSnapshot, decode_snapshot
    from hapax.core.partition.producer_table import read_page

    try:
        snapshot = decode_snapshot(path.read_bytes(), _base_offset(path))
    except DamagedSnapshot as error:
        yield {"damaged": str(error)}
        return
    for keys, rows in snapshot.pages:
        for producer_id, producer in read_page(keys, rows):
            yield {
                "producer_id": producer_id,
                "epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_offset": producer.last_offset,
                "last_timestamp": producer.last_timestamp,
                "records": producer.record_count,
            }
    for open_transaction in snapshot.open_transactions:
        yield _plain(open_transaction)


_READERS = {
    layout.LOG: lambda path: log_entries(path, False),
    layout.INDEX: offset_index_entries,
    layout.TIME_INDEX: time_index_entries,
    layout.TXN_INDEX: aborted_entries,
    layout.SNAPSHOT: snapshot_entries,
}


def _base_offset(path: Path) -> int:
    named = layout.parse_offset_name(path.name)
    if named is None:
        output.fail(f"{path}: the name is not an offset", output.USAGE)
    return named[0]


def _whole(path: Path, size: int) -> bytes:
    data = path.read_bytes()
    return data[: len(data) - len(data) % size]


def _plain(value: Any) -> Any:
    """Named tuples and dataclasses as dicts, with their kind; enumerations by name."""
    import dataclasses
    import enum

    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PartitionSet):
        return [_plain(item) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"type": type(value).__name__} | {name: _plain(item) for name, item in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__} | fields
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items() if item not in (None, "", [], {}))
    return value
