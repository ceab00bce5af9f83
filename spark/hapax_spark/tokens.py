"""Tokens that name a commit: of a query's micro-batch, of an application's version, or of one batch write."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hapax.client import CommitToken, Work
from hapax_spark.fingerprints import RECORDS, Fingerprints
from hapax_spark.options import OptionError, Options

_APPLICATION: Final = "txnAppId="


def _transactional_id(options: Options, scope: str) -> str:
    return options.transactional_id or f"{options.transactional_prefix}{scope}"


class MicroBatch(NamedTuple):
    """Properties that Spark sets for the tasks of a streaming query's batch."""

    query: str
    number: int
    run: str
    """Changes with each start of the query."""


class FirstName(NamedTuple):
    """The cluster and the name under which a stream's first batch is committed."""

    cluster: str
    transactional_id: str
    scope: str
    owner: str


@dataclass(frozen=True)
class Token:
    """Names one micro-batch, or one batch write: the unit that takes effect once."""

    transactional_id: str
    scope: str
    value: int
    """The batch id or the version."""
    allow_unknown_history: bool = False
    single_use: bool = False
    owner: str = ""
    """The query's id from its checkpoint; empty for a batch write that is never repeated."""
    run: str = ""
    """Spark's id of this run of the query; it changes with each start."""
    consecutive: bool = False
    """The preceding commit must have the preceding value."""
    continue_from: tuple[str, int] | None = None
    allow_other_records: bool = False
    within: str = ""
    """The run of the query to whose micro-batch this write belongs."""

    @staticmethod
    def for_query(options: Options, query_id: str, batch_id: int, run: str = "") -> Token:
        """A query keeps its id in its checkpoint, so a restarted driver continues in the same scope."""
        scope = options.scope or query_id
        return Token(
            _transactional_id(options, scope), scope, batch_id, options.allow_unknown_history, owner=query_id, run=run,
            consecutive=True, continue_from=options.continue_from, allow_other_records=options.allow_other_records,
        )

    @staticmethod
    def for_write(options: Options, write_id: str) -> Token:
        """A batch write is a scope of its own with a single commit that is never repeated, unless it is the version
        of an application. Raises OptionError."""
        if options.scope is not None:
            raise OptionError(
                f"scope={options.scope!r} does not identify this write: it would count as a repetition of the last "
                "one. Name a write that may be repeated by 'txnAppId' and 'txnVersion', and leave 'scope' out"
            )
        if (options.txn_app_id is None) != (options.txn_version is None):
            raise OptionError("set 'txnAppId' and 'txnVersion' together: the application, and the number of its write")
        if options.txn_app_id is not None and options.txn_version is not None:
            scope = options.txn_app_id
            return Token(
                _transactional_id(options, scope), scope, options.txn_version,
                allow_unknown_history=options.allow_unknown_history or not options.txn_consecutive,
                owner=_APPLICATION + scope, run=write_id, consecutive=bool(options.txn_consecutive),
                continue_from=options.continue_from, allow_other_records=options.allow_other_records,
            )
        return Token(
            _transactional_id(options, write_id), write_id, 0, options.allow_unknown_history, single_use=True)

    @property
    def is_version(self) -> bool:
        """True for an application that counts its writes; False for a query's micro-batch or a write without a name."""
        return self.owner.startswith(_APPLICATION)

    @property
    def what(self) -> str:
        """The token's name in messages."""
        if self.is_version:
            return f"version {self.value} of {self.owner}"
        return f"batch {self.value} of query {self.owner}" if self.owner else f"the write {self.scope}"

    def commit_token(
        self, records: int = 0, allow_other_count: bool = False, fingerprints: Fingerprints = (),
        followed: Fingerprints = (), allow_other_work: bool = False,
    ) -> CommitToken:
        return CommitToken(
            self.scope, self.value, records, allow_other_count or self.allow_other_records, self.allow_unknown_history,
            self.single_use,
            Work(
                self.owner, self.run, self.value - 1 if self.consecutive and self.value > 0 else None, fingerprints,
                self.continue_from, allow_other_work, followed,
            ) if self.owner else None,
        )  # fmt: skip

    def allows(self, fingerprints: Fingerprints, kept: Collection[str]) -> bool:
        """Whether a commit with `kept` fingerprints (kinds) may confirm different work. A batch with another plan is
        another batch, and a second write in one run of a batch is another write; neither may ever be confirmed."""
        return self.allow_other_records and not any(kind != RECORDS and kind in kept for kind, _ in fingerprints)

    def in_micro_batch(self, options: Options, batch: MicroBatch) -> Token:
        """This token of a batch write, as part of a micro-batch (`foreachBatch`), which Spark may replay.
        Raises OptionError if a replay could not be told from another write."""
        if not self.owner:
            raise OptionError(
                f"This write is a part of batch {batch.number} of a streaming query (foreachBatch) and has no name: if "
                "Spark repeated the batch, the records would be written again. Set 'txnAppId', and 'txnVersion' to the "
                "batch id. If repeated records are acceptable, set delivery=at-least-once"
            )
        if self.value != batch.number:
            return self
        # As in a stream, the preceding batches must be known: under another name this batch may be committed already.
        return replace(
            self, allow_unknown_history=options.allow_unknown_history, consecutive=options.txn_consecutive is not False,
            within=batch.run,
        )
