"""Groups by REST: offsets, lag as readers will see it, resets, ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from hapax.client import ConsumerGroup, NewTopic, TopicPartition
from hapax.client.blocking import Admin, Consumer, Producer
from integration.admin_process import AdminProcess
from integration.waiting import wait_until


@pytest.fixture
def group(rest: AdminProcess) -> Iterator[str]:
    name = f"group/{uuid.uuid4().hex[:8]}"
    yield name
    rest.call("DELETE", f"/v1/groups/{name.replace('/', '%2F')}")


def path_of(group: str) -> str:
    return f"/v1/groups/{group.replace('/', '%2F')}"


def transaction(producer: Producer, topic: str, count: int, commit: bool) -> None:
    producer.begin()
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=0)
    if commit:
        producer.commit()
    else:
        producer.flush()
        producer.abort()


def test_the_lag_that_a_committed_reader_has(
    rest: AdminProcess, cluster_bootstrap: str, topic: str, group: str
) -> None:
    servers = {"bootstrap.servers": cluster_bootstrap}
    with Producer(servers | {"transactional.id": topic}) as producer:
        transaction(producer, topic, 10, commit=True)  # offsets 0-9, a marker at 10
        transaction(producer, topic, 20, commit=False)  # 11-30, a marker at 31
        transaction(producer, topic, 5, commit=True)  # 32-36, a marker at 37
    with Consumer(servers | {"group.id": group, "enable.auto.commit": False}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 7})
    with Producer(servers | {"transactional.id": f"{topic}-open"}) as producer:
        producer.begin()
        producer.send(topic, b"nobody sees it", partition=0)
        producer.flush()
        found = rest.get(f"{path_of(group)}/lag")
        described = rest.get(path_of(group))
        with Admin(servers) as admin:
            told = admin.describe_group(group, count_bytes=1 << 20).lag
            assert admin.describe_group(group).lag is None
        producer.abort()
    assert found["items"] == [{
        "topic": topic, "partition": 0, "committed": 7, "first": 0, "last_stable": 38, "high_watermark": 39,
        "lag": 32, "readable": 8, "counted_to": 38,
    }]
    assert (found["lag"], found["readable"], found["complete"]) == (32, 8, True)
    assert described["lag"] == found["items"] and described["members"] == []
    assert rest.get(f"{path_of(group)}?lag=false")["lag"] is None
    assert told is not None and told[TopicPartition(topic, 0)].readable == 8
    with Consumer(servers | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 7)
        read: list[object] = []
        while len(read) < 8:
            read += consumer.poll()
        assert len(read) == 8, "as many as was told"
    uncounted = rest.get(f"{path_of(group)}/lag?count=false")
    assert (uncounted["readable"], uncounted["items"][0]["readable"], uncounted["complete"]) == (None, None, False)


def test_the_lag_in_a_topic_that_grows_is_deleted_and_made_anew(
    rest: AdminProcess, cluster_bootstrap: str, topic: str, group: str
) -> None:
    servers, other = {"bootstrap.servers": cluster_bootstrap}, f"{topic}-again"

    def commit(*partitions: tuple[str, int]) -> None:
        with Consumer(servers | {"group.id": group, "enable.auto.commit": False}) as consumer:
            where = [TopicPartition(name, index) for name, index in partitions]
            consumer.assign(where)
            consumer.commit(dict.fromkeys(where, 1))

    def lag() -> dict[tuple[str, int], tuple[int, int]]:
        items = rest.get(f"{path_of(group)}/lag")["items"]
        return {(each["topic"], each["partition"]): (each["lag"], each["readable"]) for each in items}

    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(other, 1)])
        for name in (topic, topic, other, other, other):
            producer.send(name, b"x", partition=0)
        producer.flush()
        commit((topic, 0), (other, 0))
        assert lag() == {(topic, 0): (1, 1), (other, 0): (2, 2)}
        admin.create_partitions({other: 2})
        wait_until(lambda: rest.get(f"/v1/topics/{other}")["partitions"] == 2, "the second partition")
        commit((other, 1))
        # The new partition begins and ends below what was committed of it.
        assert lag() == {(topic, 0): (1, 1), (other, 0): (2, 2), (other, 1): (0, 0)}
        admin.delete_topics([other])
        wait_until(lambda: lag() == {(topic, 0): (1, 1)}, "the topic is gone")
        admin.create_topics([NewTopic(other, 1)])
        # Its offsets went with the topic, or are above the end of the new one.
        old: tuple[dict[tuple[str, int], tuple[int, int]], ...] = (
            {(topic, 0): (1, 1)}, {(topic, 0): (1, 1), (other, 0): (0, 0)})
        wait_until(lambda: lag() in old, "the new one")
        admin.delete_topics([other])


def test_a_group_is_put_elsewhere_and_ends(
    rest: AdminProcess, cluster_bootstrap: str, topic: str, group: str
) -> None:
    with Producer({"bootstrap.servers": cluster_bootstrap}) as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=number % 2, timestamp_ms=1_000 + number)
        producer.flush()
    path = path_of(group)
    assert rest.call("GET", f"{path}/offsets").status == 404

    def reset(to: dict[str, object], dry_run: bool = False) -> list[tuple[int, int]]:
        done = rest.call("POST", f"{path}/reset", {"to": to, "topics": [topic], "dry_run": dry_run})
        assert done.status == 200, done
        return [(each["before"], each["after"]) for each in done.json["items"]]

    assert reset({"latest": True}, dry_run=True) == [(-1, 5), (-1, 5)]
    assert rest.call("GET", f"{path}/offsets").status == 404, "a dry run leaves all as it is"
    assert reset({"latest": True}) == [(-1, 5), (-1, 5)]
    assert reset({"shift": -2}) == [(5, 3), (5, 3)]
    assert reset({"shift": -2000}) == [(3, 0), (3, 0)]
    assert reset({"time_ms": 1_004}) == [(0, 2), (0, 2)]
    assert reset({"time_ms": 9_999}) == [(2, 5), (2, 5)]
    assert reset({"offset": 4}) == [(5, 4), (5, 4)]
    assert reset({"earliest": True}) == [(4, 0), (4, 0)]
    assert [each["offset"] for each in rest.get(f"{path}/offsets")["items"]] == [0, 0]
    for wrong in ({}, {"earliest": True, "latest": True}, {"offset": 1, "shift": 1}, {"earliest": False}):
        answered = rest.call("POST", f"{path}/reset", {"to": wrong, "topics": [topic]})
        assert answered.status == 422, wrong
    listed = rest.get(f"/v1/groups?prefix={group.replace('/', '%2F')}")["items"]
    assert [(each["group"], each["committed"]) for each in listed] == [(group, 2)]
    assert rest.call("DELETE", f"{path}/offsets/{topic}/1").json["deleted"] == 1
    assert [each["partition"] for each in rest.get(f"{path}/offsets")["items"]] == [0]
    assert rest.call("DELETE", path).json["deleted"] == 1
    assert rest.call("DELETE", path).json["code"] == "GROUP_ID_NOT_FOUND"


def test_a_group_that_a_transaction_is_about_to_move_stays(
    rest: AdminProcess, cluster_bootstrap: str, topic: str, group: str
) -> None:
    with Producer({"bootstrap.servers": cluster_bootstrap, "transactional.id": topic}) as producer:
        producer.begin()
        producer.send(topic, b"x", partition=0)
        producer.send_offsets({TopicPartition(topic, 0): 1}, ConsumerGroup(group))
        assert rest.get(f"{path_of(group)}/offsets")["items"][0]["pending"] is True
        refused = rest.call("DELETE", path_of(group))
        assert (refused.status, refused.json["code"]) in ((409, "UNSTABLE_OFFSET_COMMIT"),)
        producer.commit()
    assert rest.get(f"{path_of(group)}/offsets")["items"][0]["offset"] == 1
