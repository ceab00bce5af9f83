"""The first batch of a stream, where nothing in the cluster tells a query that is run again from a new one.

Later batches follow a commit, and are refused under a name that knows none. The first one follows nothing: committed,
and run again under another scope, transactional id or query id, it would be committed again. So before it is written
the checkpoint notes under which name it will be; and where it is to be another, the cluster is asked what became of it
under that one.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from hapax_spark.cluster import kept_cluster
from hapax_spark.fingerprints import Plan, local_checkpoint
from hapax_spark.options import Options
from hapax_spark.refusals import newest_in, renamed, scope_taken
from hapax_spark.tokens import FirstName, Token

log = logging.getLogger("hapax.spark")

NOTE: Final = "hapax-sink.json"
"""In the folder of the checkpoint, where Spark keeps nothing by this name."""


def check_first_batch(options: Options, plan: Plan | None) -> None:
    """On the driver, before a batch is written, and again before it is committed. Raises CheckpointError where it was
    committed under another name, or may be yet; ScopeTakenError; HapaxError."""
    folder = local_checkpoint(options.checkpoint_location)
    if folder is None or plan is None or plan.batch > 0 or options.delivery != "exactly-once":
        return
    token = Token.for_query(options, plan.query, plan.batch)
    with kept_cluster(options) as cluster:
        name = FirstName(cluster.cluster_id, token.transactional_id, token.scope, token.owner)
        former = _noted(folder)
        if former == name:
            return
        if former is not None and not token.allow_unknown_history:
            known = cluster.describe(former.transactional_id) if former.cluster == name.cluster else None
            refused = renamed(token, name, former, known)
            if refused is not None:
                raise refused
        # Noted is only what may be committed: in another's scope, this could not be told of it later.
        known = cluster.describe(name.transactional_id)
        newest = None if known is None else newest_in(name.scope, known)
        if newest is not None and newest.owner not in ("", name.owner) and (
            token.continue_from != (newest.owner, newest.value)
        ):
            raise scope_taken(token, newest)
    _note(folder, name)


def _noted(folder: Path) -> FirstName | None:
    try:
        noted = json.loads((folder / NOTE).read_text())
        return FirstName(**{field: str(noted[field]) for field in FirstName._fields})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s): should this checkpoint's first batch be committed under another name, "
                    "it will be committed again", folder / NOTE, error)  # fmt: skip
        return None


def _note(folder: Path, name: FirstName) -> None:
    new = folder / f".{NOTE}.tmp"
    try:
        with new.open("w") as file:
            json.dump(name._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / NOTE)
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        log.warning("%s cannot be written (%s): do not rename this query before its first batch is committed",
                    folder / NOTE, error)  # fmt: skip
