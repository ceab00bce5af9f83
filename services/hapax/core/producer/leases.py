"""Leases of producer ids (rule 8).

A lease has a name, a producer id and a generation, which is the producer epoch of its current holder.

1. A generation is persisted before any partition hears of it, and every partition of the lease is fenced with it
   before the new holder is answered. So no former holder can write once its successor knows its progress.
2. The producer id stays the same over take-overs, so a partition's count of its records goes on. Where generations
   run out, or long after a lease has expired, the id is closed for good: fenced at the last epoch, which is reserved
   for that, its final counts carried in the lease. The name then rests without an id, and goes on under a new one.
3. An expired lease is not renewed and not resumed, only taken over; so what a partition refused stays refused.
4. Partitions are only ever added to a lease, and leave it only with their topic: a take-over fences all that any
   holder may have written to.
5. A partition forgets a leased producer only when it is told that the closed id's counts are stored here, however long
   that takes. So a take-over always finds the progress, and 0 always means that nothing was written. A name is
   forgotten only where its count is 0: its topics are gone, or it never wrote.

The caller stores what is returned here by compare-and-swap against what it passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import MAX_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicIdPartition

MAX_NAME_LENGTH: Final = 249
MAX_HOLDER_LENGTH: Final = 1000
MAX_CALL_ID_LENGTH: Final = 64
FIRST_GENERATION: Final = ProducerEpoch(0)
LAST_GENERATION: Final = ProducerEpoch(MAX_PRODUCER_EPOCH - 1)
CLOSED_GENERATION: Final = ProducerEpoch(MAX_PRODUCER_EPOCH)
"""A producer id fenced at this epoch is never written with again."""


@dataclass(frozen=True, slots=True)
class Lease:
    name: str
    producer_id: ProducerId
    """NO_PRODUCER_ID: the lease rests, its last id is closed and counted."""
    generation: ProducerEpoch
    holder: str
    """Free text, shown to the fenced holder."""
    held_since_ms: int
    expires_at_ms: int
    """Wall clock."""
    partitions: tuple[TopicIdPartition, ...] = ()
    carried: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Records written under the name's earlier producer ids."""
    counted: tuple[ProducerId, ...] = ()
    """Closed ids that `carried` counts, and that not every partition is known to have been told so yet."""
    call_id: bytes = b""
    """Of the call that took the lease; empty: it named none."""

    @property
    def rests(self) -> bool:
        return self.producer_id == NO_PRODUCER_ID

    @property
    def closing(self) -> bool:
        """Closed, but its partitions may not all be fenced and counted yet."""
        return self.generation == CLOSED_GENERATION and not self.rests


L = TypeVar("L", bound=Lease)


class LeaseRequest(NamedTuple):
    name: str
    partitions: tuple[TopicIdPartition, ...]
    expire_ms: int
    holder: str
    resume_producer_id: int = -1
    """-1: take the lease over, if anybody holds it."""
    resume_generation: int = -1
    unless_held: bool = False
    """Take the lease only if no other client holds it."""
    call_id: bytes = b""
    """The same in each repetition of one call; empty: not repeated."""

    @property
    def resumes(self) -> bool:
        return self.resume_producer_id >= 0


def name_of(name: str, call_id: bytes) -> str:
    """Of the lease that a request is about; "": a new one, whose name is drawn. A call that names none is repeated
    under the name that its id gives."""
    return name or (f"lease-{call_id.hex()}" if call_id else "")


def check_name(name: str) -> None:
    """Raises Refusal."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"a lease's name has 1 to {MAX_NAME_LENGTH} characters")


def check_request(request: LeaseRequest, max_expire_ms: int) -> None:
    """Raises Refusal."""
    check_name(request.name)
    if len(request.holder) > MAX_HOLDER_LENGTH:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"the holder of a lease has at most {MAX_HOLDER_LENGTH} characters")
    if len(request.call_id) > MAX_CALL_ID_LENGTH:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"a call id has at most {MAX_CALL_ID_LENGTH} bytes")
    check_duration(request.expire_ms, max_expire_ms)


def check_duration(expire_ms: int, max_expire_ms: int) -> None:
    """Raises Refusal."""
    if not 0 < expire_ms <= max_expire_ms:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"expire_ms must be between 1 and {max_expire_ms}, not {expire_ms}")


def repeats(lease: Lease, request: LeaseRequest, now_ms: int) -> bool:
    """Whether this very call took the lease, which its caller has not heard. Taken again, it would be refused by itself
    where it is to fence no holder. And a first attempt that arrives after the second one would fence its own caller,
    who writes already."""
    return (
        bool(request.call_id) and request.call_id == lease.call_id and not request.resumes
        and not lease.rests and not lease.closing and lease.expires_at_ms > now_ms)


def check_free(lease: Lease, request: LeaseRequest, now_ms: int) -> None:
    """Raises Refusal where the request would fence a holder and must not."""
    if request.unless_held and not request.resumes and not lease.rests and lease.expires_at_ms > now_ms:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"lease {lease.name!r} is held by {lease.holder or 'somebody'!r} until {lease.expires_at_ms} "
            "(ms since the epoch)",
        )


def must_close(lease: Lease, request: LeaseRequest) -> bool:
    """Whether the producer id must be closed and counted before the request can be granted."""
    return not lease.rests and (lease.closing or (not request.resumes and lease.generation >= LAST_GENERATION))


def acquire(lease: L, request: LeaseRequest, now_ms: int, fresh: ProducerId = NO_PRODUCER_ID) -> L:
    """The lease after the request: resumed under the same generation, or taken over under the next one.

    `fresh` is a new producer id, needed where the lease rests. Not for a lease that must be closed first.
    Raises Refusal.
    """
    expires_at_ms = now_ms + request.expire_ms
    partitions = tuple(dict.fromkeys((*lease.partitions, *request.partitions)))
    if request.resumes:
        check_holder(lease, request.resume_producer_id, request.resume_generation, now_ms)
        return replace(lease, holder=request.holder or lease.holder,
                       expires_at_ms=max(lease.expires_at_ms, expires_at_ms), partitions=partitions)
    if lease.rests:
        assert fresh != NO_PRODUCER_ID
        producer_id, generation = fresh, FIRST_GENERATION
    else:
        assert lease.generation < LAST_GENERATION
        producer_id, generation = lease.producer_id, ProducerEpoch(lease.generation + 1)
    return replace(lease, producer_id=producer_id, generation=generation, holder=request.holder,
                   held_since_ms=now_ms, expires_at_ms=expires_at_ms, partitions=partitions, call_id=request.call_id)


def close(lease: L) -> L:
    """No client writes with the producer id again once every partition is fenced with this generation."""
    return replace(lease, generation=CLOSED_GENERATION)


def settle(lease: L, counts: Mapping[TopicIdPartition, int]) -> L:
    """The closed lease at rest. `counts`: what each partition, all being fenced, holds of the closed id.

    A partition without a count is one whose topic was deleted; it leaves the lease.
    """
    assert lease.closing
    carried = {p: lease.carried.get(p, 0) + counts[p] for p in lease.partitions if p in counts}
    return replace(lease, producer_id=NO_PRODUCER_ID, partitions=tuple(carried), carried=carried,
                   counted=(*lease.counted, lease.producer_id))


def restored(lease: L, counts: Mapping[TopicIdPartition, int]) -> L:
    """The lease of a backup: at rest, so that its next holder gets a new producer id and no former one can write."""
    return replace(lease, producer_id=NO_PRODUCER_ID, partitions=tuple(counts), carried=dict(counts))


def told(lease: L, producer_id: int) -> L:
    """Every partition knows that the counts of a closed id are stored: they may forget it."""
    return replace(lease, counted=tuple(each for each in lease.counted if each != producer_id))


def without(lease: L, gone: Collection[TopicIdPartition]) -> L:
    """Without partitions whose topics were deleted."""
    if not gone:
        return lease
    return replace(
        lease, partitions=tuple(p for p in lease.partitions if p not in gone),
        carried={p: count for p, count in lease.carried.items() if p not in gone})


def renew(lease: L, producer_id: int, generation: int, expire_ms: int, now_ms: int) -> L:
    """The end only moves out: of two renewals that meet, the shorter one changes nothing. Raises Refusal."""
    check_holder(lease, producer_id, generation, now_ms)
    return replace(lease, expires_at_ms=max(lease.expires_at_ms, now_ms + expire_ms))


def release(lease: L, producer_id: int, generation: int, now_ms: int) -> L:
    """The lease ends now. Releasing it twice changes nothing. Raises Refusal."""
    _check_identity(lease, producer_id, generation)
    return lease if lease.expires_at_ms <= now_ms else replace(lease, expires_at_ms=now_ms)


def check_holder(lease: Lease, producer_id: int, generation: int, now_ms: int) -> None:
    """Raises Refusal unless this identity holds the lease now."""
    _check_identity(lease, producer_id, generation)
    if lease.expires_at_ms <= now_ms:
        raise Refusal(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"lease {lease.name!r} expired {now_ms - lease.expires_at_ms} ms ago: take it over",
        )


def _check_identity(lease: Lease, producer_id: int, generation: int) -> None:
    if producer_id != lease.producer_id or generation < lease.generation:
        raise Refusal(
            ErrorCode.PRODUCER_FENCED,
            f"lease {lease.name!r} was taken over by {lease.holder or 'somebody'!r} at {lease.held_since_ms} "
            f"(ms since the epoch): producer id {lease.producer_id}, generation {lease.generation}",
        )
    if generation > lease.generation:
        # The store has lost the take-over that gave this generation out (rule 12).
        raise Refusal(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"generation {generation} of lease {lease.name!r} is not known here, only {lease.generation}: "
            "the metadata store lost writes",
        )


def former_holder(before: Lease, after: Lease, now_ms: int) -> str:
    """Who was fenced by the step from `before` to `after`; empty if the lease had no holder."""
    same = (before.producer_id, before.generation) == (after.producer_id, after.generation)
    return "" if same or before.expires_at_ms <= now_ms else before.holder


def may_rest(lease: Lease, now_ms: int, after_ms: int) -> bool:
    """Expired `after_ms` ago: time to close and count it."""
    return not lease.rests and lease.expires_at_ms + after_ms <= now_ms


def forgettable(lease: Lease, now_ms: int, after_ms: int) -> bool:
    """At rest for long, no partition waits to be told, and nothing is counted: a name that wrote records must not start
    from 0, however long it was idle, or its holder would write them again."""
    return (
        lease.rests and not lease.counted and not any(lease.carried.values())
        and lease.expires_at_ms + after_ms <= now_ms)
