"""Positions of groups: one that cannot be copied holds no other one back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.coordination import OffsetAndMetadata, Offsets
from hapax.client.errors import FatalError
from hapax.copy.groups import Copied, GroupPositions
from hapax.copy.settings import CopySettings
from hapax.core.copy.translate import Run
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition

SOURCE, TARGET = TopicPartition("t", PartitionIndex(0)), TopicPartition("c.t", PartitionIndex(0))


async def test_a_group_that_may_not_be_written_holds_no_other_one_back() -> None:
    written: dict[str, Offsets] = {}

    async def advance(group: str, offsets: Offsets, *, timeout_ms: int) -> int:
        if group == "a":
            raise FatalError("not allowed", code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        written[group] = offsets
        return len(offsets)

    async def group_ids() -> list[str]:
        return ["a", "b"]

    async def committed(group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {SOURCE: OffsetAndMetadata(15)}

    source: Any = SimpleNamespace(group_ids=group_ids, committed_offsets=committed)
    target: Any = SimpleNamespace(advance_group_offsets=advance)
    reader: Any = None
    groups = GroupPositions(CopySettings(source={}, target={}, topics="t", groups=".*"), source, target, reader)
    groups.copied({TARGET: [Run(10, 4, 10)]})
    with pytest.raises(FatalError):
        await groups.copy({SOURCE: Copied(SOURCE, TARGET, 20)})
    assert written == {"b": {TARGET: OffsetAndMetadata(9)}}
    assert groups.committed == 1
