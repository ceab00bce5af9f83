"""A component of an explored composition, and its effects on the network between the components."""

from __future__ import annotations

from typing import Any, NamedTuple


class Choice(NamedTuple):
    """An action that a component may take without a message."""

    name: str
    cost: str = ""
    """The budget that it uses up. If empty, it may happen at any time."""
    late: bool = False
    """Whether it also happens, without using a budget, once nothing else can happen. Such an action is a timer, or a
    failure that is noticed in the end."""


class Send(NamedTuple):
    """A message. Messages in one channel keep their order. Messages without a channel arrive in any order."""

    to: str
    body: tuple[Any, ...]
    channel: str = ""


class Close(NamedTuple):
    """The sender abandons a connection: its messages may or may not arrive, and answers no longer arrive."""

    requests: str
    answers: str


class Drop(NamedTuple):
    """Messages on an abandoned connection no longer arrive."""

    requests: str


class Tell(NamedTuple):
    """A message that arrives in the same step, such as the news that a process and its connections are lost."""

    to: str
    body: tuple[Any, ...]


Effect = Send | Close | Drop | Tell


class Component:
    """One party: real machines, and the code that its service has around them. `receive` and `act` change its state.

    A component is copied by pickle and compared by its canonical value, so it holds no functions, no clocks and no
    objects that it shares with another component.
    """

    name: str

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        """Processes a message that has arrived."""
        raise NotImplementedError

    def choices(self) -> list[Choice]:
        return []

    def act(self, choice: str) -> list[Effect]:
        raise NotImplementedError

    def ignores(self, body: tuple[Any, ...]) -> bool:
        """Whether this message would never change anything, so that it need not be sent."""
        return False

    def view(self) -> Any:
        """What the invariants examine, as a hashable value."""
        return None
