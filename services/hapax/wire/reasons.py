"""The reason of a coordinator's refusal: a tagged field of the answer, in addition to Kafka's error code.

Kafka's calls of transactions, offsets and classic groups answer with a code only. Hapax adds one sentence (UTF-8, tag
10002 at the top level), such as who fenced the caller, when and from where. Other clients skip unknown tags.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import Refusal
from hapax.wire.messages import set_unknown_tag, unknown_tag

REASON_TAG: Final = 10002
_LONGEST: Final = 500


def with_reason(response: Any, refusal: Refusal) -> Any:
    """Adds the refusal's reason to the response. It is written in flexible versions only."""
    return with_text(response, refusal.reason)


def with_text(response: Any, reason: str) -> Any:
    if reason:
        set_unknown_tag(response, REASON_TAG, reason[:_LONGEST].encode(errors="replace"))
    return response


def reason_of(response: Any) -> str:
    """The reason that `with_reason` added; empty where there is none."""
    return (unknown_tag(response, REASON_TAG) or b"").decode(errors="replace")
