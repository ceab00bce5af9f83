"""What a component of an explored composition is, and what it can ask of the network between them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Choice(NamedTuple):
    """Something that a component may do by itself."""

    name: str
    cost: str = ""
    """Which budget it uses up. Empty: as often as it is possible."""
    late: bool = False
    """It also happens, for nothing, once nothing else can: a timer, or a failure that somebody notices in the end."""


class Send(NamedTuple):
    """A message. In one channel messages keep their order; without a channel they come in any order."""

    to: str
    body: tuple[Any, ...]
    channel: str = ""


class Close(NamedTuple):
    """The sender gives a connection up: what it sent may still arrive, or not, and answers do not."""

    requests: str
    answers: str


class Drop(NamedTuple):
    """What was sent on a connection that was given up does not arrive any more."""

    requests: str


class Tell(NamedTuple):
    """Known at once, in the same step: that a process has died, and its connections with it."""

    to: str
    body: tuple[Any, ...]


Effect = Send | Close | Drop | Tell


class Component:
    """One party: real machines, and the glue that its service has between them. `receive` and `act` change it.

    A component is copied by pickle and compared by its canonical value, so it holds no functions of its own, no
    clocks and nothing that is shared with another one.
    """

    name: str

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        """A message has come."""
        raise NotImplementedError

    def choices(self) -> list[Choice]:
        return []

    def act(self, choice: str) -> list[Effect]:
        raise NotImplementedError

    def ignores(self, body: tuple[Any, ...]) -> bool:
        """Whether this message would change nothing, now and at any later time: it need not be carried at all."""
        return False

    def view(self) -> Any:
        """What the invariants look at; hashable."""
        return None
