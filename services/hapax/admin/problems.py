"""Errors as problem details (RFC 9457): one exception class, and one table from Kafka's error codes to HTTP statuses.

    {"type": "urn:hapax:problem:not-found", "title": "...", "status": 404, "detail": "a sentence",
     "code": "UNKNOWN_TOPIC_OR_PARTITION", "retriable": false, "errors": [{"where": "body.partitions", "why": "..."}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hapax.client.errors import FencedError, HapaxError, RetriableError, name_of
from hapax.core.errors import ErrorCode, Refusal

MEDIA_TYPE: Final = "application/problem+json"

TITLES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("malformed-request", "The request is not HTTP, or its body is not JSON"),
    401: ("unauthorized", "The request needs valid credentials"),
    403: ("forbidden", "The caller may not do this"),
    404: ("not-found", "The resource does not exist"),
    405: ("method-not-allowed", "The resource does not support this method"),
    408: ("request-too-slow", "The request did not arrive in time"),
    409: ("conflict", "The request conflicts with the current state"),
    412: ("precondition-failed", "The resource has changed since it was read"),
    413: ("too-large", "The request is too large"),
    415: ("unsupported-media-type", "The body's media type is not supported"),
    422: ("invalid", "The request is well formed, but its content is not valid"),
    431: ("headers-too-large", "The head of the request is too large"),
    500: ("internal-error", "The service failed"),
    503: ("unavailable", "The cluster cannot answer now"),
}
"""Status -> the last part of the problem's type, and its title."""

_NOT_FOUND: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
})  # fmt: skip
_CONFLICT: Final = frozenset({
    ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED,
})  # fmt: skip
_FORBIDDEN: Final = frozenset({
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_DELETION_DISABLED,
})  # fmt: skip
_INVALID: Final = frozenset({
    ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST,
    ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
})  # fmt: skip

_RETRY_AFTER: Final = {"Retry-After": "1"}


class Problem(Exception):
    """`detail` is a sentence for people. `code` is Kafka's name of the error; None where Kafka has none."""

    def __init__(
        self, status: int, detail: str, *, code: str | None = None, retriable: bool = False,
        errors: Sequence[Mapping[str, str]] = (), headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.retriable = retriable
        self.errors = errors
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        kind, title = TITLES[self.status]
        document: dict[str, Any] = {
            "type": f"urn:hapax:problem:{kind}", "title": title, "status": self.status, "detail": self.detail,
            "retriable": self.retriable,
        }
        if self.code is not None:
            document["code"] = self.code
        if self.errors:
            document["errors"] = list(self.errors)
        return json.dumps(document).encode()


def unavailable(detail: str, code: str | None = None) -> Problem:
    return Problem(503, detail, code=code, retriable=True, headers=_RETRY_AFTER)


def not_found(detail: str, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> Problem:
    return Problem(404, detail, code=code.name)


def invalid(detail: str, where: str = "") -> Problem:
    return Problem(422, detail, errors=[{"where": where, "why": detail}] if where else ())


def of_error(error: HapaxError | Refusal) -> Problem:
    """The problem for an error of the client library or of the cluster."""
    code = error.code
    name = name_of(code) if code else None
    detail = str(error)
    for status, codes in ((404, _NOT_FOUND), (409, _CONFLICT), (403, _FORBIDDEN), (422, _INVALID)):
        if code in codes:
            return Problem(status, detail, code=name, retriable=isinstance(error, RetriableError))
    if code == ErrorCode.INVALID_UPDATE_VERSION:
        return Problem(412, detail, code=name)
    if isinstance(error, RetriableError):
        return unavailable(detail, name)
    if isinstance(error, FencedError):
        return Problem(409, detail, code=name)
    return Problem(500, detail, code=name)
