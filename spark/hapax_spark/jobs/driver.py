"""A driver in client mode, as the image's `run` starts it: `python -m hapax_spark.jobs.driver JOB ARGS...`

JOB is the name of a module (`hapax_spark.jobs.passthrough`) or a file of the image or of a volume
(`local:///jobs/mine.py`). The session is created before the job starts, with the settings of `hapax_spark.jobs.pod` and
the data source `hapax`; the job gets it by `SparkSession.builder.getOrCreate()`. `hapax_spark.jobs.progress` serves the
progress at HAPAX_SPARK_PROGRESS_PORT (4041).

SIGTERM stops the queries at once: a running micro-batch is aborted, and the next driver repeats it. Exit codes: 0 the
job ended by itself, 143 it ended by SIGTERM, 1 it failed, 2 wrong usage. The last line of a failure is also the
container's termination message.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession

from hapax_spark.jobs.pod import PodError, api_server, settings
from hapax_spark.jobs.progress import PORT, Progress, serve
from hapax_spark.jobs.session import spark_session

TOLD_TO_END: Final = 128 + signal.SIGTERM
_TERMINATION_LOG: Final = Path("/dev/termination-log")
_MESSAGE_BYTES: Final = 2048
_AGAIN_S: Final = 0.2
_STOP_S: Final = 20.0
"""Less than a pod's default grace period of 30 s."""


class Stopper:
    """Handles SIGTERM in a separate thread, because the main thread may be in a call to the JVM."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self._over = threading.Event()
        self._session: SparkSession | None = None
        signal.signal(signal.SIGTERM, self._tell)
        self._thread = threading.Thread(target=self._stop, name="stopper", daemon=True)
        self._thread.start()

    def watch(self, session: SparkSession) -> None:
        """From now on, SIGTERM first stops the session's queries."""
        self._session = session

    def done(self) -> None:
        """Called when the job has ended. Waits for a running SIGTERM handler, because it uses the session."""
        self._over.set()
        if self.told.is_set():
            self._thread.join(_STOP_S)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self.told.set()

    def _stop(self) -> None:
        self.told.wait()
        if self._session is None:
            os._exit(TOLD_TO_END)  # the JVM ends with this process
        print("SIGTERM: the queries are stopped", file=sys.stderr, flush=True)
        while not self._over.wait(_AGAIN_S):  # the job may still start a query
            for query in self._session.streams.active:
                query.stop()
            self._session.sparkContext.cancelAllJobs()


def run_job(job: str, arguments: list[str]) -> None:
    """Runs the job like `python -m JOB` or `python JOB`. Raises the job's errors."""
    sys.argv = [job, *arguments]
    if job.startswith("local://"):
        path = job.removeprefix("local://")
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
    else:
        runpy.run_module(job, run_name="__main__", alter_sys=True)


def main(words: list[str]) -> int:
    if not words:
        print((__doc__ or "").splitlines()[0], file=sys.stderr)
        return 2
    stopper = Stopper()
    try:
        given = settings(os.environ, api_server(os.environ))
    except PodError as error:
        return _failed(2, str(error))
    _make_folder(given.get("spark.eventLog.dir", ""))
    session = spark_session(os.environ.get("POD_NAME") or words[0].rpartition("/")[2], given=given)
    stopper.watch(session)
    progress = Progress()
    serve(session, progress, port=int(os.environ.get("HAPAX_SPARK_PROGRESS_PORT", PORT)))
    code = _run(words, stopper)
    stopper.done()
    with contextlib.suppress(Exception):  # if the JVM is gone, so are its executors
        session.stop()
    if code in (0, TOLD_TO_END):
        _leave(progress.last_report())  # no other process can ask for the last batch's any more
    return code


def _make_folder(address: str) -> None:
    """Spark does not create the folder of its event logs. A failure is its own to report."""
    if address.startswith("file:///"):
        with contextlib.suppress(OSError):
            Path(address.removeprefix("file://")).mkdir(parents=True, exist_ok=True)


def _run(words: list[str], stopper: Stopper) -> int:
    try:
        run_job(words[0], words[1:])
    except SystemExit as end:
        if not stopper.told.is_set() and end.code not in (0, None):
            return _failed(end.code if isinstance(end.code, int) else 1, f"{words[0]} ended with {end.code}")
    except Exception as error:
        if not stopper.told.is_set():
            traceback.print_exc()
            return _failed(1, str(error).strip() or type(error).__name__)
    return TOLD_TO_END if stopper.told.is_set() else 0


def _failed(code: int, message: str) -> int:
    print(message, file=sys.stderr, flush=True)
    _leave(message)
    return code


def _leave(message: str) -> None:
    """For the operator, which reads it in the status of the pod."""
    with contextlib.suppress(OSError):  # not in a container
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_bytes(message.encode()[:_MESSAGE_BYTES])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
