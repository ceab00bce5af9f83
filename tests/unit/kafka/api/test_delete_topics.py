"""DeleteTopics: by name and by id, and never what was not meant."""

from __future__ import annotations

import uuid

from hapax.core.errors import ErrorCode
from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create


def test_delete_topics_by_name_and_by_id() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        made = await create(node, creatable("a"), creatable("b"), creatable("c"))
        for version in (1, 5):
            name = "a" if version == 1 else "b"
            answer = await node.ask(
                "DeleteTopics", version, topic_names=[name, "no-such", "__hapax_events"], timeout_ms=5000)
            assert [(r.name, r.error_code) for r in answer.responses] == [
                (name, 0), ("no-such", 3), ("__hapax_events", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
            assert node.view.topic(name) is None
        state = messages.DeleteTopicsRequest.DeleteTopicState
        answer = await node.ask("DeleteTopics", 6, timeout_ms=5000, topics=[
            state(name=None, topic_id=made["c"].topic_id), state(name=None, topic_id=uuid.UUID(int=9)),
            state(name="both", topic_id=uuid.UUID(int=9)), state(name=None, topic_id=None),
            state(name="twice", topic_id=None), state(name="twice", topic_id=None),
        ])
        assert [r.error_code for r in answer.responses] == [0, 100, 42, 42, 42]
        assert answer.responses[0].name == "c"
        assert node.view.topic("c") is None

    run(scenario)


def test_a_topic_that_is_named_by_id_and_by_name_is_not_deleted() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        made = await create(node, creatable("a"), creatable("b"))
        state = messages.DeleteTopicsRequest.DeleteTopicState
        answer = await node.ask("DeleteTopics", 6, timeout_ms=5000, topics=[
            state(name="a", topic_id=None), state(name=None, topic_id=made["a"].topic_id),
            state(name=None, topic_id=made["b"].topic_id),
        ])
        assert [(r.name, r.error_code) for r in answer.responses] == [("a", 42), (None, 42), ("b", 0)]
        assert node.view.topic("a") is not None and node.view.topic("b") is None

    run(scenario)


def test_deletion_by_id_spares_the_topic_that_was_made_again_under_the_name() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        old = (await create(node, creatable("a")))["a"].topic_id
        other = await AnsweringNode(world).start()
        follower = node.view._follower
        assert follower is not None
        follower.cancel()  # this node's image stays as it is
        await other.ask("DeleteTopics", 5, topic_names=["a"], timeout_ms=5000)
        made = (await create(other, creatable("a")))["a"].topic_id
        answer = await node.ask("DeleteTopics", 6, timeout_ms=5000, topics=[
            messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=old)])
        assert [r.error_code for r in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_ID]
        topic = other.view.topic("a")
        assert topic is not None and uuid.UUID(bytes=topic.topic_id) == made

    run(scenario)


def test_deletion_may_be_disabled() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, delete_topic_enable=False)
        await create(node, creatable("a"))
        answer = await node.ask("DeleteTopics", 5, topic_names=["a"], timeout_ms=5000)
        assert answer.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED

    run(scenario)


def test_a_topic_is_created_anew_at_a_node_that_has_not_heard_of_its_deletion() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        other = await AnsweringNode(world).start()
        first = (await create(node, creatable("a")))["a"]
        follower = node.view._follower
        assert follower is not None
        follower.cancel()  # this node's image stays as it is
        await other.ask("DeleteTopics", 5, topic_names=["a"], timeout_ms=5000)
        again = (await create(node, creatable("a")))["a"]
        assert again.error_code == ErrorCode.NONE and again.topic_id != first.topic_id
        assert (await create(node, creatable("a")))["a"].error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    run(scenario)
