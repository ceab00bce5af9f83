"""What one principal on one host may do, by one state of the bindings. Remembers its answers."""

from __future__ import annotations

from typing import Final

from hapax.core.access.index import AccessIndex, Decision, Policy
from hapax.core.access.principals import Principal
from hapax.core.access.resources import CLUSTER_NAME, NOT_ASKED, REPORTED, Action, ResourceType

_MOST_ANSWERS: Final = 1024
_LONGEST_KEPT: Final = 256
"""Names come from clients, so what is remembered is bounded: their number, and their length in characters."""


class Rights:
    __slots__ = ("_answers", "_any", "host", "index", "policy", "principal")

    def __init__(self, index: AccessIndex, policy: Policy, principal: Principal, host: str) -> None:
        """`host` as `hosts.plain_host` spells it."""
        self.index = index
        self.policy = policy
        self.principal = principal
        self.host = host
        self._answers: dict[tuple[Action, str], bool] = {}
        self._any: dict[Action, bool] = {}

    def may(self, action: Action, name: str) -> bool:
        answer = self._answers.get((action, name))
        if answer is None:
            answer = self.decide(action, name).allowed
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            if len(name) <= _LONGEST_KEPT:
                self._answers[action, name] = answer
        return answer

    def may_in_cluster(self, action: Action) -> bool:
        return self.may(action, CLUSTER_NAME)

    def may_any(self, action: Action) -> bool:
        """On at least one resource of the type."""
        answer = self._any.get(action)
        if answer is None:
            answer = self.index.decide_any(self.policy, self.principal, self.host, action).allowed
            self._any[action] = answer
        return answer

    def decide(self, action: Action, name: str) -> Decision:
        """With the binding that decided."""
        return self.index.decide(self.policy, self.principal, self.host, action, name)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
        """Kafka's numbers of the operations that are permitted on a resource."""
        return frozenset(int(action.operation) for action in REPORTED[kind] if self.may(action, name))


def operations_asked(
    rights: Rights | None, asked: bool, kind: ResourceType, name: str = CLUSTER_NAME
) -> frozenset[int] | None:
    """Authorized operations for an answer; None: the request does not ask for them. `rights` None: there is no
    authoriser, and everything is permitted, as in Kafka."""
    if not asked:
        return None
    if rights is None:
        return frozenset(int(action.operation) for action in REPORTED[kind])
    return rights.operations(kind, name)


def bit_field(operations: frozenset[int] | None) -> int:
    """As Kafka's protocol writes them: bit n for the operation with the number n."""
    return NOT_ASKED if operations is None else sum(1 << each for each in operations)
