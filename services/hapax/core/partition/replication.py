"""What a partition's leader knows of the other replicas during one leadership (KIP-497, KIP-966, rule 5).

Everything else follows from these rules:

* **The high watermark is what every electable replica has.** An election uses the stored in-sync set. So an addition
  counts as soon as its write is sent, because the write may have arrived. A removal counts only once it is known to be
  stored.
* **A replica has what it has synced** (by the durability setting). This holds for the leader too. Fetched records do
  not count.
* **A replica that was given the producers as of an offset has them once its log reaches that offset** (rule 5). Until
  then nothing may be compacted: the replica would miss the ends of transactions whose records it has.
* **The replicas that count for the high watermark confirm that the leader still leads.** An election uses the same
  set, so the next leader is one of them (rule 23).
* **Below min.insync.replicas nothing is committed.** Otherwise one replica would commit records that it alone can lose.
  So a member that leaves the set at that size still has every committed record. It may lead again if the members that
  stayed return without their records: the partition's record names it as passed over. While the record names any
  replica so, nothing is committed, whatever the setting is by then. A named replica does not copy from the start,
  because that would remove the records for which it is named.

A proposal is a compare-and-swap on one revision of the partition's record. Its outcome may stay unknown. It is decided
once a later revision is seen, or once the store refuses a write that compares the same or a later revision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hapax.core.partition.barrier import ENDLESS
from hapax.core.types import NodeId, RegistrationEpoch

UNKNOWN_END: Final = -1
_SILENT_AFTER_MS: Final = 30_000
"""Compaction does not wait for a replica that has not fetched for this many milliseconds."""


class Eligible(NamedTuple):
    """A live broker, as the cluster's metadata describes it."""

    registration: RegistrationEpoch
    joins: bool
    """False: it is about to stop, and must not be added to an in-sync set."""


class Proposal(NamedTuple):
    """The in-sync set that is to replace the stored one of `revision`."""

    isr: tuple[NodeId, ...]
    added: tuple[NodeId, ...]
    removed: tuple[NodeId, ...]
    revision: int
    passed_over: tuple[NodeId, ...] = ()
    """Replicas that left the set and have every committed record (`PartitionState.passed_over`)."""


class Follower:
    """One replica, as the leader knows it."""

    __slots__ = (
        "asked_ms", "caught_up_ms", "end", "handed_end", "marked_end", "marked_ms", "overtaken", "registration",
        "round", "start",
    )  # fmt: skip

    def __init__(self, log_end: int, now_ms: int) -> None:
        self.registration = RegistrationEpoch(0)
        """Registration epoch that its last fetch named; 0: it has not fetched yet."""
        self.end = UNKNOWN_END
        """It has synced everything below this offset."""
        self.start = 0
        """It has noted, durably, that the records below this offset are deleted."""
        self.caught_up_ms = now_ms
        """When a check last found that it had everything that the leader had at that time; monotonic ms."""
        self.marked_ms = now_ms
        self.marked_end = log_end
        """The leader's end at `marked_ms`. Once the replica reaches it, it was in sync at `marked_ms`."""
        self.asked_ms = now_ms - _SILENT_AFTER_MS
        """When it last asked for records or for the producers; monotonic ms."""
        self.handed_end = UNKNOWN_END
        """Offset of the producers' snapshot that it was given."""
        self.overtaken = False
        """Records below that offset were compacted since."""
        self.round = 0
        """The newest round of questions after which it still followed this leader (`hapax.core.partition.barrier`)."""


class Replication:
    """See above. `fetched`, `synced`, `sent`, `stored` and `refused` report events; the other methods mostly read."""

    __slots__ = (
        "_accepted", "_effective_minimum", "_followers", "_me", "_members", "_min_insync", "_several",
        "_starting_over", "deleted_below", "epoch_start", "isr", "own_end", "passed_over", "pending", "replicas",
        "revision",
    )  # fmt: skip

    def __init__(
        self, me: NodeId, replicas: Sequence[NodeId], isr: Sequence[NodeId], revision: int, *, log_end: int,
        min_insync: int, now_ms: int, passed_over: Sequence[NodeId] = (), accepted: bool = True,
    ) -> None:
        """`revision`: of the stored record, which holds `replicas`, `isr`, `passed_over` and `accepted`. `log_end`: the
        leader's log end at the start of its epoch."""
        self._me = me
        self._followers = {node: Follower(log_end, now_ms) for node in replicas if node != me}
        self._members: tuple[Follower, ...] = ()
        self._min_insync = min_insync
        self._effective_minimum = 1
        self.epoch_start = log_end
        self.own_end = UNKNOWN_END
        self.deleted_below = 0
        """Records below this offset were deleted on request. A replica joins the in-sync set only once it has noted
        that: an election must not bring them back."""
        self.pending: Proposal | None = None
        """Sent to the store, neither refused nor seen stored yet."""
        self._several = False
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.passed_over = tuple(passed_over)
        self._accepted = accepted
        self._starting_over: set[NodeId] = set()
        """Replicas that asked to copy from the start while they were in sync or passed over. `decide_isr` ends that
        first."""
        self.revision = revision
        self._count(log_end, now_ms)

    def _count(self, log_end: int, now_ms: int) -> None:
        """Recomputes which replicas count for the high watermark, after the stored set or the proposal changed."""
        counted = dict.fromkeys(self.isr)
        if self.pending is not None:
            counted.update(dict.fromkeys(self.pending.added))
        counted.pop(self._me, None)
        for node in counted:
            if node not in self._followers:
                self._followers[node] = Follower(log_end, now_ms)
        self._members = tuple(self._followers[node] for node in counted)
        self._effective_minimum = min(self._min_insync, max(1, len(self.replicas)))

    # --- what happened ----------------------------------------------------------------------------------------------

    def synced(self, end: int) -> None:
        """The leader's own log is durable below `end`."""
        self.own_end = end

    def fetched(self, node: NodeId, registration: RegistrationEpoch, end: int, start: int = 0) -> bool:
        """A replica's fetch reported that it has synced everything below `end` of the leader's history, and that its
        log durably begins at `start`. False: it is not a replica of this partition."""
        follower = self._followers.get(node)
        if follower is None:
            return False
        if registration != follower.registration:
            follower.registration = registration
            self._starting_over.discard(node)
        follower.end, follower.start = end, start
        return True

    def heard(self, node: NodeId, newest_round: int) -> None:
        """A replica's fetch of this partition, under this leader's epoch, was sent after the questions of that
        round."""
        follower = self._followers.get(node)
        if follower is not None and follower.round < newest_round:
            follower.round = newest_round

    def handed(self, node: NodeId, end: int, now_ms: int) -> bool:
        """A replica gets the producers as of `end`, and copies the log up to there. False: it is not a replica, or it
        is in sync or passed over, and may copy from the start only once `decide_isr` has ended that."""
        follower = self._followers.get(node)
        if follower is None:
            return False
        if node in self.isr or node in self.passed_over or (self.pending is not None and node in self.pending.added):
            self._starting_over.add(node)
            return False
        self._starting_over.discard(node)
        follower.end = UNKNOWN_END  # it may be about to remove the records that it reported
        follower.handed_end, follower.overtaken, follower.asked_ms = end, False, now_ms
        return True

    def asked(self, node: NodeId, offset: int, now_ms: int) -> bool:
        """A replica asks for the log from `offset` on. False: records below the offset of its producers' snapshot were
        compacted, and it has to copy from the start again."""
        follower = self._followers.get(node)
        if follower is None:
            return True
        follower.asked_ms = now_ms
        return not follower.overtaken or offset >= follower.handed_end

    def catching_up(self, now_ms: int) -> bool:
        """Whether a replica is catching up. Compaction waits for it."""
        return any(
            (node not in self.isr or follower.end < follower.handed_end)
            and now_ms - follower.asked_ms < _SILENT_AFTER_MS
            for node, follower in self._followers.items()
        )

    def compacting(self) -> None:
        """Compaction begins: committed records may be removed from now on."""
        for follower in self._followers.values():
            follower.overtaken = follower.handed_end >= 0

    def forgot(self, node: NodeId) -> None:
        """The replica no longer copies. Its reported end no longer counts: it may be about to remove its records."""
        follower = self._followers.get(node)
        if follower is not None:
            follower.end = UNKNOWN_END

    def stored(
        self, replicas: Sequence[NodeId], isr: Sequence[NodeId], revision: int, *, log_end: int, now_ms: int,
        passed_over: Sequence[NodeId] = (), accepted: bool = True,
    ) -> None:
        """The store holds this set as of this revision."""
        if revision < self.revision:
            return
        self.revision = revision
        self.replicas, self.isr, self.passed_over = tuple(replicas), tuple(isr), tuple(passed_over)
        self._accepted = accepted
        self._starting_over.intersection_update((*self.isr, *self.passed_over))
        if self.pending is not None and revision > self.pending.revision:
            self.pending, self._several = None, False
        for node in replicas:
            if node != self._me and node not in self._followers:
                self._followers[node] = Follower(log_end, now_ms)
        for node in [node for node in self._followers if node not in replicas and node not in isr]:
            del self._followers[node]
        self._count(log_end, now_ms)

    def sent(self, proposal: Proposal) -> None:
        """The proposal is about to be sent, so that it may be stored from now on. To be called before it is sent."""
        if self.pending is not None:  # not answered, or not seen stored yet: the earlier one may be stored instead
            added = (*self.pending.added, *(node for node in proposal.added if node not in self.pending.added))
            proposal = proposal._replace(added=added)
            self._several = True
        self.pending = proposal
        self._count(self.epoch_start, 0)

    def refused(self) -> None:
        """The store refused the proposal that was sent last: another write came first, or a member's registration
        changed. The outcome of earlier proposals stays unknown."""
        if not self._several:
            self.pending = None
            self._count(self.epoch_start, 0)

    def require(self, min_insync: int) -> None:
        """min.insync.replicas has changed."""
        self._min_insync = min_insync
        self._count(self.epoch_start, 0)

    # --- the high watermark -----------------------------------------------------------------------------------------

    @property
    def too_few(self) -> bool:
        """acks=all is refused: fewer replicas are in sync than min.insync.replicas."""
        return len(self.isr) < self._min_insync

    @property
    def sole(self) -> bool:
        """This node has the only replica."""
        return self.pending is None and self.isr == (self._me,) and self.replicas == (self._me,)

    def committed(self) -> int:
        """Every member has everything below this offset, so the high watermark may be here. -1: not known."""
        if self.passed_over or len(self.isr) < self._effective_minimum:
            return UNKNOWN_END
        end = self.own_end
        for member in self._members:
            if member.end < end:
                end = member.end
        return end

    def deleted(self) -> int:
        """Every electable replica but this one has noted that the records below this offset are deleted."""
        return min((member.start for member in self._members), default=ENDLESS)

    def confirmed(self) -> int:
        """The newest round after whose questions this node still led for certain: no electable replica had begun to
        lead. `ENDLESS`: no other replica is electable."""
        return min((member.round for member in self._members), default=ENDLESS)

    # --- the in-sync set --------------------------------------------------------------------------------------------

    def may_join(self, node: NodeId, high_watermark: int) -> bool:
        """Whether the replica has every committed record and has compared its history with this leader's, so that
        `decide_isr` may add it."""
        if node in self.isr or (self.pending is not None and node in self.pending.added):
            return False
        return node in self.replicas and self._has_all(node, high_watermark)

    def _has_all(self, node: NodeId, high_watermark: int) -> bool:
        follower = self._followers.get(node)
        return (
            follower is not None and follower.end >= max(high_watermark, self.epoch_start, follower.handed_end)
            and follower.start >= self.deleted_below
        )

    def check_lag(self, log_end: int, now_ms: int, lag_max_ms: int) -> tuple[NodeId, ...]:
        """Returns the members that have not been in sync for `lag_max_ms` (replica.lag.time.max.ms). To be called a few
        times in that time."""
        lagging = []
        for node in self.isr:
            follower = self._followers.get(node)
            if follower is None:
                continue
            if follower.end >= log_end:
                follower.caught_up_ms = now_ms
            elif follower.end >= follower.marked_end:
                follower.caught_up_ms = max(follower.caught_up_ms, follower.marked_ms)
            elif now_ms - follower.caught_up_ms > lag_max_ms:
                lagging.append(node)
                continue
            else:
                continue
            follower.marked_end, follower.marked_ms = log_end, now_ms
        return tuple(lagging)

    def decide_isr(
        self, high_watermark: int, live: Mapping[NodeId, Eligible], lagging: Sequence[NodeId] = ()
    ) -> Proposal | None:
        """Returns the set to be stored next; None: no change. `live`: the brokers that are registered now. Not to be
        called while a proposal's answer may still come."""
        removed = tuple(
            node for node in self.isr
            if node != self._me and (node not in live or node in lagging or node in self._starting_over))
        added = tuple(
            node for node in self.replicas
            if node not in self.isr and node in live and live[node].joins and node not in self._starting_over
            and live[node].registration == self.registration_of(node)
            and self._has_all(node, high_watermark)
        )
        kept = [node for node in self.isr if node not in removed]
        members = {*kept, *added}
        isr = tuple(node for node in self.replicas if node in members)
        isr += tuple(node for node in kept if node not in isr)
        passed_over = self._left_out(isr)
        if not removed and not added and passed_over == self.passed_over and self.pending is None:
            return None  # with a pending proposal, proposing the same set again shows what is stored
        return Proposal(isr, added, removed, self.revision, passed_over)

    def _left_out(self, isr: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        if self._accepted and len(isr) >= self._effective_minimum:
            return ()
        former = dict.fromkeys((*self.passed_over, *self.isr))
        return tuple(
            node for node in former if node not in isr and node in self.replicas and node not in self._starting_over)

    def registration_of(self, node: NodeId) -> RegistrationEpoch:
        """Registration epoch that a follower's last fetch named; 0: it has not fetched from this leader."""
        follower = self._followers.get(node)
        return RegistrationEpoch(0) if follower is None else follower.registration

    # --- describe ---------------------------------------------------------------------------------------------------

    def end_of(self, node: NodeId) -> int:
        """The synced end that a replica has reported; -1: not known."""
        follower = self._followers.get(node)
        return self.own_end if node == self._me else UNKNOWN_END if follower is None else follower.end
