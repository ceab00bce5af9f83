"""A component of an explored composition, and what it can ask of the network between the components."""

from __future__ import annotations

from typing import Any, NamedTuple


class Choice(NamedTuple):
    """An action that a component may take by itself."""

    name: str
    cost: str = ""
    """The budget that it uses up. Empty: it may happen at any time."""
    late: bool = False
    """It also happens, without using a budget, once nothing else can happen: a timer, or a failure that is noticed in
    the end."""


class Send(NamedTuple):
    """A message. Messages in one channel keep their order. Without a channel they arrive in any order."""

    to: str
    body: tuple[Any, ...]
    channel: str = ""


class Close(NamedTuple):
    """The sender gives up a connection: its messages may still arrive or not, and answers no longer arrive."""

    requests: str
    answers: str


class Drop(NamedTuple):
    """Messages on a connection that was given up no longer arrive."""

    requests: str


class Tell(NamedTuple):
    """Known at once, in the same step: that a process has died, and its connections with it."""

    to: str
    body: tuple[Any, ...]


Effect = Send | Close | Drop | Tell


class Component:
    """One party: real machines, and the code that its service has around them. `receive` and `act` change it.

    A component is copied by pickle and compared by its canonical value, so it holds no functions, no clocks and no
    objects that it shares with another component.
    """

    name: str

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        """A message has arrived."""
        raise NotImplementedError

    def choices(self) -> list[Choice]:
        return []

    def act(self, choice: str) -> list[Effect]:
        raise NotImplementedError

    def ignores(self, body: tuple[Any, ...]) -> bool:
        """Whether this message would change nothing, now and at any later time, so that it need not be sent at all."""
        return False

    def view(self) -> Any:
        """What the invariants examine. Hashable."""
        return None
