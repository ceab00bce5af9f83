"""Client programs of the tests that poll in a thread."""

from __future__ import annotations

import threading

_CLOSE_S = 90.0


class Polling:
    """Runs `_run` in a thread until `close`, which raises what `_run` raised."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_CLOSE_S)
        assert not self._thread.is_alive(), "close() hangs"
        self.check()
