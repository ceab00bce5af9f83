"""Keeps the garbage collector of a reused Python worker away from the modules that the worker has loaded.

Spark keeps the workers of a micro-batch (one plans the write, one for each task, one commits) and runs a full garbage
collection in each after each use. With pandas, Arrow and the client loaded, it visits about 100,000 objects that live
as long as the process. On a machine without idle cores the collections take their time from the micro-batch that is
under way.
"""

from __future__ import annotations

import gc
import os

_frozen = False


def freeze_loaded_modules() -> None:
    """Excludes what exists now from later collections, once in each worker that Spark reuses; does nothing in other
    processes. Call it after the imports and before the first record."""
    global _frozen
    if not _frozen and "SPARK_REUSE_WORKER" in os.environ:
        _frozen = True
        gc.freeze()
