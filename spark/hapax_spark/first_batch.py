"""The first batch of a stream, for which the cluster cannot tell a replay from a new query.

Later batches follow a commit, and are refused under a name without commits. The first batch follows none: if it was
committed and is replayed under another scope, transactional id or query id, it would be committed again. Therefore the
checkpoint records the name before the batch is written. If the name changes, the cluster is asked for the outcome under
the former name.
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
"""A file in the folder of the checkpoint. Spark uses no such name."""


def check_first_batch(options: Options, plan: Plan | None) -> None:
    """Runs on the driver before a batch is written, and again before it is committed. Raises CheckpointError if the
    batch was or may yet be committed under another name; ScopeTakenError; HapaxError."""
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
        # Record only a name under which a commit is possible: in another query's scope it could not be found later.
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
