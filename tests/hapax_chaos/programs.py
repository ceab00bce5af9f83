"""The client processes of a chaos run, by the work that the harness gives them."""

from __future__ import annotations

import faulthandler
import json
import signal
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from hapax_chaos.clients import Appender, Settings
from hapax_chaos.members import CarelessCopier, Copier, Feeder, MemberSettings, SlowCopier


class Program(Protocol):
    stopping: bool

    def run(self) -> None: ...


PROGRAMS: Final[dict[str, Callable[[str], Program]]] = {
    "append": lambda text: Appender(Settings(text)),
    "copy": lambda text: Copier(MemberSettings(text)),
    "copy-carelessly": lambda text: CarelessCopier(MemberSettings(text)),
    "copy-slowly": lambda text: SlowCopier(MemberSettings(text)),
    "feed": lambda text: Feeder(MemberSettings(text)),
}


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM."""
    program = PROGRAMS[json.loads(argv[0])["work"]](argv[0])

    def stop(number: int, frame: object) -> None:
        program.stopping = True

    signal.signal(signal.SIGTERM, stop)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # writes to the log where the program is
    program.run()
    return 0
