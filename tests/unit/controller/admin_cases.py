"""What a client asks of reassignments and elections, and the error code of each answer: one table, for Hapax and for
Apache Kafka.

The cases run in order against one cluster. Brokers 0, 1, 2 are alive, and 3 is dead. Its topics:

    cases-0   0,1   is being moved to 2,3: broker 2 is in sync already, broker 3 never will be
    cases-1   1,0
    cases-2   0,1   gets a third replica, on broker 3
    cases-3   3,0   its preferred replica is dead, broker 0 leads
    cases-4 to cases-7   0,1
    alone-0   3     nothing leads it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.wire import messages

ASSIGNMENTS: Final = {"cases": [[0, 1], [1, 0], [0, 1], [3, 0], [0, 1], [0, 1], [0, 1], [0, 1]], "alone": [[3]]}
MOVES: Final = {0: [2, 3], 2: [0, 1, 3]}
"""Of `cases`, that run before the first case."""
LED: Final = {"cases": [0, 1, 0, 0, 0, 0, 0, 0], "alone": [-1]}

_MS: Final = 5000
_NONE: Final = ErrorCode.NONE
_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_BAD: Final = ErrorCode.INVALID_REPLICA_ASSIGNMENT
_FACTOR: Final = ErrorCode.INVALID_REPLICATION_FACTOR
_NO_MOVE: Final = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
_NOT_NEEDED: Final = ErrorCode.ELECTION_NOT_NEEDED
_UNAVAILABLE: Final = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
_INELIGIBLE: Final = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
_REQUEST: Final = ErrorCode.INVALID_REQUEST

PREFERRED: Final = 0
UNCLEAN: Final = 1

Name = tuple[str, int]
Ask = Callable[..., Awaitable[Any]]
"""(api, version, **fields) -> the decoded answer."""


class Case(NamedTuple):
    name: str
    api: str
    version: int
    fields: Mapping[str, Any]
    codes: Mapping[Name, ErrorCode]
    """By partition: those that the answer lists, and no others."""
    code: ErrorCode = _NONE
    """Of the whole answer."""
    says: Mapping[Name, str] = {}
    """What Hapax's messages contain. Any other partition's message is absent if it has no error."""
    kafka: Mapping[Name, ErrorCode] | None = None
    """The codes of Apache Kafka 4.3 where it deliberately answers differently (docs/protocol.md says why)."""


def _alter(
    name: str, targets: Mapping[int, list[int] | None] | list[tuple[int, list[int] | None]],
    codes: Mapping[int, ErrorCode] | ErrorCode, says: Mapping[int, str] | str = "", *, topic: str = "cases",
    version: int = 1, allow: bool = True, kafka: Mapping[int, ErrorCode] | None = None,
) -> Case:
    moves = messages.AlterPartitionReassignmentsRequest.ReassignableTopic
    named = list(targets.items()) if isinstance(targets, Mapping) else targets
    of = dict.fromkeys([i for i, _ in named], codes) if isinstance(codes, ErrorCode) else codes
    texts = dict.fromkeys(of, says) if isinstance(says, str) else says
    fields: dict[str, Any] = {"timeout_ms": _MS, "topics": [moves(name=topic, partitions=[
        moves.ReassignablePartition(partition_index=i, replicas=replicas) for i, replicas in named])]}
    if version >= 1:
        fields["allow_replication_factor_change"] = allow
    return Case(
        name, "AlterPartitionReassignments", version, fields, {(topic, i): code for i, code in of.items()},
        says={(topic, i): text for i, text in texts.items() if text},
        kafka=None if kafka is None else {(topic, i): code for i, code in kafka.items()})


def _elect(
    name: str, kind: int, partitions: Mapping[str, list[int]] | None, codes: Mapping[Name, ErrorCode],
    says: Mapping[Name, str] | str = "", *, version: int = 2, code: ErrorCode = _NONE,
    kafka: Mapping[Name, ErrorCode] | None = None,
) -> Case:
    named = messages.ElectLeadersRequest.TopicPartitions
    fields: dict[str, Any] = {"timeout_ms": _MS, "topic_partitions": None if partitions is None else [
        named(topic=topic, partitions=indexes) for topic, indexes in partitions.items()]}
    if version >= 1:
        fields["election_type"] = kind
    texts = dict.fromkeys(codes, says) if isinstance(says, str) else says
    return Case(
        name, "ElectLeaders", version, fields, codes, code,
        {name: text for name, text in texts.items() if text}, kafka)


def _moving(name: str, topics: Mapping[str, list[int]] | None, *partitions: Name) -> Case:
    named = messages.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    fields = {"timeout_ms": _MS, "topics": None if topics is None else [
        named(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()]}
    return Case(name, "ListPartitionReassignments", 0, fields, dict.fromkeys(partitions, _NONE))


CASES: Final = [
    # --- what cannot be
    _alter("an unknown topic", {0: [0]}, _UNKNOWN, "no topic is named none", topic="none"),
    _alter("unknown partitions", {99: [0], -1: None}, _UNKNOWN, {
        99: "topic cases has 8 partitions, and no partition 99", -1: "and no partition -1"}),
    _alter("no replica", {4: []}, _BAD, "the target has no replicas"),
    _alter("a replica twice", {4: [0, 1, 0]}, _BAD, "the target names a broker twice: [0, 1, 0]"),
    _alter("an unknown broker", {4: [0, 9]}, _BAD, "the target names broker 9, which is not alive"),
    _alter("a negative broker", {4: [-1]}, _BAD, "the target names broker -1, which is not alive"),
    _alter("nothing to cancel", {4: None}, _NO_MOVE, "the partition is not being reassigned"),
    _alter("nothing to cancel, version 0", {4: None}, _NO_MOVE, "the partition is not being reassigned", version=0),
    _alter("each partition has an answer of its own", {4: [9], 5: [0, 1], 99: [0]}, {4: _BAD, 5: _NONE, 99: _UNKNOWN}, {
        4: "broker 9", 99: "no partition 99"}),
    _alter("a partition twice", [(4, [0, 1]), (4, [0, 1]), (5, [0, 1])], {4: _REQUEST, 5: _NONE}, {
        4: "the partition is named twice in the request"}, kafka={4: _NONE, 5: _NONE}),
    # --- what is there already
    _alter("to where it is", {5: [0, 1]}, _NONE),
    _moving("and so nothing moves", {"cases": [5]}),
    _alter("to where it is being moved, though a broker has died", {0: [2, 3]}, _NONE),
    _moving("and so it goes on", {"cases": [0, 1, 99, -1], "none": [0]}, ("cases", 0)),
    _moving("all that move", None, ("cases", 0), ("cases", 2)),
    _moving("of no topic", {}),
    # --- KIP-860
    _alter("more replicas", {4: [0, 1, 2]}, _FACTOR, "the partition has 2 replicas, the target 3", allow=False),
    _alter("fewer replicas", {4: [0]}, _FACTOR, "the partition has 2 replicas, the target 1", allow=False),
    _alter("as many as it is getting", {2: [1, 0, 3]}, _NONE, allow=False),
    _alter("as many as it had", {2: [0, 1]}, _FACTOR, "is getting 3 replicas, the target has 2", allow=False),
    _alter("what is wrong otherwise comes first", {4: [9]}, _BAD, "broker 9", allow=False),
    _alter("the same number", {6: [1, 0]}, _NONE, allow=False),
    _moving("only the order has changed, which ends at once", {"cases": [6]}),
    # --- elections
    _elect("preferred replicas", PREFERRED, {"cases": [1, 6, 3, 99, -1], "alone": [0], "none": [0]}, {
        ("cases", 1): _NOT_NEEDED, ("cases", 6): _NONE, ("cases", 3): _UNAVAILABLE, ("cases", 99): _UNKNOWN,
        ("cases", -1): _UNKNOWN, ("alone", 0): _UNAVAILABLE, ("none", 0): _UNKNOWN}, {
        ("cases", 1): "broker 1 leads already", ("cases", 3): "broker 3, the preferred replica, is not alive",
        ("cases", 99): "no partition 99", ("cases", -1): "no partition -1",
        ("alone", 0): "broker 3, the preferred replica, is not alive", ("none", 0): "no topic is named none"}),
    _elect("version 0 knows no other kind", UNCLEAN, {"cases": [3]}, {("cases", 3): _UNAVAILABLE},
           "broker 3, the preferred replica, is not alive", version=0),
    _elect("the preferred replica of a move, in sync already", PREFERRED, {"cases": [0]}, {("cases", 0): _NONE}),
    _elect("and now it leads", PREFERRED, {"cases": [0]}, {("cases", 0): _NOT_NEEDED}, "broker 2 leads already"),
    _elect("unclean", UNCLEAN, {"cases": [1, 99], "alone": [0]}, {
        ("cases", 1): _NOT_NEEDED, ("cases", 99): _UNKNOWN, ("alone", 0): _INELIGIBLE}, {
        ("cases", 1): "broker 1 leads", ("cases", 99): "no partition 99", ("alone", 0): "no replica is alive"}),
    _elect("unclean, version 1", UNCLEAN, {"alone": [0]}, {("alone", 0): _INELIGIBLE}, "no replica", version=1),
    _elect("an unknown kind", 7, {"cases": [1], "none": [3]}, {("cases", 1): _REQUEST, ("none", 3): _REQUEST},
           "unknown election type 7", code=_REQUEST),
    _elect("an unknown kind, version 1", 7, {"cases": [1]}, {("cases", 1): _REQUEST},
           "unknown election type 7", version=1, code=_REQUEST),
    _elect("an unknown kind for all", 7, None, {}, code=_REQUEST),
    _elect("of no partition", PREFERRED, {}, {}),
    # Partition 2 was moved to 1,0,3, and broker 0 leads it.
    _elect("all: those that need none are left out", PREFERRED, None, {
        ("cases", 2): _NONE, ("cases", 3): _UNAVAILABLE, ("alone", 0): _UNAVAILABLE}, {
        ("cases", 3): "broker 3", ("alone", 0): "broker 3"}),
    _elect("all unclean", UNCLEAN, None, {("alone", 0): _INELIGIBLE}, "no replica"),
    # --- running ones are replaced and canceled
    _alter("in place of a running one", {0: [1, 3]}, _NONE),
    _alter("cancels, whatever the factor", {2: None}, _NONE, allow=False),
    _alter("cancels, version 0", {0: None}, _NONE, version=0),
    _moving("nothing moves", None),
    _alter("there is nothing to cancel any more", {0: None, 2: None}, _NO_MOVE, "not being reassigned"),
    _alter("to a dead broker", {7: [0, 3]}, _BAD, "names broker 3, which is not alive", kafka={7: _NONE}),
]


async def check(case: Case, ask: Ask, *, of_kafka: bool = False) -> None:
    answer = await ask(case.api, case.version, **case.fields)
    found: dict[Name, tuple[int, str | None]] = {}
    for topic in _topics(case.api, answer):
        for partition in topic[1]:
            if not topic[0].startswith("__"):  # where the internal topics are is not part of the table
                found[topic[0], partition[0]] = partition[1:]
    wanted = case.kafka if of_kafka and case.kafka is not None else case.codes
    codes = {name: ErrorCode(code) for name, (code, _) in found.items()}
    assert codes == dict(wanted), case.name
    if case.version >= 1 or case.api != "ElectLeaders":
        assert answer.error_code == case.code, case.name
    if case.version >= 1 and case.api == "AlterPartitionReassignments":
        allowed = case.fields["allow_replication_factor_change"]
        assert answer.allow_replication_factor_change == allowed, case.name
    if not of_kafka:
        for name, (code, text) in found.items():
            assert case.says[name] in (text or "") if code else text is None, (case.name, name, text)


def _topics(api: str, answer: Any) -> list[tuple[str, list[tuple[int, int, str | None]]]]:
    if api == "ElectLeaders":
        return [
            (t.topic, [(p.partition_id, p.error_code, p.error_message) for p in t.partition_result])
            for t in answer.replica_election_results]
    if api == "AlterPartitionReassignments":
        return [
            (t.name, [(p.partition_index, p.error_code, p.error_message) for p in t.partitions])
            for t in answer.responses]
    return [(t.name, [(p.partition_index, 0, None) for p in t.partitions]) for t in answer.topics]
