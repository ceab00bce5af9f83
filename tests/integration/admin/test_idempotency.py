"""A POST that is repeated under its key, whoever is asked."""

from __future__ import annotations

import uuid
from pathlib import Path

from hapax.local.cluster import LocalCluster
from integration.admin_process import READER_TOKEN, AdminProcess


def test_another_replica_answers_the_same(rest: AdminProcess, cluster: LocalCluster, tmp_path: Path) -> None:
    name, key = f"once-{uuid.uuid4().hex[:8]}", {"Idempotency-Key": uuid.uuid4().hex}
    body = {"name": name, "partitions": 2}
    first = rest.call("POST", "/v1/topics", body, headers=key)
    assert (first.status, "idempotency-replayed" in first.headers) == (201, False)
    assert rest.call("PATCH", f"/v1/topics/{name}/config", {"set": {"retention.ms": "1"}}).status == 200
    other = AdminProcess(cluster, tmp_path).start()
    try:
        again = other.call("POST", "/v1/topics", body, headers=key)
        assert (again.status, again.body, again.headers["etag"]) == (201, first.body, first.headers["etag"])
        assert again.headers["idempotency-replayed"] == "true"
        wrong = other.call("POST", "/v1/topics", body | {"partitions": 3}, headers=key)
        assert (wrong.status, "another request" in wrong.json["detail"]) == (422, True)
        assert other.call("POST", "/v1/topics", body).json["code"] == "TOPIC_ALREADY_EXISTS"
        assert other.call("POST", "/v1/topics", body, headers=key, token=READER_TOKEN).status == 403
    finally:
        assert other.close() == 0
    assert rest.call("POST", "/v1/topics", body, headers={"Idempotency-Key": "a b"}).status == 422
    assert rest.call("DELETE", f"/v1/topics/{name}").status == 204
    assert rest.call("POST", "/v1/topics", body, headers=key).body == first.body, "it is an answer, not a topic"
