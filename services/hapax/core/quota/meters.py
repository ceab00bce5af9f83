"""The meters of a node, bounded in number whatever clients call themselves.

A client id is free text. Only a default quota of client ids gives a meter to each name that a client makes up: the
names of one user beyond `most_names` share one meter. Users and addresses are bounded by `most`: beyond it, the meters
that were used least recently are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from hapax.core.quota.meter import Windows

_SWEEP_MS: Final = 1_000
_GIVEN_UP_AT_ONCE: Final = 8
"""One of this many meters, so that the search for the oldest is rare."""


class AnyMeter(Protocol):
    last_ms: int
    live: bool

    def unused(self, now_ms: int) -> bool: ...


class Owner(NamedTuple):
    """Who shares a meter."""

    key: str
    user: str | None
    client_id: str | None
    others: bool = False
    """All client ids of the user that have no meter of their own."""


_M = TypeVar("_M", bound=AnyMeter)


class Meters(Generic[_M]):
    def __init__(self, make: Callable[[Windows, int], _M], windows: Windows, most: int, most_names: int) -> None:
        self._make = make
        self._windows = windows
        self._most = most
        self._most_names = most_names
        self._meters: dict[Owner, _M] = {}
        self._made_by: dict[Owner, tuple[str, str]] = {}
        """Of meters that a default gave to a client id: key and user of the first request."""
        self._names: dict[tuple[str, str], int] = {}
        """How many of them a user has made."""
        self._swept_ms = 0
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, owner: Owner, now_ms: int, named_by: str | None = None) -> _M:
        """`named_by`: the user whose client made up the client id; None: a quota names it."""
        found = self._meters.get(owner)
        if found is not None:
            return found
        if now_ms - self._swept_ms >= _SWEEP_MS:
            self._sweep(now_ms)
        if named_by is not None:
            maker = owner.key, named_by
            if self._names.get(maker, 0) >= self._most_names:
                return self.of(Owner(owner.key, named_by, None, others=True), now_ms)
            self._names[maker] = self._names.get(maker, 0) + 1
            self._made_by[owner] = maker
        if len(self._meters) >= self._most:
            self._give_up_oldest()
        made = self._meters[owner] = self._make(self._windows, now_ms)
        return made

    def clear(self) -> None:
        for owner in list(self._meters):
            self._remove(owner)

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        for owner in [owner for owner, meter in self._meters.items() if meter.unused(now_ms)]:
            self._remove(owner)

    def _give_up_oldest(self) -> None:
        oldest = sorted(self._meters, key=lambda owner: self._meters[owner].last_ms)
        for owner in oldest[: 1 + self._most // _GIVEN_UP_AT_ONCE]:
            self.given_up += 1
            self._remove(owner)

    def _remove(self, owner: Owner) -> None:
        self._meters.pop(owner).live = False
        maker = self._made_by.pop(owner, None)
        if maker is not None:
            self._names[maker] -= 1
            if not self._names[maker]:
                del self._names[maker]
