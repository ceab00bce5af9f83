"""What one principal on one host may do, by one state of the bindings. Remembers its answers."""

from __future__ import annotations

from typing import Final

from hapax.core.access.index import AccessIndex, Decision, Policy
from hapax.core.access.principals import Principal
from hapax.core.access.resources import CLUSTER_NAME, NOT_ASKED, REPORTED, Action, ResourceType

_MOST_ANSWERS: Final = 4096
"""A client that asks about more names makes this object forget what it knew: names come from clients."""


class Rights:
    __slots__ = ("_answers", "_any", "host", "index", "policy", "principal")

    def __init__(self, index: AccessIndex, policy: Policy, principal: Principal, host: str) -> None:
        """`host` as `bindings.plain_host` spells it."""
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

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The bit field of authorized operations: bit n is set where the operation with Kafka's number n is
        permitted."""
        found = 0
        for action in REPORTED[kind]:
            if self.may(action, name):
                found |= 1 << action.operation
        return found


def operations_asked(rights: Rights | None, asked: bool, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
    """`rights` None: there is no authoriser, and everything is permitted, as in Kafka."""
    if not asked:
        return NOT_ASKED
    if rights is None:
        return sum(1 << action.operation for action in REPORTED[kind])
    return rights.operations(kind, name)
