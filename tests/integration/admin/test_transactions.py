"""Transactions and producers by REST."""

from __future__ import annotations

import pytest

from hapax.client import FencedError, HapaxError, TopicPartition
from hapax.client.blocking import Leases, Producer
from integration.admin_process import READER_TOKEN, AdminProcess
from integration.waiting import wait_until


def test_an_open_transaction_is_seen_and_ended(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    name = f"{topic}/tx"
    path = f"/v1/transactions/{name.replace('/', '%2F')}"
    with Producer({"bootstrap.servers": cluster_bootstrap, "transactional.id": name}) as producer:
        producer.begin()
        for number in range(3):
            producer.send(topic, b"%d" % number, partition=1)
        producer.flush()
        found = rest.get(path)
        assert (found["state"], found["partition_count"]) == ("Ongoing", 1)
        assert found["partitions"] == [
            {"topic": topic, "partition": 1, "open": True, "marker": "not due", "first_offset": 0, "records": 3}]
        listed = rest.get(f"/v1/transactions?state=Ongoing&prefix={name.replace('/', '%2F')}")["items"]
        assert [each["transactional_id"] for each in listed] == [name]
        (known,) = rest.get(f"/v1/topics/{topic}/partitions/1/producers")["items"]
        assert (known["producer_id"], known["transaction_start_offset"]) == (found["producer_id"], 0)
        assert rest.get(f"/v1/producers/{found['producer_id']}")["items"] == [known]
        assert rest.call("GET", "/v1/producers/9223372036854775807").status == 404
        silent = rest.get("/v1/hanging-transactions?older_than_ms=0")["items"]
        assert [each["producer_id"] for each in silent if each["topic"] == topic] == [found["producer_id"]]
        assert not [each for each in rest.get("/v1/hanging-transactions")["items"] if each["topic"] == topic]
        named = {"serial": found["serial"]}
        assert rest.call("POST", f"{path}/abort", named).status == 422, "a reason is needed"
        assert rest.call("POST", f"{path}/abort", {"reason": "which one?"}).status == 422, "so is its name"
        later = rest.call("POST", f"{path}/abort", {"reason": "not it", "serial": found["serial"] + 1})
        assert (later.status, later.json["code"], rest.get(path)["state"]) == (409, "INVALID_TXN_STATE", "Ongoing")
        aborted = rest.call("POST", f"{path}/abort", {"reason": "the test ends it", **named})
        assert (aborted.status, aborted.json["before"]) == (200, "Ongoing")
        wait_until(lambda: rest.get(path)["state"] in ("CompleteAbort", "Empty"), "end of the transaction")
        with pytest.raises(HapaxError) as told:
            producer.commit()
        assert isinstance(told.value, FencedError) and "the test ends it" in str(told.value)
        again = rest.call("POST", f"{path}/abort", {"reason": "once more", **named})
        assert (again.status, again.json["before"]) == (200, "CompleteAbort"), "its answer may have been lost"
    with Producer({"bootstrap.servers": cluster_bootstrap, "transactional.id": name}) as successor:
        successor.begin()
        successor.send(topic, b"of the successor", partition=1)
        successor.flush()
        again = rest.call("POST", f"{path}/abort", {"reason": "and once more", **named})
        assert again.json["code"] == "INVALID_TXN_STATE"
        successor.commit()
    fenced = [each for each in rest.get("/v1/events?event=producer_fenced&limit=500")["items"] if name in str(each)]
    assert fenced and "the test ends it" in str(fenced[0])
    assert rest.call("GET", "/v1/transactions/nobody").json["code"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert rest.call("GET", "/v1/transactions?state=Sleeping").status == 422


def test_leases_are_listed_with_their_progress(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    with Leases({"bootstrap.servers": cluster_bootstrap}) as leases:
        lease = leases.take(topic, [TopicPartition(topic, 0)], expire_ms=60_000, holder="a test")
        (found,) = rest.get(f"/v1/leases?prefix={topic}")["items"]
        assert (found["producer_id"], found["holder"]) == (lease.producer_id, "a test")
        detail = rest.get(f"/v1/leases/{topic}")
        assert detail["progress"][0]["records"] == 0
        path = f"/v1/leases/{topic}"
        assert rest.call("DELETE", f"{path}?generation={lease.generation + 1}").status == 409
        assert rest.call("DELETE", path).status == 422
        assert rest.call("DELETE", f"{path}?generation={lease.generation}", token=READER_TOKEN).status == 403
        assert rest.call("DELETE", f"{path}?generation={lease.generation}").status == 204
        with pytest.raises(HapaxError):
            leases.renew(lease)
        again = leases.take(topic, [TopicPartition(topic, 0)], expire_ms=60_000)
        assert again.former_holder is None
        leases.release(again)
    assert rest.call("GET", "/v1/leases/nobody").status == 404
    assert rest.call("DELETE", "/v1/leases/nobody?generation=1").status == 404
