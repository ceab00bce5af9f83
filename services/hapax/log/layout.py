"""Names and small text files of Kafka's log layout.

    <data folder>/
      meta.properties                       cluster id, node id (rule 22)
      .kafka_cleanshutdown                  the last stop was clean: nothing has to be scanned
      replication-offset-checkpoint         `topic partition high-watermark` lines
      <topic>-<partition>/
        partition.metadata                  topic id (rule 10)
        inherited-producers                 a leader's snapshot, while the log is copied up to its offset
        begins-anew                         the log is being removed, to be copied from its leader's start
        has-gaps                            compaction left offsets out, here or where the log was copied from
        log-start                           records below this offset are deleted, where it is not a segment's first
        leader-epoch-checkpoint             `epoch start-offset` lines
        00000000000000000000.log            record batches, named by the first offset
        00000000000000000000.index          relative offset i32, position i32
        00000000000000000000.timeindex      timestamp i64, relative offset i32
        00000000000000000000.txnindex       aborted transactions, 34 bytes each
        00000000000000000042.snapshot       producers, as of that offset
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from hapax.core.types import Offset, PartitionIndex, TopicId, TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
"""Suffix of a segment's log file that is being removed."""
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
"""The files of one segment. `.log` is removed first: the next start removes an index that has no log."""

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
PARTITION_METADATA: Final = "partition.metadata"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
INHERITED: Final = "inherited-producers"
BEGINS_ANEW: Final = "begins-anew"
HAS_GAPS: Final = "has-gaps"
LOG_START: Final = "log-start"

_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_GONE: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|stray)")
_INHERITED: Final = struct.Struct(">hqiq")
_OFFSET_NAME: Final = re.compile(r"(\d{20})(\.[a-z]+)")


class LayoutError(ValueError):
    """A file of the layout has invalid content. The message names the file and the line."""


# --- names --------------------------------------------------------------------------------------------------------


def offset_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[Offset, str] | None:
    """(offset, suffix) of a segment's or snapshot's file; None for any other name."""
    found = _OFFSET_NAME.fullmatch(name)
    return None if found is None else (Offset(int(found[1])), found[2])


def partition_folder(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_folder(name: str) -> TopicPartition | None:
    found = _FOLDER.fullmatch(name)
    return None if found is None else TopicPartition(found["topic"], PartitionIndex(int(found["partition"])))


def gone_folder(folder: str, topic_id: bytes, kind: str) -> str:
    """The name of a folder that is about to be removed (`delete`), or whose topic is unknown (`stray`)."""
    return f"{folder}.{topic_id.hex()}-{kind}"


def is_gone_folder(name: str, kind: str) -> bool:
    found = _GONE.fullmatch(name)
    return found is not None and found[1] == kind


# --- topic id -----------------------------------------------------------------------------------------------------


def encode_topic_id(topic_id: bytes) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def decode_topic_id(text: str) -> TopicId:
    try:
        topic_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise LayoutError(f"topic id {text!r} is not base64") from error
    if len(topic_id) != 16:
        raise LayoutError(f"topic id {text!r} is not 16 bytes")
    return TopicId(topic_id)


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> TopicId:
    lines = dict(_split(line, ": ", PARTITION_METADATA) for line in data.decode("ascii", "replace").splitlines())
    if lines.get("version") != "0" or "topic_id" not in lines:
        raise LayoutError(f"{PARTITION_METADATA}: not of version 0: {lines}")
    return decode_topic_id(lines["topic_id"])


# --- checkpoints --------------------------------------------------------------------------------------------------


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """(leader epoch, start offset), ascending."""
    lines = [f"{leader_epoch} {offset}" for leader_epoch, offset in epochs]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    entries = [_split(line, " ", LEADER_EPOCH_CHECKPOINT) for line in _checkpoint_lines(data, LEADER_EPOCH_CHECKPOINT)]
    return [(int(leader_epoch), int(offset)) for leader_epoch, offset in entries]


def encode_high_watermarks(high_watermarks: Mapping[TopicPartition, int]) -> bytes:
    """The file with the high watermarks of all partitions of a data folder: lower bounds of the committed offsets."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(high_watermarks.items())]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_high_watermarks(data: bytes) -> dict[TopicPartition, Offset]:
    """Raises LayoutError."""
    found: dict[TopicPartition, Offset] = {}
    for line in _checkpoint_lines(data, HIGH_WATERMARK_CHECKPOINT):
        topic, numbers = _split(line, " ", HIGH_WATERMARK_CHECKPOINT)
        partition, offset = _split(numbers, " ", HIGH_WATERMARK_CHECKPOINT)
        if not partition.isdigit() or not offset.isdigit():
            raise LayoutError(f"{HIGH_WATERMARK_CHECKPOINT}: {line!r}")
        found[TopicPartition(topic, PartitionIndex(int(partition)))] = Offset(int(offset))
    return found


def encode_log_start(offset: int) -> bytes:
    """The file of one partition that says that the records below `offset` are deleted."""
    return f"0\n{offset}\n".encode()


def decode_log_start(data: bytes) -> Offset:
    """Raises LayoutError."""
    lines = data.decode("ascii", "replace").splitlines()
    if len(lines) != 2 or lines[0] != "0" or not lines[1].isdigit():
        raise LayoutError(f"{LOG_START}: not of version 0")
    return Offset(int(lines[1]))


def encode_inherited(offset: int, leader_epoch: int, snapshot: bytes, aborted: bytes) -> bytes:
    """A snapshot that the leader of `leader_epoch` took at `offset`, and its aborted transactions, as in a `.txnindex`.
    """
    return _INHERITED.pack(1, offset, leader_epoch, len(snapshot)) + snapshot + aborted


def decode_inherited(data: bytes) -> tuple[int, int, bytes, bytes]:
    """(offset, leader epoch, snapshot, aborted transactions). Raises LayoutError."""
    if len(data) < _INHERITED.size or _INHERITED.unpack_from(data)[0] != 1:
        raise LayoutError(f"{INHERITED}: not of version 1")
    _, offset, leader_epoch, size = _INHERITED.unpack_from(data)
    behind = _INHERITED.size + size
    return offset, leader_epoch, data[_INHERITED.size : behind], data[behind:]


def _checkpoint_lines(data: bytes, name: str) -> list[str]:
    lines = data.decode("ascii", "replace").splitlines()
    if len(lines) < 2 or lines[0] != "0" or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise LayoutError(f"{name}: not a checkpoint of version 0 with all its lines")
    return lines[2:]


def _split(line: str, separator: str, name: str) -> tuple[str, str]:
    left, found, right = line.partition(separator)
    if not found:
        raise LayoutError(f"{name}: {line!r}")
    return left, right
