"""Why a backup cannot be taken, read or restored."""

from __future__ import annotations


class BackupError(Exception):
    """`message` says what is wrong and what to do; `place`: the file or address that it is about."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
