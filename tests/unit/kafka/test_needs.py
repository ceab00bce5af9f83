"""Every row of the table says what it needs, and a client without rights reaches no handler, in any version."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.codec.metadata import INTERNAL_TOPICS
from hapax.core.access.index import AccessIndex, Policy
from hapax.core.access.principals import Principal, user
from hapax.core.errors import ErrorCode
from hapax.core.types import RegistrationEpoch
from hapax.kafka.api import fetch, metadata, produce
from hapax.kafka.errors_in import errors_in
from hapax.kafka.needs import NOTHING
from hapax.kafka.registry import API_MODULES, all_apis
from hapax.kafka.server import KafkaServer, Session
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import transactions_pb2
from hapax.runtime.access import Access
from hapax.runtime.access_image import AccessImage
from hapax.wire import messages
from hapax.wire.internal_writes import proof
from hapax.wire.messages import set_unknown_tag
from hapax.wire.peer import INTERNAL_WRITE_TAG
from unit.core.access.test_decisions import rules
from unit.kafka.samples import REQUESTS, message
from unit.kafka.test_server import Listening, Recorder

ALICE = user("alice")
NODE = user("CN=node")
SECRET = "secret"
LIVE = RegistrationEpoch(7), b"s" * 16
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
LOGIN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
"""They come before it is known who asks, and need nothing."""
OPEN = LOGIN | {"DescribeCluster", "ListGroups", "ListTransactions", "TransactionCall"}
"""Their handlers are reached: DescribeCluster needs nothing, of the lists hidden entries are taken out afterwards, and
a TransactionCall whose method or payload is unknown is refused by its handler."""
NAMING = {
    "ListOffsets": "topics", "DeleteRecords": "topics", "OffsetForLeaderEpoch": "topics",
    "AddPartitionsToTxn": None, "CreatePartitions": "topics", "CreateTopics": "topics", "DeleteGroups": "groups_names",
    "DescribeProducers": "topics", "DescribeGroups": "groups", "ConsumerGroupDescribe": "group_ids",
    "DescribeTransactions": "transactional_ids", "DescribeConfigs": "resources", "AlterConfigs": "resources",
    "IncrementalAlterConfigs": "resources",
}
"""The list whose entries are judged. An empty one reaches the handler, which has nothing to do."""


class FakeView:
    """Every topic id is that of a topic that nobody may see."""

    def __init__(self) -> None:
        self.access = AccessImage()
        self.access.swap()

    def put(self, text: str) -> None:
        self.access.index = AccessIndex({str(at): each for at, each in enumerate(rules(text))})

    def topic_by_id(self, topic_id: bytes) -> Any:
        return SimpleNamespace(name=SECRET)

    def topics(self) -> list[Any]:
        return [SimpleNamespace(name=SECRET)]

    def registered(self, registration: int, session: bytes) -> Any:
        return object() if (registration, session) == LIVE else None


class Guarded:
    """A table with an authoriser, whose handlers note that they were called."""

    def __init__(self, *, node_principals: frozenset[Principal] = frozenset(), acls: str = "") -> None:
        self.view = FakeView()
        self.view.put(acls)
        policy = Policy(literal_only=frozenset(INTERNAL_TOPICS))
        self.table = ApiTable(all_apis(), Access(self.view, policy, node_principals))  # type: ignore[arg-type]
        self.called: list[tuple[RequestContext, Any]] = []
        for module in API_MODULES:
            if module.ROW.name not in ("Produce", "Fetch", "Metadata"):
                self.table.on(module.ROW, self._handle)
        produce.register(self.table, SimpleNamespace(produce=self._produce))
        fetch.register(self.table, SimpleNamespace(fetch=self._fetch, may_continue=lambda *_: True))
        self.server = KafkaServer(Listening(), self.table)  # type: ignore[arg-type]
        self.connection = Recorder()
        self.session: Session = self.server._accept(self.connection)
        self.session.principal = ALICE

    def _handle(self, ctx: RequestContext, request: Any) -> Any:
        self.called.append((ctx, request))
        return getattr(messages, f"{ctx.api.name}Response")()

    def _produce(self, call: produce.ProduceCall, body: memoryview) -> None:
        for number in range(len(call.request.partitions)):
            self.called.append((call.ctx, call.request))
            call.settle(number, produce.WriteResult(ErrorCode.NONE, 5))

    def _fetch(self, ctx: RequestContext, request: fetch.FetchRequest) -> Any:
        self.called.append((ctx, request))
        partitions = [fetch.FetchedPartition(p.topic, p.partition, 0) for p in request.partitions]
        return fetch.encode_response(ctx.api_version, fetch.FetchResult(0, 0, [*partitions, *request.refused]))

    def send(self, name: str, version: int, request: Any) -> Any:
        """The decoded answer; None: the connection was closed or there is none."""
        api = next(api for api in self.table.advertised() if api.name == name)
        flexible = version >= api.first_flexible
        frame = struct.pack(">hhih", api.key, version, 1, -1) + (b"\0" if flexible else b"")
        self.connection.sent.clear()
        self.session.on_frame(memoryview(bytearray(frame + bytes(request.encode(version=version)))))
        if not self.connection.sent:
            return None
        body = memoryview(self.connection.sent[0])[5 if flexible and name != "ApiVersions" else 4 :]
        return getattr(messages, f"{name}Response").decode(body, version=version)


def test_a_row_without_a_declaration_of_what_it_needs_is_no_row() -> None:
    with pytest.raises(TypeError, match="need"):
        ApiRow(key=1, name="X", versions=(0, 0), flexible_from=0, answered_by=Role.EVERY_NODE)  # type: ignore[call-arg]
    for module in API_MODULES:
        assert module.ROW.need.text, module.ROW.name
        assert module.ROW.need is not NOTHING or module.ROW.name in LOGIN


async def test_a_table_with_an_authoriser_takes_no_raw_handler_without_a_guard() -> None:
    guarded = Guarded()
    with pytest.raises(TypeError, match="checks no rights"):
        guarded.table.on_raw(metadata.ROW, lambda ctx, body: ())


@pytest.mark.parametrize(("name", "version"), [(name, version) for _, name, version, _ in REQUESTS])
async def test_a_client_without_rights_reaches_no_handler(name: str, version: int) -> None:
    if name in OPEN or name == "Metadata":
        return
    guarded, rng, refused = Guarded(), random.Random(f"{name}{version}"), 0
    for _ in range(12):
        guarded.called.clear()
        guarded.connection.closed_for, guarded.session.closed = None, False
        request = message(f"{name}Request", version, rng, tags=False)
        answer = guarded.send(name, version, request)
        if answer is None:
            assert name == "Produce" and request.acks == 0, guarded.connection.closed_for
            assert not guarded.called
            continue
        if guarded.called:
            assert _names_nothing(name, version, guarded.called[0][1], request), request
            continue
        codes = {code for code in errors_in(answer) if code}
        assert codes <= REFUSALS | {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.FETCH_SESSION_ID_NOT_FOUND}, answer
        refused += bool(codes) or (name == "DescribeLogDirs" and version < 3)  # which has no field for it
    assert refused, "no sample was refused"


def _names_nothing(name: str, version: int, seen: Any, request: Any) -> bool:
    match name:
        case "Produce":
            return not seen.partitions
        case "Fetch":
            return not seen.partitions and not seen.refused
        case "OffsetFetch" if version >= 8:
            return not request.groups
        case "InitProducerId":
            return False
        case "FindCoordinator":
            return request.key_type not in (0, 1) or (version >= 4 and not request.coordinator_keys)
        case "DeleteTopics":
            return not (request.topics if version >= 6 else request.topic_names)
        case "DescribeTopicPartitions":
            return False
    field = NAMING.get(name)
    return field is not None and not getattr(request, field)


# --- how the parts of a request are judged ----------------------------------------------------------------------------


def offsets(*names: str) -> Any:
    topic = messages.ListOffsetsRequest.ListOffsetsTopic
    return messages.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[
        topic(name=name, partitions=[topic.ListOffsetsPartition(partition_index=0, timestamp=-1)]) for name in names])


async def test_the_permitted_part_passes_and_the_rest_is_refused() -> None:
    guarded = Guarded(acls="allow alice describe topic mine")
    answer = guarded.send("ListOffsets", 7, offsets("mine", SECRET))
    ((_, seen),) = guarded.called
    assert [topic.name for topic in seen.topics] == ["mine"]
    assert [(topic.name, topic.partitions[0].error_code) for topic in answer.topics] == [(SECRET, 29)]


async def test_a_right_counts_from_the_next_request_on_and_so_does_its_end() -> None:
    guarded = Guarded()
    for acls, reached in (("", 0), ("allow alice read topic mine", 1), ("", 0),
                          ("allow alice all topic m..; deny * describe topic mine", 0)):
        guarded.view.put(acls)
        guarded.called.clear()
        guarded.send("ListOffsets", 7, offsets("mine"))
        assert len(guarded.called) == reached, acls


async def test_rights_are_those_of_the_principal_that_the_connection_has_now() -> None:
    guarded = Guarded(acls="allow alice read topic mine")
    guarded.send("ListOffsets", 7, offsets("mine"))
    guarded.session.principal = user("bob")
    answer = guarded.send("ListOffsets", 7, offsets("mine"))
    assert len(guarded.called) == 1
    assert answer.topics[0].partitions[0].error_code == 29


async def test_an_awaitable_answer_gets_the_refused_part_too() -> None:
    guarded = Guarded(acls="allow alice delete group mine")

    async def later(ctx: RequestContext, request: Any) -> Any:
        response = messages.DeleteGroupsResponse
        return response(throttle_time_ms=0, results=[
            response.DeletableGroupResult(group_id=name, error_code=0) for name in request.groups_names])

    row = next(module.ROW for module in API_MODULES if module.ROW.name == "DeleteGroups")
    guarded.table.on(row, later)
    ctx = RequestContext(guarded.session, guarded.table.apis[row.key], 2, 1, None)
    answer: Any = guarded.table.apis[row.key].handler(ctx, messages.DeleteGroupsRequest(groups_names=["x", "mine"]))  # type: ignore[misc]
    assert isinstance(answer, Awaitable)
    assert [(each.group_id, each.error_code) for each in (await answer).results] == [("mine", 0), ("x", 30)]


# --- the cluster's own nodes ------------------------------------------------------------------------------------------


def from_node(request: Any, shown: bytes) -> Any:
    set_unknown_tag(request, INTERNAL_WRITE_TAG, shown)
    return request


@pytest.mark.parametrize(("principals", "principal", "session", "passes"), [
    (frozenset(), ALICE, LIVE[1], True),
    (frozenset(), ALICE, b"x" * 16, False),
    (frozenset({NODE}), NODE, LIVE[1], True),
    (frozenset({NODE}), NODE, b"x" * 16, False),
    (frozenset({NODE}), ALICE, LIVE[1], False),
], ids=["proof alone, where nodes have no principals", "no proof", "both", "principal alone", "a copied proof"])
async def test_a_node_needs_the_proof_of_its_registration_and_its_principal(
    principals: frozenset[Principal], principal: Principal, session: bytes, passes: bool
) -> None:
    guarded = Guarded(node_principals=principals)
    guarded.session.principal = principal
    shown = proof(LIVE[0], session)
    answer = guarded.send("ListOffsets", 7, from_node(offsets("__transaction_state"), shown))
    assert bool(guarded.called) is passes
    if not passes:
        assert answer.topics[0].partitions[0].error_code == 29


async def test_a_proof_opens_nothing_else() -> None:
    guarded = Guarded()
    markers = messages.WriteTxnMarkersRequest
    request = markers(markers=[markers.WritableTxnMarker(
        producer_id=1, producer_epoch=1, transaction_result=True, coordinator_epoch=1, topics=[
            markers.WritableTxnMarker.WritableTxnMarkerTopic(name="t", partition_indexes=[0])])])
    answer = guarded.send("WriteTxnMarkers", 1, from_node(request, proof(*LIVE)))
    assert not guarded.called
    assert answer.markers[0].topics[0].partitions[0].error_code == 31


# --- Produce and Fetch ------------------------------------------------------------------------------------------------


def write(*names: str, transactional_id: str | None = None, acks: int = -1, internal: bytes | None = None) -> Any:
    topic = messages.ProduceRequest.TopicProduceData
    request = messages.ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[
            topic(name=name, partition_data=[topic.PartitionProduceData(index=0, records=b"x" * 61)])
            for name in names])
    return request if internal is None else from_node(request, internal)


def produced(answer: Any) -> list[tuple[str, int]]:
    return [(topic.name, part.error_code) for topic in answer.responses for part in topic.partition_responses]


async def test_a_write_is_judged_by_topic_and_answered_in_the_order_of_the_request() -> None:
    guarded = Guarded(acls="allow alice write topic mine; allow alice write topic too")
    answer = guarded.send("Produce", 9, write("mine", SECRET, "too"))
    assert produced(answer) == [("mine", 0), (SECRET, 29), ("too", 0)]
    assert [part.topic for part in guarded.called[0][1].partitions] == ["mine", "too"]
    assert guarded.table.apis[0].errors == {29: 1}


async def test_a_write_of_a_transaction_needs_its_id_for_the_whole() -> None:
    guarded = Guarded(acls="allow alice write topic mine")
    answer = guarded.send("Produce", 9, write("mine", "mine2", transactional_id="t"))
    assert produced(answer) == [("mine", 53), ("mine2", 53)]
    assert not guarded.called
    guarded.view.put("allow alice write topic mine; allow alice write transactional_id t")
    assert produced(guarded.send("Produce", 9, write("mine", transactional_id="t"))) == [("mine", 0)]


async def test_a_refused_write_that_waits_for_no_answer_closes_the_connection() -> None:
    guarded = Guarded()
    assert guarded.send("Produce", 9, write(SECRET, acks=0)) is None
    assert "acks=0" in (guarded.connection.closed_for or "")


async def test_no_user_writes_an_internal_topic_by_a_proof_that_it_copied() -> None:
    guarded = Guarded(node_principals=frozenset({NODE}), acls="allow alice all topic *")
    answer = guarded.send("Produce", 9, write("__transaction_state", internal=proof(*LIVE)))
    assert produced(answer) == [("__transaction_state", 29)]
    assert not guarded.called


def read(*names: str, replica_id: int = -1, session: tuple[int, int] = (0, 0), shown: bytes = b"") -> Any:
    topic = messages.FetchRequest.FetchTopic
    request = messages.FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1000, isolation_level=0, session_id=session[0],
        session_epoch=session[1], forgotten_topics_data=[], rack_id="", topics=[
            topic(topic=name, partitions=[topic.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
                partition_max_bytes=1000)]) for name in names])
    return from_node(request, shown) if shown else request


def fetched(answer: Any) -> list[tuple[str, int]]:
    return [(topic.topic, part.error_code) for topic in answer.responses for part in topic.partitions]


async def test_what_a_client_may_not_read_keeps_it_out_of_sessions_until_it_may() -> None:
    guarded = Guarded(acls="allow alice read topic mine")
    assert fetched(guarded.send("Fetch", 12, read("mine", SECRET))) == [("mine", 0), (SECRET, 29)]
    assert guarded.called[0][1].session_epoch == -1
    assert fetched(guarded.send("Fetch", 12, read(SECRET))) == [(SECRET, 29)]
    assert len(guarded.called) == 1
    guarded.view.put("allow alice read topic *")
    assert fetched(guarded.send("Fetch", 12, read("mine", SECRET))) == [("mine", 0), (SECRET, 0)]
    assert guarded.called[1][1].session_epoch == 0


async def test_a_request_of_many_partitions_is_judged_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may send it: were each partition compared with all refused ones, it would hold the loop for seconds."""
    compared = 0

    class Counting(fetch.FetchPartition):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return tuple.__eq__(self, other)  # type: ignore[arg-type]

        __hash__ = tuple.__hash__

    monkeypatch.setattr(fetch, "FetchPartition", Counting)
    guarded = Guarded(acls="allow alice read topic mine")
    request = read("mine", SECRET)
    one = messages.FetchRequest.FetchTopic.FetchPartition
    request.topics[1].partitions = [
        one(partition=index, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=1000) for index in range(5_000)]
    answer = guarded.send("Fetch", 12, request)
    assert [code for _, code in fetched(answer)] == [0, *[29] * 5_000]
    assert compared <= 5_001


async def test_a_session_cannot_take_in_what_its_client_may_not_read() -> None:
    guarded = Guarded(acls="allow alice read topic mine")
    answer = guarded.send("Fetch", 12, read(SECRET, session=(5, 3)))
    assert (answer.error_code, fetched(answer)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    assert not guarded.called


async def test_a_replica_id_needs_cluster_action_or_a_node() -> None:
    guarded = Guarded(acls="allow alice read topic *")
    assert fetched(guarded.send("Fetch", 12, read("mine", replica_id=1))) == [("mine", 29)]
    assert not guarded.called
    guarded.view.put("allow alice cluster_action cluster kafka-cluster")
    guarded.send("Fetch", 12, read("mine", replica_id=1))
    guarded.view.put("")
    guarded.send("Fetch", 12, read("mine", replica_id=1, shown=proof(*LIVE)))
    assert len(guarded.called) == 2


async def test_a_foreign_topics_id_reads_as_a_refused_name_does() -> None:
    guarded = Guarded()
    request = read("")
    request.topics[0].topic_id = uuid.uuid4()
    answer = guarded.send("Fetch", 13, request)
    assert answer.responses[0].partitions[0].error_code == 29
    assert not guarded.called


# --- lists ------------------------------------------------------------------------------------------------------------


def install(guarded: Guarded, name: str, answer: Any) -> None:
    row = next(module.ROW for module in API_MODULES if module.ROW.name == name)
    guarded.table.on(row, lambda ctx, request: answer() if callable(answer) else answer)


async def test_groups_are_listed_to_those_who_may_describe_them_or_the_cluster() -> None:
    response = messages.ListGroupsResponse
    for acls, shown in (
        ("", []), ("allow alice read group mine", ["mine"]),
        ("allow alice describe cluster kafka-cluster", ["mine", SECRET]),
    ):
        guarded = Guarded(acls=acls)
        install(guarded, "ListGroups", response(throttle_time_ms=0, error_code=0, groups=[
            response.ListedGroup(group_id=name, protocol_type="", group_state="", group_type="")
            for name in ("mine", SECRET)]))
        answer = guarded.send("ListGroups", 5, messages.ListGroupsRequest(states_filter=[], types_filter=[]))
        assert [each.group_id for each in answer.groups] == shown


async def test_transactions_are_listed_and_their_topics_shown_to_those_who_may_describe_them() -> None:
    guarded = Guarded(acls="allow alice write transactional_id mine; allow alice read topic mine")
    listed = messages.ListTransactionsResponse
    install(guarded, "ListTransactions", listed(
        throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=[
            listed.TransactionState(transactional_id=name, producer_id=1, transaction_state="Ongoing")
            for name in (SECRET, "mine")]))
    answer = guarded.send("ListTransactions", 0, messages.ListTransactionsRequest(
        state_filters=[], producer_id_filters=[]))
    assert [each.transactional_id for each in answer.transaction_states] == ["mine"]
    described = messages.DescribeTransactionsResponse
    state = described.TransactionState
    install(guarded, "DescribeTransactions", described(throttle_time_ms=0, transaction_states=[state(
        error_code=0, transactional_id="mine", transaction_state="", transaction_timeout_ms=0,
        transaction_start_time_ms=0, producer_id=1, producer_epoch=1,
        topics=[state.TopicData(topic=name, partitions=[0]) for name in (SECRET, "mine")])]))
    answer = guarded.send(
        "DescribeTransactions", 0, messages.DescribeTransactionsRequest(transactional_ids=["mine", SECRET]))
    assert [(each.transactional_id, each.error_code, [topic.topic for topic in each.topics])
            for each in answer.transaction_states] == [("mine", 0, ["mine"]), (SECRET, 53, [])]


@pytest.mark.parametrize(("acls", "two_phase", "transactional_id", "code"), [
    ("", False, None, 31), ("allow alice idempotent_write cluster kafka-cluster", False, None, 0),
    ("allow alice write topic any", False, None, 0), ("allow alice read topic any", False, None, 31),
    ("allow alice write topic any; deny * write topic a..", False, None, 31),
    ("allow alice describe transactional_id t", False, "t", 53),
    ("allow alice write transactional_id t", False, "t", 0),
    ("allow alice write transactional_id t", True, "t", 53), ("allow alice all transactional_id t", True, "t", 0),
])
async def test_who_gets_a_producer_id(acls: str, two_phase: bool, transactional_id: str | None, code: int) -> None:
    guarded = Guarded(acls=acls)
    answer = guarded.send("InitProducerId", 6, messages.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1,
        enable2_pc=two_phase, keep_prepared_txn=False))
    assert answer.error_code == code
    assert bool(guarded.called) is (code == 0)


async def test_of_partitions_for_a_transaction_all_are_added_or_none() -> None:
    topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t", v3_and_below_producer_id=1, v3_and_below_producer_epoch=1,
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in ("mine", SECRET)])
    for acls, codes in (
        ("allow alice write topic *", [53, 53]),
        ("allow alice write transactional_id t; allow alice write topic mine", [55, 29]),
        ("allow alice write transactional_id t; allow alice write topic *", []),
    ):
        guarded = Guarded(acls=acls)
        answer = guarded.send("AddPartitionsToTxn", 3, request)
        assert [partition.partition_error_code for topic_ in answer.results_by_topic_v3_and_below
                for partition in topic_.results_by_partition] == codes
        assert bool(guarded.called) is (not codes)


@pytest.mark.parametrize("method", ["JoinTransaction", "EndTransaction"])
async def test_a_member_needs_the_transactional_id(method: str) -> None:
    kind = getattr(transactions_pb2, f"{method}Request")
    request = messages.TransactionCallRequest(
        cluster_id="c", method=method, payload=kind(transactional_id="t").SerializeToString())
    guarded = Guarded()
    assert guarded.send("TransactionCall", 0, request).error_code == 53
    assert not guarded.called
    guarded.view.put("allow alice write transactional_id t")
    assert guarded.send("TransactionCall", 0, request).error_code == 0


# --- offsets and groups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 5, 7])
async def test_offsets_of_hidden_topics_are_refused_by_name_and_left_out_of_all(version: int) -> None:
    guarded = Guarded(acls="allow alice describe group g; allow alice read topic mine")
    response = messages.OffsetFetchResponse
    topic = response.OffsetFetchResponseTopic
    install(guarded, "OffsetFetch", lambda: response(throttle_time_ms=0, error_code=0, topics=[
        topic(name=name, partitions=[topic.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=5, metadata="", error_code=0)]) for name in ("mine", SECRET)]))
    wanted = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    named = [wanted(name="other", partition_indexes=[0, 1])]
    answer = guarded.send("OffsetFetch", version, messages.OffsetFetchRequest(group_id="g", topics=named))
    assert {each.name: [part.error_code for part in each.partitions] for each in answer.topics} == {
        "mine": [0], "other": [29, 29]}
    answer = guarded.send("OffsetFetch", version, messages.OffsetFetchRequest(group_id="h", topics=named))
    assert [part.error_code for each in answer.topics for part in each.partitions] == ([30, 30] if version == 1 else [])
    assert version == 1 or answer.error_code == 30


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_offsets_of_several_groups_are_judged_one_by_one(version: int) -> None:
    guarded = Guarded(acls="allow alice describe group g")
    response = messages.OffsetFetchResponse
    install(guarded, "OffsetFetch", lambda: response(throttle_time_ms=0, groups=[
        response.OffsetFetchResponseGroup(group_id="g", topics=[], error_code=0)]))
    group = messages.OffsetFetchRequest.OffsetFetchRequestGroup
    topic = group.OffsetFetchRequestTopics
    answer = guarded.send("OffsetFetch", version, messages.OffsetFetchRequest(groups=[
        group(group_id=name, topics=[topic(name=SECRET, topic_id=uuid.uuid4(), partition_indexes=[3])])
        for name in ("g", "h")]))
    found = {each.group_id: each for each in answer.groups}
    assert (found["g"].error_code, found["h"].error_code, found["h"].topics) == (0, 30, [])
    assert [part.error_code for each in found["g"].topics for part in each.partitions] == [29]


async def test_commits_are_judged_by_group_and_then_by_topic() -> None:
    guarded = Guarded(acls="allow alice read group g; allow alice read topic mine")
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic

    def commit(group: str) -> list[tuple[str, int]]:
        answer = guarded.send("OffsetCommit", 8, messages.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[
                topic(name=name, partitions=[topic.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_leader_epoch=-1)]) for name in ("mine", SECRET)]))
        return [(each.name, part.error_code) for each in answer.topics for part in each.partitions]

    assert commit("h") == [("mine", 30), (SECRET, 30)]
    assert not guarded.called
    assert commit("g") == [(SECRET, 29)]
    assert [each.name for each in guarded.called[0][1].topics] == ["mine"]


async def test_a_member_names_topics_that_it_may_describe() -> None:
    guarded = Guarded(acls="allow alice read group g; allow alice read topic mine")

    def beat(*names: str, group: str = "g") -> int:
        code: int = guarded.send("ConsumerGroupHeartbeat", 1, messages.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=list(names))).error_code
        return code

    assert (beat("mine"), beat("mine", SECRET), beat("mine", group="h")) == (0, 29, 30)


async def test_a_group_that_reads_a_hidden_topic_is_not_described() -> None:
    guarded = Guarded(acls="allow alice describe group *; allow alice read topic mine")
    response = messages.ConsumerGroupDescribeResponse
    group = response.DescribedGroup

    def described(topic: str) -> Any:
        assigned = group.Member.Assignment(topic_partitions=[
            group.Member.Assignment.TopicPartitions(topic_id=uuid.uuid4(), topic_name=topic, partitions=[0])])
        return group(
            error_code=0, error_message=None, group_id=topic, group_state="Stable", group_epoch=1, assignment_epoch=1,
            assignor_name="uniform", authorized_operations=None, members=[group.Member(
                member_id="m", member_epoch=1, client_id="", client_host="", subscribed_topic_names=[],
                assignment=assigned, target_assignment=assigned)])

    install(guarded, "ConsumerGroupDescribe", lambda: response(
        throttle_time_ms=0, groups=[described("mine"), described(SECRET)]))
    answer = guarded.send("ConsumerGroupDescribe", 1, messages.ConsumerGroupDescribeRequest(
        group_ids=["mine", SECRET], include_authorized_operations=True))
    assert [(each.group_id, each.error_code, len(each.members), each.authorized_operations)
            for each in answer.groups] == [("mine", 0, 1, {8}), (SECRET, 29, 0, None)]
