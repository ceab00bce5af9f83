"""Keeps the garbage collector of a reused Python worker away from the modules that the worker has loaded.

Spark keeps the workers of a micro-batch (one plans the write, one for each task, one commits) and runs a full garbage
collection in each after each use. With pandas, Arrow and the client loaded, it visits about 100,000 objects that live
as long as the process. On a machine without idle cores the collections take their time from the micro-batch that is
under way.
"""

from __future__ import annotations

import gc
import os
from typing import Final

_TIMES: Final = 4
"""A worker loads its last modules (gRPC, Arrow's writers) while it carries out its first uses. Bounded, because garbage
of a cycle with a frozen object is never freed."""
_frozen = 0


def freeze_loaded_modules() -> None:
    """Excludes what exists now from later collections, in the first uses of each worker that Spark reuses; does nothing
    in other processes. Call it after the imports and before the first record."""
    global _frozen
    if _frozen < _TIMES and "SPARK_REUSE_WORKER" in os.environ:
        _frozen += 1
        gc.freeze()
