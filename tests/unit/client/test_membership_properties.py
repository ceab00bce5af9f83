"""Memberships of the native client under faults: no partition has two owners, and afterwards each has one."""

from __future__ import annotations

from collections import Counter

import pytest

from hapax.client.membership import Owned
from unit.client.group_world import BEAT_MS, POLL_MS, SESSION_MS, Client, World

PROTOCOLS = ("cooperative", "eager", "consumer")
HISTORIES = 25
FAULTY_MS = 120_000


def history(seed: int, protocol: str, restless: bool = False, deletes: bool = False) -> World:
    """`restless`: most faults are of one kind, see `go_and_come`. `deletes`: a topic is deleted and made again."""
    world = World(seed, protocol)
    random = world.random
    instances: dict[str, Client | None] = {}
    for number in range(2):
        world.new_client(f"i{number}" if random.random() < 0.3 else None)
    for client in world.clients:
        if client.instance_id:
            instances[client.instance_id] = client

    def living() -> list[Client]:
        return [each for each in world.clients if not each.gone]

    over = False

    def go_and_come(idle: Client, leaver: Client) -> None:
        """One member leaves and another comes, while a third one does not poll and, for a part of the time, gets no
        answers: what it is given may be taken back before it knows."""
        idle.polls = False
        world.say(f"{idle.name} does not poll")
        world.leave(leaver)

        def come() -> None:
            if not over:
                world.new_client()

        def deafen() -> None:
            idle.deaf_until = world.now + random.randrange(1_000, SESSION_MS // 2)
            world.say(f"{idle.name} gets no answers until {idle.deaf_until}")

        comes_at = world.now + random.randrange(1_000, 4_000)
        world.at(comes_at, come)
        world.at(comes_at + random.randrange(-200, 800), deafen)
        world.at(comes_at + random.randrange(1_000, SESSION_MS // 2), lambda: setattr(idle, "polls", True))

    def fault() -> None:
        if over:
            return
        alive = living()
        if restless and len(alive) > 1 and random.random() < 0.8:
            go_and_come(*random.sample(alive, 2))
            world.at(world.now + random.randrange(2_000, 8_000), fault)
            return
        chance = random.random()
        if not alive or (chance < 0.15 and len(alive) < 4):
            free = [name for name, user in instances.items() if user is None or user.gone]
            if free and random.random() < 0.7:
                instances[free[0]] = world.new_client(free[0])
            else:
                world.new_client()
        elif chance < 0.25 and len(alive) > 1:
            world.leave(random.choice(alive))
        elif chance < 0.35 and len(alive) > 1:
            world.crash(random.choice(alive))
        elif chance < 0.5:
            client = random.choice(alive)
            client.frozen_until = world.now + random.randrange(0, 2 * SESSION_MS)
            world.say(f"{client.name} stands still until {client.frozen_until}")
        elif chance < 0.6:
            client = random.choice(alive)
            client.polls = False
            world.say(f"{client.name} does not poll")
            world.at(world.now + random.randrange(0, 2 * POLL_MS), lambda: setattr(client, "polls", True))
        elif chance < 0.75:
            world.fail_over()
        elif chance < 0.78 and "c" not in world.topics.names:
            world.topics.add("c", 1)
            world.topics.add("a", 4)
        elif chance < 0.9:
            client = random.choice(alive)
            for connection in list(client.connections.values()):
                world.break_connection(connection)
        world.at(world.now + random.randrange(100, 8_000), fault)

    def delete() -> None:
        if "b" in world.topics.names and not over and random.random() < 0.5:
            world.topics.delete("b")
        else:
            world.topics.make_again("b")
        world.say("b was deleted" if "b" not in world.topics.names else "b was made again")
        if not over or "b" not in world.topics.names:
            world.at(world.now + random.randrange(3_000, 30_000), delete)

    world.at(world.now + 2_000, fault)
    if deletes:
        world.at(world.now + random.randrange(5_000, 40_000), delete)
    world.hear_of_topics()
    world.run(FAULTY_MS)
    world.faults = False
    if all(each.gone or each.leaves for each in world.clients):
        world.new_client()
    over = True
    return world


@pytest.mark.parametrize("restless", [False, True], ids=["all faults", "restless"])
@pytest.mark.parametrize("protocol", [*PROTOCOLS, "consumer, a topic made again"])
def test_no_partition_has_two_owners_and_in_the_end_each_has_one(protocol: str, restless: bool) -> None:
    for seed in range(HISTORIES):
        world = history(seed, protocol.partition(",")[0], restless, deletes="," in protocol)
        for client in world.clients:
            client.polls = True
        world.run(FAULTY_MS + 3 * SESSION_MS + 3 * POLL_MS)
        living = [each for each in world.clients if not each.gone and not each.leaves]
        check_each_has_one(world, living)
        before = [client.changes for client in living]
        world.run(world.now + 10 * BEAT_MS)
        assert [client.changes for client in living] == before, world.told(f"seed {seed}: not stable")


def check_each_has_one(world: World, living: list[Client]) -> None:
    partitions = {
        Owned(name, p, world.topics.names[name].topic_id if world.protocol == "consumer" else b"")
        for name in ("a", "b") for p in range(world.topics.names[name].partitions)}
    owned = Counter(each for client in living for each in client.holds(world.now))
    assert owned == Counter(dict.fromkeys(partitions, 1)), world.told(f"{owned}")


def test_members_without_faults_give_up_a_topic_that_is_made_again_in_time() -> None:
    """With faults a member may be removed because it did not give up what it had to within the rebalance time-out, and
    what it forgot is then free in any case. Without any, that must not be needed."""
    for seed in range(HISTORIES):
        world = World(seed, "consumer")
        world.faults = False
        for number in range(1 + seed % 3):
            world.new_client(f"i{number}" if world.random.random() < 0.3 else None)
        world.run(10 * BEAT_MS)
        for _ in range(4):
            world.topics.delete("b")
            world.run(world.now + world.random.choice([0, world.random.randrange(1, 4 * BEAT_MS)]))
            world.topics.make_again("b")
            if world.random.random() < 0.3:
                world.new_client()
            world.run(world.now + POLL_MS + 10 * BEAT_MS)
            assert not world.fenced and not world.lost, world.told(f"seed {seed}")
            check_each_has_one(world, world.clients)
