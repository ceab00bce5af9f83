"""Bounds the connections that are not through the door yet: their TLS handshake or their login is incomplete."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Waiting(Protocol):
    """A connection that has not logged in."""

    working: bool
    """This process computes: it is not the client that is waited for."""

    @property
    def source(self) -> str: ...
    def give_up(self) -> None: ...


class Lobby:
    """The connections of a listener that have not logged in. With one too many, of one address or of all, the one whose
    client has been silent longest goes."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._all: OrderedDict[Waiting, None] = OrderedDict()
        """The longest silent first, also below."""
        self._addresses: dict[str, OrderedDict[Waiting, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, one: Waiting) -> None:
        own = self._addresses.setdefault(one.source, OrderedDict())
        own[one] = self._all[one] = None
        if len(own) > self._most_per_address:
            self._give_up(own, one)
        elif len(self._all) > self._most:
            self._give_up(self._all, one)

    def heard(self, one: Waiting) -> None:
        """Its client has sent something."""
        if one in self._all:
            self._all.move_to_end(one)
            self._addresses[one.source].move_to_end(one)

    def leave(self, one: Waiting) -> None:
        if one not in self._all:
            return
        del self._all[one]
        own = self._addresses[one.source]
        del own[one]
        if not own:
            del self._addresses[one.source]

    def empty(self) -> None:
        """Gives all of them up."""
        for one in list(self._all):
            one.give_up()

    @staticmethod
    def _give_up(candidates: OrderedDict[Waiting, None], newest: Waiting) -> None:
        """One that is waited for, if there is one. Else the oldest, not the newest: many passwords to check must not
        keep others out."""
        waited_for = (each for each in candidates if not each.working and each is not newest)
        (next(waited_for, None) or next(iter(candidates))).give_up()
