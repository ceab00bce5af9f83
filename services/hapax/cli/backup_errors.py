"""How the commands of backups tell a failure."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from hapax.backup.errors import BackupError
from hapax.cli import output

T = TypeVar("T")


async def told(task: Coroutine[Any, Any, T]) -> T:
    """A failure of the backup's place becomes one line on stderr and exit code 1. Raises HapaxError."""
    try:
        return await task
    except (BackupError, OSError) as error:
        output.fail(str(error))
