"""One history of an explored composition: a counterexample that `make explore` printed, kept as a regression test.

    > machine explore scope=parked
    > step "a1 does init"         as the exploration prints it
    > rest                        goes on without faults until nothing is left to do, and judges the end
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hapax_explore.scopes import SCOPES
from hapax_explore.search import Explorer
from scenarios.script import Command, ScriptError

_LONGEST: Final = 500
"""Steps to the end of a fair run."""


class Interpreter:
    def __init__(self, machine: Command) -> None:
        self.scope = SCOPES[machine.text("scope")]()
        self.explorer = Explorer(self.scope)
        self.row = self.explorer.first()

    def execute(self, command: Command) -> Iterable[str]:
        method = {"step": self._step, "rest": self._rest}.get(command.name)
        if method is None:
            raise ScriptError(f"unknown command `{command.name}`")
        yield from method(command)

    def _step(self, command: Command) -> Iterator[str]:
        """A step that is not possible any more is said, not an error: the fix may have made it so."""
        text = " ".join(command.positional)
        for step in self.explorer.steps(self.row):
            if step.text == text:
                self.row = step.row
                yield from self._judge(self.scope.safe(self.explorer.views(self.row)))
                return
        yield f"not possible: {text}"

    def _rest(self, command: Command) -> Iterator[str]:
        for _ in range(_LONGEST):
            if self.explorer.quiescent(self.row):
                yield from self._judge(self.scope.settled(self.explorer.views(self.row)))
                yield from (f"{name}: {view}" for name, view in sorted(self.explorer.views(self.row).items()))
                return
            step = next(step for step in self.explorer.steps(self.row) if not step.fault)
            self.row = step.row
            yield step.text
            yield from self._judge(self.scope.safe(self.explorer.views(self.row)))
        yield f"no end after {_LONGEST} steps"

    def _judge(self, broken: str | None) -> Iterator[str]:
        if broken:
            yield f"BROKEN: {broken}"
