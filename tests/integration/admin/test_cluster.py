"""Nodes, shards, health, events, reassignments and versions by REST."""

from __future__ import annotations

from integration.admin_process import AdminProcess


def test_who_runs_the_cluster(rest: AdminProcess) -> None:
    nodes = {each["node_id"]: each for each in rest.get("/v1/nodes")["items"]}
    assert {nodes[n]["role"] for n in (0, 100, 200, 300)} == {"broker", "coordinator", "pid", "controller"}
    assert nodes[300]["acts"] and nodes[0]["leads"] > 0 and nodes[100]["shards"] == 100
    assert rest.get("/v1/nodes/0")["role"] == "broker"
    assert rest.call("GET", "/v1/nodes/99").status == 404
    assert [each["node_id"] for each in rest.get("/v1/nodes?role=broker")["items"]] == [0]
    shards = rest.get("/v1/shards?kind=txn&limit=1000")["items"]
    assert [each["shard"] for each in shards] == list(range(50))
    assert all(each["owner"] == 100 and each["serving"] for each in shards)


def test_the_settings_of_a_node(rest: AdminProcess) -> None:
    for node in (0, 100):
        found = {each["name"]: each for each in rest.get(f"/v1/nodes/{node}/config")["items"]}
        assert (found["node.id"]["value"], found["message.max.bytes"]["source"]) == (str(node), "default")
    assert rest.call("GET", "/v1/nodes/99/config").status == 404
    assert rest.call("GET", "/v1/nodes/300/config").status == 404


def test_health_and_version(rest: AdminProcess) -> None:
    health = rest.get("/v1/health")
    assert health["status"] == "ok", health
    assert {each["name"] for each in health["checks"]} >= {"controller", "brokers", "leaders", "shards"}
    assert rest.get("/v1/version")["api"] == "1"


def test_a_plan_is_shown_before_it_acts(rest: AdminProcess, topic: str) -> None:
    planned = rest.call("POST", "/v1/reassignments", {"spread": {"topics": [topic]}})
    assert (planned.status, planned.json["dry_run"], planned.json["copies"]) == (200, True, 0)
    impossible = rest.call("POST", "/v1/reassignments", {"factor": {"topic": topic, "replicas": 3}})
    assert impossible.status == 409 and "broker" in impossible.json["detail"]
    nobody = {"partitions": [{"topic": topic, "partition": 0, "replicas": [0, 7]}], "dry_run": False}
    refused = rest.call("POST", "/v1/reassignments", nobody).json["steps"]
    assert refused[0]["after"] == [0, 7] and refused[0]["refused"]
    assert rest.call("POST", "/v1/reassignments", {}).status == 422
    assert rest.call("POST", "/v1/reassignments", {"spread": {"topics": ["nowhere"]}}).status == 404
    assert rest.get("/v1/reassignments")["items"] == []
    assert rest.get("/v1/reassignments/throttle") == {"bytes_per_second": None}
    assert rest.call("DELETE", "/v1/reassignments").json == {"canceled": 0}


def test_events_come_newest_first_in_pages(rest: AdminProcess) -> None:
    first = rest.get("/v1/events?limit=1")
    if first["next_cursor"] is not None:
        second = rest.get(f"/v1/events?limit=1&cursor={first['next_cursor']}")
        assert all(each["offset"] < first["items"][0]["offset"] for each in second["items"])
    assert rest.call("GET", "/v1/events?cursor=WyJhIl0").status == 422
