"""What a copy is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hapax.client.errors import SettingsError
from hapax.core.errors import Refusal
from hapax.core.group.expressions import check_expression

GROUP_PREFIX: Final = "hapax-copy."
"""Before the copy's name: its group, its transactional ids and its own topics on the target."""
OWN_TOPICS: Final = (".positions", ".offsets")
"""How the names of a copy's own topics end."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


@dataclass(frozen=True)
class CopySettings:
    source: Mapping[str, object]
    """Settings of the clients of the source, under Kafka's names."""
    target: Mapping[str, object]
    topics: str
    """A regular expression (RE2), which has to match the whole name."""
    name: str = "copy"
    """Names the copy on the target. Its positions are kept under this name."""
    instance: str = "0"
    """Tells the processes of one copy apart. A new process takes the partitions of a former one with its instance."""
    exclude: str = ""
    """Topics that are left out, as `topics`. Empty: none."""
    prefix: str = ""
    """Before the name of each topic in the target."""
    follow: bool = False
    """Keeps copying. Otherwise the copy ends at the offsets at which the partitions end when it starts."""
    by_key: bool = False
    """Chooses the partition in the target by key, as a producer does."""
    skip_lost: bool = False
    """Goes on after records that the source has lost."""
    into_existing: bool = False
    """Also copies to partitions that hold records of another origin."""
    replication_factor: int = -1
    """Of topics that are created; -1: the target's default."""
    groups: str = ""
    """Consumer groups whose positions are copied, as `topics`. Empty: none."""
    config: bool = True
    """Gives topics that are created the configuration of the source's."""
    transaction_bytes: int = 16 << 20
    """About as many bytes are read ahead, and go into one transaction. A larger transaction of the source is split."""
    discover_ms: int = 30_000
    """Interval at which topics and partitions are looked up."""
    groups_ms: int = 10_000
    """Interval at which the positions of groups are copied."""
    open_wait_ms: int = 10_000
    """How long a copy that does not follow waits for open transactions of the source."""

    @property
    def group(self) -> str:
        return GROUP_PREFIX + self.name

    @property
    def positions_topic(self) -> str:
        """The copy's own topic on the target that has its positions once more."""
        return f"{self.group}.positions"

    @property
    def transactional_id(self) -> str:
        return f"{self.group}.{self.instance}"

    def check(self) -> None:
        """Raises SettingsError."""
        for what, given in (("--name", self.name), ("--instance", self.instance)):
            if not _NAME.fullmatch(given):
                raise SettingsError(f"{what} {given!r}: it must have 1 to 100 of the characters a-z A-Z 0-9 . _ -")
        for what, pattern in (("--topics", self.topics), ("--exclude", self.exclude), ("--groups", self.groups)):
            try:
                check_expression(pattern)
            except Refusal as refusal:
                raise SettingsError(f"{what}: {refusal.reason}") from None
        if self.groups and self.by_key:
            raise SettingsError(
                "--groups with --by-key: a partition of the target has records of several partitions then, so that a"
                " position in one of them stands for no offset there")
