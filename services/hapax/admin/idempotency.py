"""Idempotency keys: a POST that is repeated with its key gets the first answer again, from any replica.

Answers are kept in the metadata store for a day. Their keys are not below the cluster's prefix, because every node
watches that prefix:

    /hapax-admin/CLUSTER_ID/idempotency/SHA-256 of (who, key)

A record begins as a claim. The holder of the claim does the work and stores the answer in the record. If the holder
dies, the next request takes the claim over once it has expired; the work is then told that it may already be done, in
part or wholly. Answers that say "try again" (5xx) are not kept: the claim ends at once. Work whose repetition would
have another effect (an offset moved by 10) stores its decision in the claim before it acts, and resumes from there.

What one caller makes the store keep is bounded, since a full store stops the whole cluster.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from hapax.admin.problems import Problem, unavailable
from hapax.runtime import telemetry
from hapax.runtime.ports import (
    Clock,
    Compare,
    KeyValue,
    MetadataLeaseGone,
    MetadataStore,
    MetadataUnavailable,
    Put,
)

log = telemetry.logger("idempotency")

KEPT_S: Final = 24 * 3600.0
_KEY: Final = re.compile(r"[\x21-\x7e]{1,128}")
_LARGEST_ANSWER: Final = 256 << 10
_LARGEST_DECISION: Final = 1 << 20
"""Bytes. etcd takes 1.5 MiB by default."""
_MANY_CALLERS: Final = 1000
_OVERHEAD: Final = 512
"""Bytes of a key and its lease."""
MOST_STORED: Final = 64 << 20
"""Bytes that one caller may have written in `KEPT_S` through one replica. etcd holds 2 GiB by default."""


class Recorded(NamedTuple):
    """An answer as it was sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Attempt:
    """One attempt at a request. `resumed`: an earlier attempt may have done the work, in part or completely. `decided`:
    the decision that the earlier attempt stored before it acted; None if it stored none."""

    def __init__(
        self, resumed: bool = False, decided: Any = None, keep: Callable[[Any], Awaitable[None]] | None = None
    ) -> None:
        """`keep`: stores a decision; None: the request has no key, so it cannot be resumed."""
        self.resumed = resumed
        self.decided = decided
        self._keep = keep

    async def decide(self, decision: Any) -> None:
        """Stores a decision, before it is carried out. `decision` must be JSON-serializable. Raises Problem."""
        if self._keep is not None:
            await self._keep(decision)


class Idempotency:
    """`claim_s`: how long a claim lasts without an answer, longer than any request."""

    def __init__(self, store: MetadataStore, clock: Clock, cluster_id: str, claim_s: float) -> None:
        self._store = store
        self._clock = clock
        self._prefix = f"/hapax-admin/{cluster_id}/idempotency/"
        self._claim_ms = round(claim_s * 1000)
        self._written = _Written(clock)

    async def once(
        self, who: str, key: str, method: str, path: str, query: bytes, body: bytes,
        work: Callable[[Attempt], Awaitable[Recorded]],
    ) -> tuple[Recorded, bool]:
        """The answer, and whether it is the stored answer of an earlier attempt.

        Raises Problem: 422 if the key was used for another request, 409 while that request still runs, 503, also for a
        caller who has had too much stored.
        """
        if not _KEY.fullmatch(key):
            raise Problem(422, "An Idempotency-Key must have 1 to 128 printable ASCII characters, without spaces.")
        where = self._prefix + hashlib.sha256(f"{who}\n{key}".encode()).hexdigest()
        request = hashlib.sha256(b"\n".join([method.encode(), path.encode(), query, body])).hexdigest()
        try:
            found = await self._store.get(where)
            document = _decoded(found)
            if document is not None and document["request"] != request:
                raise Problem(422, "This Idempotency-Key was used for another request.")
            if document is not None and "status" in document:
                return _recorded(document), True
            now = self._clock.now_ms()
            if document is not None and now < document["claimed_until_ms"]:
                raise Problem(
                    409, "The first request with this Idempotency-Key still runs.", retriable=True,
                    headers={"Retry-After": "1"})
            self._written.check(who)
            lease = await self._store.grant_lease(KEPT_S)
            former = document or {}
            written = partial(self._written.add, who)
            claim = _Claim(self._store, written, where, lease, 0 if found is None else found.mod_revision, {
                "v": 1, "request": request, "claimed_until_ms": now + self._claim_ms,
                **({"decided": former["decided"]} if "decided" in former else {}),
            })
            await claim.put({})
        except (MetadataUnavailable, MetadataLeaseGone) as error:
            raise unavailable(f"Idempotency keys cannot be stored now: {error}") from error
        return await self._worked(claim, work, document is not None), False

    async def _worked(
        self, claim: _Claim, work: Callable[[Attempt], Awaitable[Recorded]], resumed: bool
    ) -> Recorded:
        answer: Recorded | None = None
        try:
            answer = await work(Attempt(resumed, claim.document.get("decided"), claim.decide))
        finally:
            if answer is None or answer.status >= 500 or len(answer.body) > _LARGEST_ANSWER:
                # Cancelled or failed: ends the claim, so that a repetition need not wait until it expires. The work may
                # have been done all the same.
                await asyncio.shield(claim.settle({"claimed_until_ms": 0}))
        if answer.status < 500 and len(answer.body) <= _LARGEST_ANSWER:
            await claim.settle({
                "status": answer.status, "headers": list(answer.headers),
                "body": base64.b64encode(answer.body).decode(),
            })
        return answer


class _Written:
    """How much each caller had stored of late: it falls evenly to 0 within `KEPT_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: dict[str, tuple[float, int]] = {}
        """Bytes, and when that was, in ms, monotonic: the wall clock may be set back, which would add to them."""

    def check(self, who: str) -> None:
        """Raises Problem."""
        if self._now(who) >= MOST_STORED:
            raise unavailable(
                "Too many answers are kept for Idempotency-Keys of this caller. Send the request later, or without a "
                "key.")

    def add(self, who: str, size: int) -> None:
        self._of[who] = self._now(who) + size, self._clock.monotonic_ms()
        if len(self._of) > _MANY_CALLERS:
            self._of = {each: found for each, found in self._of.items() if self._now(each)}

    def _now(self, who: str) -> float:
        size, at_ms = self._of.get(who, (0.0, 0))
        return max(0.0, size - (self._clock.monotonic_ms() - at_ms) * MOST_STORED / (KEPT_S * 1000))


class _Claim:
    """The record of a key while its request runs. `document`: its last stored content."""

    def __init__(
        self, store: MetadataStore, written: Callable[[int], None], where: str, lease: int, revision: int,
        document: dict[str, Any],
    ) -> None:
        self.document = document
        self._written = written
        self._store = store
        self._where = where
        self._lease = lease
        self._revision = revision

    async def put(self, more: dict[str, Any]) -> None:
        """Raises Problem if another replica has changed the record, MetadataUnavailable, MetadataLeaseGone."""
        document = {**self.document, **more}
        content = json.dumps(document).encode()
        self._written(len(content) + _OVERHEAD)  # etcd keeps former versions for a while
        done = await self._store.txn(
            [Compare(self._where, "mod_revision", self._revision)],
            [Put(self._where, content, self._lease)])
        if not done.succeeded:
            raise Problem(
                409, "The first request with this Idempotency-Key still runs.", retriable=True,
                headers={"Retry-After": "1"})
        self._revision, self.document = done.revision, document

    async def decide(self, decision: Any) -> None:
        """Raises Problem."""
        if len(json.dumps(decision)) > _LARGEST_DECISION:
            raise Problem(
                413, "The request is too large for an Idempotency-Key. Divide it, or send it without a key.")
        try:
            await self.put({"decided": decision})
        except (MetadataUnavailable, MetadataLeaseGone) as error:
            raise unavailable(f"Idempotency keys cannot be stored now: {error}") from error

    async def settle(self, more: dict[str, Any]) -> None:
        """Stores the answer, or ends the claim. If that fails, the claim expires, and the next attempt is resumed."""
        try:
            await self.put(more)
        except (MetadataUnavailable, MetadataLeaseGone, Problem) as error:
            log.warning("an answer was not stored under its idempotency key", error=error)


def _decoded(found: KeyValue | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document: dict[str, Any] = json.loads(found.value)
    return document


def _recorded(document: dict[str, Any]) -> Recorded:
    return Recorded(
        document["status"], tuple((name, value) for name, value in document["headers"]),
        base64.b64decode(document["body"]))
