"""What the members of a consumer group have said about themselves, and the topics that its assignment depends on."""

from __future__ import annotations

from hashlib import blake2b

from hapax.core.group.consumer_requests import UNCHANGED
from hapax.core.group.consumer_state import ConsumerState
from hapax.core.group.values import ConsumerGroupHeartbeat, MemberValue, TopicFacts, Topics


def member_value(request: ConsumerGroupHeartbeat, former: MemberValue | None) -> MemberValue:
    """What the member says about itself. Fields that it omits have not changed."""
    names = None if request.subscribed_names is None else tuple(sorted(set(request.subscribed_names)))
    return MemberValue(
        request.instance_id if request.instance_id is not None else former and former.instance_id,
        request.rack_id if request.rack_id is not None else former and former.rack_id,
        request.client_id,
        request.client_host,
        names if names is not None else former.subscribed_names if former else (),
        (request.subscribed_regex or None) if request.subscribed_regex is not None
        else former and former.subscribed_regex,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms != UNCHANGED
        else former.rebalance_timeout_ms if former else 0,
        request.server_assignor if request.server_assignor is not None else former and former.server_assignor,
    )


def subscribed_topic_names(state: ConsumerState) -> set[str]:
    names: set[str] = set()
    for subscribed, regex in state.subscriptions:
        names.update(subscribed)
        if regex in state.regexes:
            names.update(state.regexes[regex].topics)
    return names


def metadata_hash(state: ConsumerState, topics: Topics) -> int:
    """Hash of the existing topics to which the group subscribes. It is the same at every coordinator."""
    found = (facts for facts in map(topics.topic, subscribed_topic_names(state)) if facts is not None)
    return sum(map(_topic_hash, found)) & 0x7FFF_FFFF_FFFF_FFFF


def _topic_hash(facts: TopicFacts) -> int:
    text = b"%b %d %b" % (facts.topic_id, facts.partitions, facts.name.encode(errors="replace"))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
