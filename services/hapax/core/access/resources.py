"""What can be permitted: operations on resources, with the numbers that Kafka's protocol gives them.

Sources: KIP-11, KIP-290 (patterns), KIP-679 (IdempotentWrite), KIP-939 (TwoPhaseCommit).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How a binding names its resources. `ANY` and `MATCH` exist in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type Cluster."""
WILDCARD: Final = "*"
"""As a literal name: every resource of the type. As a host: every host."""

IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
"""Operation -> those whose permission includes it. A denial implies nothing."""


class Action:
    """An operation on a type of resource. Compared by identity, so that lookups by it are fast."""

    __slots__ = ("kind", "operation")

    def __init__(self, operation: Operation, kind: ResourceType) -> None:
        self.operation = operation
        self.kind = kind

    def __repr__(self) -> str:
        return f"{title(self.operation)} {title(self.kind)}"


def title(value: IntEnum) -> str:
    """As Kafka's documentation and tools write it: `TransactionalId`, `DescribeConfigs`."""
    return value.name.title().replace("_", "")


READ_TOPIC: Final = Action(Operation.READ, ResourceType.TOPIC)
WRITE_TOPIC: Final = Action(Operation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC: Final = Action(Operation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC: Final = Action(Operation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC: Final = Action(Operation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC: Final = Action(Operation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_TOPIC_CONFIGS: Final = Action(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_TOPIC_CONFIGS: Final = Action(Operation.ALTER_CONFIGS, ResourceType.TOPIC)
READ_GROUP: Final = Action(Operation.READ, ResourceType.GROUP)
DELETE_GROUP: Final = Action(Operation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP: Final = Action(Operation.DESCRIBE, ResourceType.GROUP)
DESCRIBE_GROUP_CONFIGS: Final = Action(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP)
ALTER_GROUP_CONFIGS: Final = Action(Operation.ALTER_CONFIGS, ResourceType.GROUP)
WRITE_TRANSACTIONAL_ID: Final = Action(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTIONAL_ID: Final = Action(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
TWO_PHASE_COMMIT: Final = Action(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID)
CREATE_IN_CLUSTER: Final = Action(Operation.CREATE, ResourceType.CLUSTER)
ALTER_CLUSTER: Final = Action(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER: Final = Action(Operation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION: Final = Action(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CLUSTER_CONFIGS: Final = Action(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CLUSTER_CONFIGS: Final = Action(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
IDEMPOTENT_WRITE: Final = Action(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

_ACTIONS: Final = {
    (action.operation, action.kind): action for action in list(globals().values()) if isinstance(action, Action)}

REPORTED: Final = {
    ResourceType.TOPIC: tuple(_ACTIONS[operation, ResourceType.TOPIC] for operation in (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
    ResourceType.GROUP: tuple(_ACTIONS[operation, ResourceType.GROUP] for operation in (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
    ResourceType.CLUSTER: tuple(_ACTIONS[operation, ResourceType.CLUSTER] for operation in (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE)),
}
"""The operations that an answer with authorized operations may name, by the type of the resource."""

NOT_ASKED: Final = -(1 << 31)
"""The field for authorized operations in an answer whose request did not ask for them."""
