"""Why a coordinator refused, for clients that understand it: a tagged field on the answer, next to Kafka's code.

Kafka's transaction calls answer with a code alone. Hapax adds one sentence (UTF-8, tag 10002 on the top level), such
as who fenced the caller, when and from where; every other client skips tags that it does not know.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import Refusal
from hapax.wire.messages import set_unknown_tag, unknown_tag

REASON_TAG: Final = 10002
_LONGEST: Final = 500


def with_reason(response: Any, refusal: Refusal) -> Any:
    """The response, carrying the refusal's reason. Written in flexible versions only."""
    if refusal.reason:
        set_unknown_tag(response, REASON_TAG, refusal.reason[:_LONGEST].encode())
    return response


def reason_of(response: Any) -> str:
    """What `with_reason` put there; empty where there is nothing."""
    return (unknown_tag(response, REASON_TAG) or b"").decode(errors="replace")
