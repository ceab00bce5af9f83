"""Idempotency keys: a POST that is repeated under its key is answered as it was the first time, by whichever replica.

What was answered is kept in the metadata store for a day, beside the cluster's own keys, which every node watches, and
not below them:

    /hapax-admin/CLUSTER_ID/idempotency/SHA-256 of (who, key)

A record begins as a claim. Whoever holds the claim does the work and puts the answer into it. A claim whose holder
died is taken over once its time is up; the work is then told that it may find itself half or wholly done. Answers that
say "try again" (5xx) are not kept: the claim ends at once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
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


class Recorded(NamedTuple):
    """An answer as it left."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Idempotency:
    """`claim_s`: how long a claim lasts without an answer, longer than any request."""

    def __init__(self, store: MetadataStore, clock: Clock, cluster_id: str, claim_s: float) -> None:
        self._store = store
        self._clock = clock
        self._prefix = f"/hapax-admin/{cluster_id}/idempotency/"
        self._claim_ms = round(claim_s * 1000)

    async def once(
        self, who: str, key: str, method: str, path: str, query: bytes, body: bytes,
        work: Callable[[bool], Awaitable[Recorded]],
    ) -> tuple[Recorded, bool]:
        """The answer, and whether it was given before. `work` is told whether somebody may have begun it and died.

        Raises Problem: 422 where the key was used for another request, 409 while that request still runs, 503.
        """
        if not _KEY.fullmatch(key):
            raise Problem(422, "Idempotency-Key has 1 to 128 printable ASCII characters and no space.")
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
            lease = await self._store.grant_lease(KEPT_S)
            claim = {"v": 1, "request": request, "claimed_until_ms": now + self._claim_ms}
            revision = await self._put(where, claim, lease, 0 if found is None else found.mod_revision)
        except (MetadataUnavailable, MetadataLeaseGone) as error:
            raise unavailable(f"Keys cannot be kept now: {error}") from error
        return await self._worked(where, claim, lease, revision, work, document is not None), False

    async def _worked(
        self, where: str, claim: dict[str, Any], lease: int, revision: int,
        work: Callable[[bool], Awaitable[Recorded]], resumed: bool,
    ) -> Recorded:
        answer: Recorded | None = None
        try:
            answer = await work(resumed)
        finally:
            if answer is None or answer.status >= 500 or len(answer.body) > _LARGEST_ANSWER:
                # Cancelled or failed: whoever repeats it need not wait until the claim ends, but may find it done.
                late = {**claim, "claimed_until_ms": 0}
                await asyncio.shield(self._settled(where, late, lease, revision))
        if answer.status < 500 and len(answer.body) <= _LARGEST_ANSWER:
            kept = {
                "v": 1, "request": claim["request"], "status": answer.status, "headers": list(answer.headers),
                "body": base64.b64encode(answer.body).decode(),
            }
            await self._settled(where, kept, lease, revision)
        return answer

    async def _settled(self, where: str, document: dict[str, Any], lease: int, revision: int) -> None:
        """A claim that cannot be settled ends by itself, and then the work is done again as one that was resumed."""
        try:
            await self._put(where, document, lease, revision)
        except (MetadataUnavailable, MetadataLeaseGone, Problem) as error:
            log.warning("an answer was not kept under its key", error=error)

    async def _put(self, where: str, document: dict[str, Any], lease: int, revision: int) -> int:
        """Raises Problem where another replica was first."""
        done = await self._store.txn(
            [Compare(where, "mod_revision", revision)], [Put(where, json.dumps(document).encode(), lease)])
        if not done.succeeded:
            raise Problem(
                409, "The first request with this Idempotency-Key still runs.", retriable=True,
                headers={"Retry-After": "1"})
        return done.revision


def _decoded(found: KeyValue | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document: dict[str, Any] = json.loads(found.value)
    return document


def _recorded(document: dict[str, Any]) -> Recorded:
    return Recorded(
        document["status"], tuple((name, value) for name, value in document["headers"]),
        base64.b64decode(document["body"]))
