"""Who may do what by REST: each route needs its rights, judged before the cluster, the store or etcd is asked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response

from hapax.admin.app import make_app
from hapax.admin.context import Context
from hapax.admin.gate import OPEN_PATHS
from hapax.admin.needs import NEEDS, Routes
from hapax.admin.problems import Problem
from hapax.client import LeaseInfo
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.settings import Settings
from unit.admin.rest_world import Rest, allow, basic, bearer, deny

TOPIC, GROUP, CLUSTER, ID = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
ME = "billing"


class Reached(Problem):
    def __init__(self) -> None:
        super().__init__(409, "reached")


class Nothing:
    """In place of the cluster: a handler that asks it anything has been reached."""

    access: Any = None

    def __getattr__(self, name: str) -> Any:
        raise Reached


def mine(operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> Binding:
    return allow(ME, operation, kind, name)


def cluster(operation: Operation) -> list[Binding]:
    return [mine(operation, CLUSTER)]


def topic(operation: Operation) -> list[Binding]:
    return [mine(operation, TOPIC, "t")]


O = Operation  # noqa: E741  # in a table
RESET = {"to": {"earliest": True}, "topics": ["t"], "partitions": [{"topic": "u", "partition": 0}]}
WHY = {"serial": 1, "reason": "a test"}
HANGING = {"topic": "t", "partition": 0, "producer_id": 1, "reason": "a test"}

CASES: dict[str, tuple[str, Any, list[Binding]]] = {
    "POST /v1/topics": ("/v1/topics", {"name": "t"}, topic(O.CREATE)),
    "GET /v1/topics/{topic}": ("/v1/topics/t", None, topic(O.DESCRIBE)),
    "PATCH /v1/topics/{topic}": ("/v1/topics/t", {"partitions": 2}, topic(O.ALTER)),
    "DELETE /v1/topics/{topic}": ("/v1/topics/t", None, topic(O.DELETE)),
    "GET /v1/topics/{topic}/config": ("/v1/topics/t/config", None, topic(O.DESCRIBE_CONFIGS)),
    "GET /v1/topics/{topic}/config/all": ("/v1/topics/t/config/all", None, topic(O.DESCRIBE_CONFIGS)),
    "PATCH /v1/topics/{topic}/config": ("/v1/topics/t/config", {"set": {}}, topic(O.ALTER_CONFIGS)),
    "GET /v1/topics/{topic}/partitions": ("/v1/topics/t/partitions", None, topic(O.DESCRIBE)),
    "GET /v1/topics/{topic}/offsets": ("/v1/topics/t/offsets", None, topic(O.DESCRIBE)),
    "GET /v1/topics/{topic}/partitions/{partition}/messages": (
        "/v1/topics/t/partitions/0/messages", None, topic(O.READ)),
    "GET /v1/topics/{topic}/partitions/{partition}/producers": (
        "/v1/topics/t/partitions/0/producers", None, topic(O.READ)),
    "GET /v1/leases": ("/v1/leases", None, cluster(O.DESCRIBE)),
    "GET /v1/transactions/{transactional_id}": ("/v1/transactions/x%2Fy", None, [mine(O.DESCRIBE, ID, "x/y")]),
    "POST /v1/transactions/{transactional_id}/abort": ("/v1/transactions/x/abort", WHY, cluster(O.ALTER)),
    "POST /v1/transactions/{transactional_id}/commit": ("/v1/transactions/x/commit", WHY, cluster(O.ALTER)),
    "POST /v1/hanging-transactions/abort": ("/v1/hanging-transactions/abort", HANGING, cluster(O.ALTER)),
    "GET /v1/groups/{group}": ("/v1/groups/g", None, [mine(O.DESCRIBE, GROUP, "g")]),
    "GET /v1/groups/{group}/offsets": ("/v1/groups/g/offsets", None, [mine(O.DESCRIBE, GROUP, "g")]),
    "GET /v1/groups/{group}/lag": ("/v1/groups/g/lag", None, [mine(O.DESCRIBE, GROUP, "g")]),
    "POST /v1/groups/{group}/reset": (
        "/v1/groups/g/reset", RESET, [mine(O.READ, GROUP, "g"), mine(O.READ, TOPIC, "t"), mine(O.READ, TOPIC, "u")]),
    "DELETE /v1/groups/{group}": ("/v1/groups/g", None, [mine(O.DELETE, GROUP, "g")]),
    "DELETE /v1/groups/{group}/offsets/{topic}/{partition}": (
        "/v1/groups/g/offsets/t/0", None, [mine(O.DELETE, GROUP, "g"), *topic(O.READ)]),
    "GET /v1/reassignments": ("/v1/reassignments", None, cluster(O.DESCRIBE)),
    "POST /v1/reassignments": ("/v1/reassignments", {"drain": {"broker": 0}}, cluster(O.ALTER)),
    "DELETE /v1/reassignments": ("/v1/reassignments", None, cluster(O.ALTER)),
    "GET /v1/reassignments/throttle": ("/v1/reassignments/throttle", None, cluster(O.DESCRIBE)),
    "PUT /v1/reassignments/throttle": ("/v1/reassignments/throttle", {"bytes_per_second": 1}, cluster(O.ALTER)),
    "GET /v1/events": ("/v1/events", None, [mine(O.READ, TOPIC, "__hapax_events")]),
    "GET /v1/health": ("/v1/health", None, cluster(O.DESCRIBE)),
    "GET /v1/nodes": ("/v1/nodes", None, cluster(O.DESCRIBE)),
    "GET /v1/nodes/{node_id}": ("/v1/nodes/0", None, cluster(O.DESCRIBE)),
    "GET /v1/nodes/{node_id}/config": ("/v1/nodes/0/config", None, cluster(O.DESCRIBE_CONFIGS)),
    "GET /v1/shards": ("/v1/shards", None, cluster(O.DESCRIBE)),
}
"""Route -> a path, a body, and the ACLs that suffice, each of which is needed."""
JUDGED_BY_HANDLERS = {
    "GET /v1/topics", "GET /v1/producers/{producer_id}", "GET /v1/leases/{name}", "DELETE /v1/leases/{name}",
    "GET /v1/transactions", "GET /v1/two-phase-transactions", "GET /v1/hanging-transactions", "GET /v1/groups",
    "GET /v1/version",
}  # fmt: skip
"""Those that show what the caller may see, and the version. Each has a test below."""


_without_cluster: list[Rest] = []


def world(folder: Path, bindings: list[Binding] | None = None, admin: Any = None, view: Any = None) -> Rest:
    """Those without a cluster are one: to make an application takes longer than to ask it."""
    if admin is not None or view is not None:
        return Rest(folder, view=view or Nothing(), admin=admin or Nothing(), bindings=bindings or [])
    if not _without_cluster:
        _without_cluster.append(Rest(folder, view=Nothing(), admin=Nothing(), bindings=[]))
    _without_cluster[0].permit(*bindings or ())
    return _without_cluster[0]


async def asked(rest: Rest, route: str, **how: Any) -> Any:
    path, body, _ = CASES[route]
    return await rest.ask(route.split()[0], path, body, auth=bearer(how.pop("who", ME)), **how)


# --- the table ------------------------------------------------------------------------------------------------------


def test_every_route_is_in_the_table_and_has_a_case() -> None:
    nothing: Any = None
    document = make_app(Context(nothing, Settings(), nothing, nothing, nothing, nothing)).openapi()
    served = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert served == NEEDS.keys() == CASES.keys() | JUDGED_BY_HANDLERS
    assert frozenset({"/openapi.json"}) == OPEN_PATHS
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["description"].endswith(f"Needs: {NEEDS[f'{method.upper()} {path}'].text}.")
            parameters = {each["name"] for each in operation.get("parameters", ())}
            assert method != "post" or "idempotency-key" in parameters, "the gate takes no keys any more"


def test_a_route_without_a_need_is_not_served() -> None:
    async def handler() -> Response:
        raise AssertionError

    nothing: Any = None
    with pytest.raises(KeyError, match="GET /v1/secrets"):
        Routes(nothing, "/v1", "secrets").get("/secrets")(handler)


@pytest.mark.parametrize("route", CASES)
async def test_a_route_needs_each_of_its_rights_and_no_more(tmp_path: Path, route: str) -> None:
    """Without one of them nothing is asked, and an idempotency key leaves nothing in the store."""
    needed = CASES[route][2]
    for missing in needed:
        rest = world(tmp_path, [each for each in needed if each is not missing])
        refused = await asked(rest, route, idempotency_key="mine")
        assert refused.status == 403, (refused, missing)
        assert refused.code is not None and refused.code.endswith("_AUTHORIZATION_FAILED")
        assert refused.body["detail"].startswith("User:billing needs ")
        assert rest.store.model.list("/") == ([], 1)
    reached = await asked(world(tmp_path, needed), route)
    assert (reached.status, reached.body["detail"]) == (409, "reached") or reached.status == 200


@pytest.mark.parametrize("route", CASES)
async def test_a_denial_outweighs_what_is_permitted(tmp_path: Path, route: str) -> None:
    """Abuse case 26."""
    needed = CASES[route][2]
    rest = world(tmp_path, [*needed, *(deny("*", O.ALL, each.kind, "*") for each in needed)])
    assert (await asked(rest, route)).status == 403


@pytest.mark.parametrize("route", CASES)
async def test_a_token_of_the_role_admin_may_do_all(tmp_path: Path, route: str) -> None:
    rest = world(tmp_path, [deny("*", O.ALL, TOPIC, "*")])
    assert (await asked(rest, route, who="boss")).status != 403


@pytest.mark.parametrize("route", CASES)
async def test_a_token_of_a_reader_reads_metadata_and_changes_nothing(tmp_path: Path, route: str) -> None:
    """Abuse case 35. Records only where an ACL says so."""
    answered = await asked(world(tmp_path), route, who="viewer")
    records = route.endswith(("/messages", "/producers", "/events"))
    assert (answered.status == 403) is (not route.startswith("GET") or records), answered


async def test_a_reader_reads_records_where_an_acl_says_so(tmp_path: Path) -> None:
    route = "GET /v1/topics/{topic}/partitions/{partition}/messages"
    permitted = world(tmp_path, [allow("viewer", O.READ, TOPIC, "t")])
    assert (await asked(permitted, route, who="viewer")).status == 409
    everything = world(tmp_path, [allow("viewer", O.ALL, TOPIC, "t")])
    assert (await asked(everything, "DELETE /v1/topics/{topic}", who="viewer")).status == 403


async def test_an_acl_denies_a_reader(tmp_path: Path) -> None:
    rest = world(tmp_path, [deny("viewer", O.DESCRIBE, TOPIC, "t")])
    assert (await asked(rest, "GET /v1/topics/{topic}", who="viewer")).status == 403


async def test_without_an_authoriser_the_roles_alone_count(tmp_path: Path) -> None:
    rest = Rest(tmp_path, view=Nothing(), admin=Nothing())
    for route in CASES:
        assert (await asked(rest, route)).status != 403
        assert ((await asked(rest, route, who="viewer")).status == 403) is not route.startswith("GET")


async def test_what_is_hidden_is_answered_as_what_is_missing(tmp_path: Path) -> None:
    """Abuse case 20."""
    there = SimpleNamespace(topic=lambda name: SimpleNamespace(partitions=1) if name == "t" else None)
    rest = world(tmp_path, view=there)
    for route in CASES:
        if "{topic}" in route:
            path, body, _ = CASES[route]
            method = route.split()[0]
            hidden = await rest.ask(method, path, body, auth=bearer(ME))
            other = "/".join("nosuch" if part == "t" else part for part in path.split("/"))
            missing = await rest.ask(method, other, body, auth=bearer(ME))
            assert hidden.status == missing.status == 403
            assert json.dumps(hidden.body).replace("'t'", "'nosuch'") == json.dumps(missing.body)


async def test_a_right_counts_no_more_from_the_next_request_on(tmp_path: Path) -> None:
    """Abuse case 27."""
    rest = world(tmp_path, topic(O.DESCRIBE))
    assert (await asked(rest, "GET /v1/topics/{topic}")).status == 409
    rest.permit()
    assert (await asked(rest, "GET /v1/topics/{topic}")).status == 403
    rest.permit(*topic(O.DESCRIBE))
    assert (await asked(rest, "GET /v1/topics/{topic}")).status == 409


async def test_a_right_that_is_revoked_while_the_cluster_is_asked_does_not_count(tmp_path: Path) -> None:
    async def offsets(group: str) -> dict[TopicPartition, Any]:
        rest.permit()
        return {}

    rest = world(tmp_path, [mine(O.DESCRIBE, GROUP, "g")], admin=SimpleNamespace(group_offsets=offsets))
    assert (await asked(rest, "GET /v1/groups/{group}/offsets")).status == 403


async def test_keys_belong_to_a_principal(tmp_path: Path) -> None:
    """The same key of another caller is another key."""
    made: list[str] = []

    async def abort_hanging(where: Any, producer_id: int, first: Any) -> bool:
        made.append(f"{where}")
        return True

    view = SimpleNamespace(topic=lambda name: SimpleNamespace(partitions=1))
    rest = world(
        tmp_path, [*cluster(O.ALTER), allow("alice", O.ALTER, CLUSTER, CLUSTER_NAME)],
        admin=SimpleNamespace(abort_hanging=abort_hanging), view=view)
    route = "POST /v1/hanging-transactions/abort"
    first = await asked(rest, route, idempotency_key="k")
    again = await asked(rest, route, idempotency_key="k")
    assert (first.status, again.status, len(made)) == (200, 200, 1)
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    other = await asked(rest, route, idempotency_key="k", who="boss")
    assert (other.status, len(made)) == (200, 2) and "idempotency-replayed" not in other.headers
    rest.permit()
    assert (await asked(rest, route, idempotency_key="k")).status == 403, "a stored answer needs the right too"


async def test_what_is_malformed_leaves_nothing(tmp_path: Path) -> None:
    rest = world(tmp_path)
    for method, path, body in (
        ("POST", "/v1/topics", {"name": "no name", "partitions": -1}), ("POST", "/v1/nowhere", {}),
        ("POST", "/v1/topics?what=ever", {"name": "t"}), ("POST", "/v1/health", {}),
    ):
        assert (await rest.ask(method, path, body, auth=bearer("boss"), idempotency_key="k")).status in (404, 405, 422)
        assert rest.store.model.list("/") == ([], 1)


# --- what handlers judge --------------------------------------------------------------------------------------------


def at(name: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(name, PartitionIndex(partition))


def entries(answered: Any, key: str) -> list[Any]:
    assert answered.status == 200, answered
    return [each[key] for each in answered.body["items"]]


class Cluster:
    """One of everything for `t` and for `secret`."""

    async def list_groups(self, prefix: str) -> Any:
        return [SimpleNamespace(group=name, _asdict=lambda name=name: {"group": name}) for name in ("g", "hidden")]

    async def list_transactions(self, **_: Any) -> Any:
        return [SimpleNamespace(transactional_id=name, producer_id=1, state="Ongoing") for name in ("mine", "hidden")]

    async def list_two_phase(self) -> Any:
        return [
            SimpleNamespace(transactional_id=name, producer_id=1, producer_epoch=0, started_ms=1, partitions=())
            for name in ("mine", "hidden")]

    async def partition_producers(self, places: Any, ids: Any) -> Any:
        return [
            SimpleNamespace(partition=at(name), producer_id=1, _asdict=lambda name=name: {"partition": at(name)})
            for name in ("t", "secret")]

    async def find_hanging(self, *_: Any) -> Any:
        return await self.partition_producers(None, None)

    async def group_offsets(self, group: str) -> Any:
        return {at(name): SimpleNamespace(_asdict=lambda: {"offset": 7}) for name in ("t", "secret")}

    async def group_lag(self, group: str, **_: Any) -> Any:
        lag = SimpleNamespace(
            records=5, readable=4, counted_to=9, last_stable=9, committed=4, first=0, high_watermark=9)
        return {at(name): lag for name in ("t", "secret")}

    async def describe_group(self, group: str, **_: Any) -> Any:
        member: dict[str, Any] = {"member_id": "m", "assigned": [at("t"), at("secret")]}
        members = [SimpleNamespace(_asdict=lambda: dict(member), assigned=member["assigned"])]
        lag = await self.group_lag(group)
        return SimpleNamespace(_asdict=lambda: {"group": group}, members=members, lag=lag)

    async def describe_transactional_id(self, name: str) -> Any:
        document = {"transactional_id": name, "partition_count": 2, "state": "Empty", "instance": ""}
        return SimpleNamespace(
            _asdict=lambda: dict(document), partitions=[at("t"), at("secret")], tokens=(), state="Empty",
            producer_id=1)

    async def list_topics(self) -> Any:
        return []

    async def list(self, prefix: str) -> Any:
        return [LeaseInfo("lease", 1, 1, "holder", 2, [at("t"), at("secret")])]

    async def progress(self, name: str) -> Any:
        return {}

    async def release(self, lease: Any) -> None: ...


def topics() -> Any:
    def made(name: str) -> Any:
        return SimpleNamespace(
            name=name, topic_id=name.encode().ljust(16), partitions=0, internal=name.startswith("__"),
            record=SimpleNamespace(replication_factor=1), config={"retention.ms": "1"}, mod_revision=1)

    known = {name: made(name) for name in ("t", "secret", "__consumer_offsets")}
    return SimpleNamespace(
        topics=lambda: known.values(), topic=known.get, partitions_of=lambda topic_id: {}, leader_of=lambda *_: None)


def full(folder: Path, *bindings: Binding) -> Rest:
    return Rest(folder, view=topics(), admin=Cluster(), bindings=list(bindings))


LISTS = {
    "/v1/topics?internal=true": ("name", mine(O.DESCRIBE, TOPIC, "t"), "t"),
    "/v1/groups": ("group", mine(O.DESCRIBE, GROUP, "g"), "g"),
    "/v1/transactions": ("transactional_id", mine(O.DESCRIBE, ID, "mine"), "mine"),
    "/v1/two-phase-transactions": ("transactional_id", mine(O.DESCRIBE, ID, "mine"), "mine"),
    "/v1/hanging-transactions": ("topic", mine(O.READ, TOPIC, "t"), "t"),
    "/v1/producers/1": ("topic", mine(O.READ, TOPIC, "t"), "t"),
}


@pytest.mark.parametrize("path", LISTS)
async def test_lists_leave_out_what_is_hidden(tmp_path: Path, path: str) -> None:
    key, binding, shown = LISTS[path]
    found = await full(tmp_path, binding).ask("GET", path, auth=bearer(ME))
    assert entries(found, key) == [shown] and "secret" not in json.dumps(found.body)
    nothing = await full(tmp_path).ask("GET", path, auth=bearer(ME))
    if "producers" in path:
        assert nothing.status == 404
    else:
        assert (nothing.status, nothing.body["items"], nothing.body["next_cursor"]) == (200, [], None)


@pytest.mark.parametrize("path", LISTS)
async def test_a_page_of_a_list_tells_of_no_hidden_entries(tmp_path: Path, path: str) -> None:
    key, binding, shown = LISTS[path]
    link = "&" if "?" in path else "?"
    found = await full(tmp_path, binding).ask("GET", f"{path}{link}limit=1", auth=bearer(ME))
    assert entries(found, key) == [shown] and found.body["next_cursor"] is None


async def test_all_groups_are_listed_for_who_may_describe_the_cluster(tmp_path: Path) -> None:
    found = await full(tmp_path, *cluster(O.DESCRIBE)).ask("GET", "/v1/groups", auth=bearer(ME))
    assert entries(found, "group") == ["g", "hidden"]


@pytest.mark.parametrize(("path", "binding"), [
    ("/v1/groups/g", mine(O.DESCRIBE, GROUP, "g")), ("/v1/groups/g/offsets", mine(O.DESCRIBE, GROUP, "g")),
    ("/v1/groups/g/lag", mine(O.DESCRIBE, GROUP, "g")), ("/v1/transactions/mine", mine(O.DESCRIBE, ID, "mine")),
])
async def test_descriptions_leave_out_hidden_topics(tmp_path: Path, path: str, binding: Binding) -> None:
    found = await full(tmp_path, binding, *topic(O.DESCRIBE)).ask("GET", path, auth=bearer(ME))
    text = json.dumps(found.body)
    assert found.status == 200 and '"t"' in text and "secret" not in text
    if path.endswith("/lag"):
        assert (found.body["lag"], found.body["readable"]) == (5, 4), "the sum tells of no hidden topic"
    if "transactions" in path:
        assert found.body["partition_count"] == 1


@pytest.mark.parametrize(("operation", "config"), [
    (O.DESCRIBE, None), (O.DESCRIBE_CONFIGS, None), (O.ALTER_CONFIGS, None)])
async def test_a_topic_s_configuration_is_shown_to_who_may_see_it(
    tmp_path: Path, operation: Operation, config: Any
) -> None:
    bindings = {*topic(O.DESCRIBE), *topic(operation)}
    found = await full(tmp_path, *bindings).ask("GET", "/v1/topics/t", auth=bearer(ME))
    assert found.body["config"] == (None if operation is O.DESCRIBE else {"retention.ms": "1"})


LEASE = "/v1/leases/lease"
BOTH = [mine(O.DESCRIBE, TOPIC, "t"), mine(O.DESCRIBE, TOPIC, "secret")]
WRITES = [mine(O.WRITE, TOPIC, "t"), mine(O.WRITE, TOPIC, "secret")]


@pytest.mark.parametrize(("method", "bindings", "status"), [
    ("GET", [], 404), ("GET", topic(O.DESCRIBE), 404), ("GET", BOTH, 200), ("GET", cluster(O.DESCRIBE), 200),
    ("DELETE", [], 404), ("DELETE", BOTH, 403), ("DELETE", cluster(O.DESCRIBE), 403),
    ("DELETE", [*BOTH, WRITES[0]], 403), ("DELETE", WRITES, 204),
])
async def test_a_lease_is_its_topics_matter(
    tmp_path: Path, method: str, bindings: list[Binding], status: int
) -> None:
    query = "?generation=1" if method == "DELETE" else ""
    found = await full(tmp_path, *bindings).ask(method, LEASE + query, auth=bearer(ME))
    assert found.status == status
    if status == 404:
        missing = await full(tmp_path, *bindings).ask(method, "/v1/leases/nosuch" + query, auth=bearer(ME))
        assert json.dumps(missing.body) == json.dumps(found.body).replace("lease lease", "lease nosuch")


async def test_super_users_may_do_all(tmp_path: Path) -> None:
    rest = Rest(
        tmp_path, view=topics(), admin=Cluster(), bindings=[deny("*", O.ALL, TOPIC, "*")],
        super_users=frozenset({user(ME)}))
    found = await rest.ask("GET", "/v1/topics", auth=bearer(ME))
    assert entries(found, "name") == ["secret", "t"]


async def test_the_version_is_told_to_everybody_who_is_known(tmp_path: Path) -> None:
    assert (await world(tmp_path).ask("GET", "/v1/version", auth=bearer(ME))).status == 200
    assert (await world(tmp_path).ask("GET", "/v1/version")).status == 401
    assert (await world(tmp_path).ask("GET", "/openapi.json")).status == 200


@pytest.mark.parametrize("path", ["/v1/producers/4001", "/v1/hanging-transactions"])
async def test_who_may_read_nothing_costs_the_cluster_nothing(tmp_path: Path, path: str) -> None:
    """All brokers are asked for these, a few requests at a time: who sees nothing of it would hold the places."""
    asked: list[str] = []

    class Admin:
        async def find_hanging(self, *_: Any) -> Any:
            asked.append("hanging")
            return []

        async def partition_producers(self, *_: Any) -> Any:
            asked.append("producers")
            return []

    rest = Rest(tmp_path, bindings=[allow("alice", O.READ, TOPIC, "t")], admin=Admin())
    rest.set_password("alice", "a password")
    answers = {
        name: (await rest.ask("GET", path, auth=auth)).status for name, auth in (
            ("billing", bearer("billing")), ("viewer", bearer("viewer")))}
    assert not asked
    answers |= {
        name: (await rest.ask("GET", path, auth=auth)).status for name, auth in (
            ("alice", basic("alice", "a password")), ("boss", bearer("boss")))}
    assert len(asked) == 2 and len(set(answers.values())) == 1
