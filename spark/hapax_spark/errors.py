"""Errors of the data source that users meet: a sentence that says what is wrong, and one that says what to do."""

from __future__ import annotations

import logging

log = logging.getLogger("hapax.spark.source")


class DataLossError(RuntimeError):
    """Records between two offsets are gone, or the offsets are not this cluster's."""


class CheckpointError(RuntimeError):
    """The cluster knows nothing of the commits that the checkpoint goes on from."""


def lost(sentence: str, advice: str, fail: bool) -> None:
    """Records cannot be read: raises DataLossError, or warns where the user allows it (`failOnDataLoss`).

    `sentence` and `advice` begin large and end without a full stop.
    """
    if fail:
        raise DataLossError(f"{sentence}. {advice}, or set failOnDataLoss=false to go on without them")
    log.warning("%s. Going on without them (failOnDataLoss=false)", sentence)
