"""Topics by REST on a real cluster."""

from __future__ import annotations

import uuid

from hapax.client.blocking import Producer
from integration.admin_process import ADMIN_TOKEN, READER_TOKEN, AdminProcess
from integration.waiting import wait_until


def test_a_topics_life(rest: AdminProcess) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    made = rest.call("POST", "/v1/topics", {"name": name, "partitions": 2, "config": {"retention.ms": "60000"}})
    assert made.status == 201
    assert made.headers["location"] == f"/v1/topics/{name}"
    assert (made.json["partitions"], made.json["config"]) == (2, {"retention.ms": "60000"})
    assert rest.call("POST", "/v1/topics", {"name": name}).json["code"] == "TOPIC_ALREADY_EXISTS"
    assert name in [each["name"] for each in rest.get("/v1/topics?limit=1000")["items"]]
    grown = rest.call("PATCH", f"/v1/topics/{name}", {"partitions": 3})
    assert (grown.status, grown.json["partitions"]) == (200, 3)
    partitions = rest.get(f"/v1/topics/{name}/partitions")["items"]
    assert [(each["partition"], each["leader"], each["high_watermark"]) for each in partitions] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert rest.call("DELETE", f"/v1/topics/{name}").status == 204
    gone = rest.call("GET", f"/v1/topics/{name}")
    assert (gone.status, gone.headers["content-type"]) == (404, "application/problem+json")
    assert gone.json["type"] == "urn:hapax:problem:not-found"


def test_pages_hold_all_topics_once(rest: AdminProcess) -> None:
    mark = uuid.uuid4().hex[:8]
    names = [f"page-{mark}-{number}" for number in range(5)]
    for name in names:
        assert rest.call("POST", "/v1/topics", {"name": name}).status == 201
    found: list[str] = []
    query = f"/v1/topics?limit=2&prefix=page-{mark}"
    cursor = ""
    while True:
        listed = rest.get(query + cursor)
        assert len(listed["items"]) <= 2
        found += [each["name"] for each in listed["items"]]
        if listed["next_cursor"] is None:
            break
        cursor = f"&cursor={listed['next_cursor']}"
    assert found == names
    assert rest.call("GET", "/v1/topics?cursor=nonsense").status == 422
    for name in names:
        assert rest.call("DELETE", f"/v1/topics/{name}").status == 204


def test_who_changes_what_another_has_changed_is_told(rest: AdminProcess, topic: str) -> None:
    path = f"/v1/topics/{topic}/config"
    read = rest.call("GET", path)
    tag = read.headers["etag"]
    assert rest.call("GET", path, headers={"If-None-Match": tag}).status == 304
    first = rest.call("PATCH", path, {"set": {"retention.ms": "60000"}}, headers={"If-Match": tag})
    assert (first.status, first.json["config"]) == (200, {"retention.ms": "60000"})
    late = rest.call("PATCH", path, {"set": {"retention.ms": "1"}}, headers={"If-Match": tag})
    assert late.status == 412
    assert rest.call("PATCH", f"/v1/topics/{topic}", {"partitions": 5}, headers={"If-Match": tag}).status == 412
    assert rest.call("DELETE", f"/v1/topics/{topic}", headers={"If-Match": tag}).status == 412
    now = first.headers["etag"]
    second = rest.call("PATCH", path, {"reset": ["retention.ms"]}, headers={"If-Match": now})
    assert (second.status, second.json["config"]) == (200, {})
    assert rest.call("PATCH", path, {"set": {"retention.msec": "1"}}).json["code"] == "INVALID_CONFIG"


def test_all_that_holds_for_a_topic_and_where_it_comes_from(rest: AdminProcess, topic: str) -> None:
    def config() -> dict[str, dict[str, str]]:
        return {each["name"]: each for each in rest.get(f"/v1/topics/{topic}/config/all")["items"]}

    rest.call("PATCH", f"/v1/topics/{topic}/config", {"set": {"retention.ms": "60000"}})
    wait_until(lambda: config()["retention.ms"]["source"] == "topic", "answer from a broker that has heard of it")
    found = config()
    assert [found["retention.ms"][key] for key in ("value", "source", "default")] == ["60000", "topic", "604800000"]
    assert (found["cleanup.policy"]["value"], found["cleanup.policy"]["source"]) == ("delete", "default")
    meaning = found["max.message.bytes"]["meaning"]
    assert meaning == "Largest record batch in bytes, after compression, that is accepted."
    assert rest.call("GET", "/v1/topics/nowhere/config/all").status == 404


def test_offsets_by_time(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster_bootstrap}) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1_000 + number)
        producer.flush()

    def offsets(query: str) -> list[tuple[int | None, int | None]]:
        items = rest.get(f"/v1/topics/{topic}/offsets?{query}")["items"]
        return [(each["offset"], each["timestamp_ms"]) for each in items]

    assert offsets("at=earliest") == [(0, None), (0, None)]
    assert offsets("at=latest") == [(10, None), (0, None)]
    assert offsets("at=1004") == [(4, 1004), (None, None)]
    assert offsets("at=5000") == [(None, None), (None, None)]
    assert rest.call("GET", f"/v1/topics/{topic}/offsets?at=yesterday").status == 422


def test_who_may_what(rest: AdminProcess) -> None:
    nobody = rest.call("GET", "/v1/topics", token=None)
    assert (nobody.status, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="hapax"')
    assert rest.call("GET", "/v1/topics", token=ADMIN_TOKEN + "x").status == 401
    assert rest.call("GET", "/v1/topics", token=None, headers={"Authorization": f"Basic {ADMIN_TOKEN}"}).status == 401
    assert rest.call("GET", "/v1/topics", token=READER_TOKEN).status == 200
    refused = rest.call("POST", "/v1/topics", {"name": "x"}, token=READER_TOKEN)
    assert (refused.status, refused.json["detail"][:19]) == (403, "viewer may only rea")
    assert rest.call("GET", "/openapi.json", token=None).status == 200


def test_a_file_of_tokens_that_changes(rest: AdminProcess) -> None:
    from integration.waiting import wait_until

    before = rest.tokens.read_text()
    rest.tokens.write_text(before + "third read-only third-token-000001\n")
    wait_until(lambda: rest.call("GET", "/v1/version", token="third-token-000001").status == 200, "third token")
    rest.tokens.write_text("nonsense\n")
    wait_until(lambda: "last good version" in rest.log.read_text() or not rest.get("/v1/version"), "refusal")
    assert rest.call("GET", "/v1/version", token="third-token-000001").status == 200
    rest.tokens.write_text(before)
    wait_until(lambda: rest.call("GET", "/v1/version", token="third-token-000001").status == 401, "end of a token")
    assert "third-token" not in rest.log.read_text()


def test_what_is_nothing_is_said_so(rest: AdminProcess) -> None:
    assert rest.call("GET", "/v2").status == 404
    wrong = rest.call("PUT", "/v1/topics", {})
    assert wrong.status == 405
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert rest.call("POST", "/v1/topics", b"{", headers={"Content-Type": "application/json"}).status == 400
    unknown = rest.call("POST", "/v1/topics", {"name": "x", "partitoins": 3})
    assert (unknown.status, unknown.json["errors"][0]["where"]) == (422, "body.partitoins")
    assert rest.call("GET", "/v1/topics?limitt=3").status == 422
    assert rest.call("GET", "/v1/topics?limit=3&limit=4").status == 422
    assert rest.call("POST", "/v1/topics", {"name": "a b"}).status == 422
    for answered in (wrong, unknown):
        assert answered.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail"} <= set(answered.json)


def test_head_is_get_without_its_body(rest: AdminProcess, topic: str) -> None:
    for path, status in (
        (f"/v1/topics/{topic}", 200), ("/v1/topics/nowhere", 404), ("/v1/health", 200), ("/openapi.json", 200)):
        got, headed = rest.call("GET", path), rest.call("HEAD", path)
        assert (got.status, headed.status, headed.body) == (status, status, b"")
        for name in ("content-type", "content-length", "etag"):
            assert headed.headers.get(name) == got.headers.get(name), path
    assert rest.call("HEAD", "/v1/topics", token=None).status == 401
    assert rest.call("HEAD", "/v1/topics", token=READER_TOKEN).status == 200
    assert rest.call("HEAD", "/v1/groups/some/reset").status == 405
