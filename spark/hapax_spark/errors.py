"""Errors for users of the data source. Each message has a sentence with the cause and one with the remedy."""

from __future__ import annotations

import logging

log = logging.getLogger("hapax.spark.source")


class DataLossError(RuntimeError):
    """Records between two offsets no longer exist, or the offsets belong to another cluster."""


class CheckpointError(RuntimeError):
    """The cluster does not know the commits that precede the checkpoint's next batch."""


def lost(sentence: str, advice: str, fail: bool) -> None:
    """Records cannot be read: raises DataLossError, or warns where the user allows it (`failOnDataLoss`).

    `sentence` and `advice` begin large and end without a full stop.
    """
    if fail:
        raise DataLossError(f"{sentence}. {advice}, or set failOnDataLoss=false to go on without them")
    log.warning("%s. Going on without them (failOnDataLoss=false)", sentence)
