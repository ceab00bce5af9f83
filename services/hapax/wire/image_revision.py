"""How new a node's Metadata answer is: a tagged field of Hapax's own, 10000, at the top level of the answer.

It holds the revision of the metadata store up to which the node's image of the cluster was complete when it answered.
Revisions of one cluster only rise, so of two answers that contradict each other the one with the higher revision is
right. Metadata of Kafka's own cannot say that of topics: neither ids nor the epochs of a topic made again are ordered.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.wire.messages import set_unknown_tag, unknown_tag

IMAGE_REVISION_TAG: Final = 10000
_BYTES: Final = 8


def set_image_revision(response: Any, revision: int) -> None:
    """Written from the first flexible version, 9, on."""
    set_unknown_tag(response, IMAGE_REVISION_TAG, revision.to_bytes(_BYTES, "big"))


def image_revision(response: Any) -> int | None:
    """None where the peer says none, because it is older or not Hapax."""
    found = unknown_tag(response, IMAGE_REVISION_TAG)
    return None if found is None or len(found) != _BYTES else int.from_bytes(found, "big")
