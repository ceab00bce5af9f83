"""What every log holds, under elections whose controller learns late who died: whatever was committed is in the log of
each leader, as long as any copy that was promised to be whole still has it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from hapax.core.cluster.failover import (
    Live,
    PartitionState,
    accept,
    complete,
    is_unclean,
    keeps_a_copy,
    prefer,
    reassign,
    settle,
)
from hapax.core.partition.replication import Eligible, Replication
from hapax.core.types import LeaderEpoch, NodeId, RegistrationEpoch

HISTORIES = 600
STEPS = 60
NODES = tuple(NodeId(n) for n in range(4))
REPLICAS = NODES[:3]


@dataclass
class BrokerModel:
    registration: int
    """Of the process that runs, or ran last."""
    intact_since: int = 1
    alive: bool = True
    end: int = 0
    """It has everything below, in the newest leader's history."""
    durable: bool = True
    """A crash takes nothing; else it takes everything."""


@dataclass
class World:
    """One partition: its record, the leader's process, and every node's log as a number of records."""

    chance: random.Random
    nodes: dict[NodeId, BrokerModel] = field(default_factory=dict)
    known: dict[NodeId, Live] = field(default_factory=dict)
    """What the controller sees: the dead stay there until their registrations end."""
    revision: int = 1
    registrations: int = 10
    committed: int = 0
    least: int = 1
    """min.insync.replicas"""
    rescued: int = 0

    def __post_init__(self) -> None:
        self.least = self.chance.randint(1, 3)
        for node in NODES:
            self.nodes[node] = BrokerModel(int(node) + 1, durable=self.chance.random() < 0.5)
            self._register(node)
        self.record = PartitionState(
            NODES[0], LeaderEpoch(0), RegistrationEpoch(1), REPLICAS, REPLICAS, LeaderEpoch(0),
            tuple(RegistrationEpoch(int(n) + 1) for n in REPLICAS))
        self.leading: tuple[int, int, Replication] | None = None
        """Leader epoch, process, and what it knows."""

    def _register(self, node: NodeId) -> None:
        each = self.nodes[node]
        self.known[node] = Live(RegistrationEpoch(each.registration), RegistrationEpoch(each.intact_since))

    def _store(self, record: PartitionState) -> None:
        if record is self.record:
            return
        before, self.record = self.record, record
        self.revision += 1
        assert not is_unclean(before, record)
        for node in NODES:
            if node not in record.replicas:
                self.nodes[node].end = 0  # it removes its copy

    def check(self) -> None:
        """Who is in sync or was passed over has what is committed, as long as its folder lost nothing."""
        record = self.record
        named = [(node, record.member_registration(node)) for node in record.isr] + [*record.passed_over]
        for node, registration in named:
            if node == record.leader and not record.accepted:
                continue  # the last resort has what it has: see `_leads`
            assert not self._whole(node, registration) or self.nodes[node].end >= self.committed, (node, self)

    def _whole(self, node: NodeId, registration: RegistrationEpoch) -> bool:
        each = self.nodes[node]
        return (each.alive or each.durable) and registration >= each.intact_since

    def _leads(self, leader: BrokerModel) -> None:
        """What the leader lacks is lost. It may lack something only where all others that count do."""
        self.check()
        record = self.record
        counts = [(node, record.member_registration(node)) for node in record.isr] + [*record.passed_over]
        assert leader.end >= self.committed or not any(
            node != record.leader and self._whole(node, process) for node, process in counts), self
        self.committed = min(self.committed, leader.end)
        for node in self.nodes.values():
            node.end = min(node.end, leader.end)  # what the leader lacks is cut

    # --- what happens -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        name = self.chance.choices(
            ["die", "back", "seen", "settle", "lead", "copy", "commit", "lag", "config", "move", "prefer", "new",
             "rescue"],
            [4, 4, 4, 6, 6, 8, 6, 2, 1, 1, 1, 1, 1])[0]
        getattr(self, name)()

    def _one(self, *, alive: bool) -> NodeId | None:
        those = [node for node in NODES if self.nodes[node].alive == alive]
        return self.chance.choice(those) if those else None

    def die(self) -> None:
        for _ in range(self.chance.choice((1, 1, 3))):
            node = self._one(alive=True)
            if node is not None:
                self.nodes[node].alive = False
                if not self.nodes[node].durable:
                    self.nodes[node].end = self.chance.randint(0, self.nodes[node].end)

    def back(self) -> None:
        node = self._one(alive=False)
        if node is not None:
            each = self.nodes[node]
            self.registrations += 1
            each.alive, each.registration = True, self.registrations
            if not each.durable:
                each.intact_since = self.registrations
            self._register(node)

    def seen(self) -> None:
        """A dead node's registration ends."""
        dead = [node for node in self.known if not self.nodes[node].alive]
        if dead:
            del self.known[self.chance.choice(dead)]

    def settle(self) -> None:
        self._store(settle(self.record, self.known))

    def rescue(self) -> None:
        """An unclean election, where one that was passed over is there: it loses nothing."""
        dark = settle(self.record, self.known)
        if dark.leader < 0 and any(node in self.known for node, _ in dark.passed_over):
            self._store(settle(self.record, self.known, unclean=True))
            self.rescued += 1

    def prefer(self) -> None:
        self._store(prefer(self.record, self.known))

    def move(self) -> None:
        if self.record.adding or self.record.removing:
            self._store(complete(self.record, self.known))
            return
        target = tuple(self.chance.sample(NODES, 3))
        if keeps_a_copy(self.record, target):
            self._store(reassign(self.record, target))

    def config(self) -> None:
        self.least = self.chance.randint(1, 3)
        if (knows := self._knows()) is not None:
            knows.require(self.least)

    # --- the leader ---------------------------------------------------------------------------------------------------

    def _knows(self) -> Replication | None:
        """What the leader's process knows, where it lives and was told of its part."""
        record = self.record
        if record.leader < 0 or not self.nodes[record.leader].alive:
            return None
        if record.leader_registration != self.nodes[record.leader].registration or self.leading is None:
            return None
        epoch, process, knows = self.leading
        return knows if (epoch, process) == (record.leader_epoch, record.leader_registration) else None

    def lead(self) -> None:
        """Hears of the record; accepts, or changes the set."""
        record = self.record
        if record.leader < 0:
            return
        leader = self.nodes[record.leader]
        if not leader.alive or record.leader_registration != leader.registration:
            return
        named = [node for node, _ in record.passed_over]
        knows = self._knows()
        if knows is None:
            knows = Replication(
                record.leader, record.replicas, record.isr, self.revision, log_end=leader.end, min_insync=self.least,
                now_ms=0, passed_over=named, accepted=record.accepted)
            self._leads(leader)
            self.leading = record.leader_epoch, leader.registration, knows
        knows.stored(
            record.replicas, record.isr, self.revision, log_end=leader.end, now_ms=0, passed_over=named,
            accepted=record.accepted)
        knows.synced(leader.end)
        if not record.accepted:
            self._store(accept(record, min(self.least, len(record.replicas))))
        elif self.chance.random() < 0.5:  # its writes come later than it hears
            self._propose(knows, ())

    def _propose(self, knows: Replication, lagging: tuple[NodeId, ...]) -> None:
        record = self.record
        live = {node: Eligible(each.registration, True) for node, each in self.known.items()}
        proposal = knows.decide_isr(self.committed, live, lagging)
        if proposal is None or proposal.revision != self.revision:
            return
        if any(live[node].registration != self.nodes[node].registration for node in proposal.added):
            return
        knows.sent(proposal)
        registrations = {node: record.member_registration(node) for node in record.isr}
        registrations |= {node: live[node].registration for node in proposal.added}
        left = dict(record.passed_over) | registrations
        self._store(replace(
            record, isr=proposal.isr, isr_registrations=tuple(registrations[node] for node in proposal.isr),
            passed_over=tuple((node, left[node]) for node in proposal.passed_over)))

    def lag(self) -> None:
        knows = self._knows()
        if knows is not None and self.record.accepted and knows.pending is None:
            others = [node for node in self.record.isr if node != self.record.leader]
            self._propose(knows, tuple(self.chance.sample(others, min(1, len(others)))))

    def copy(self) -> None:
        """The leader writes, and some follow it."""
        knows = self._knows()
        if knows is None or not self.record.accepted:
            return
        leader = self.nodes[self.record.leader]
        leader.end += self.chance.randint(0, 2)
        knows.synced(leader.end)
        for node in self.record.replicas:
            each = self.nodes[node]
            if node != self.record.leader and each.alive and self.chance.random() < 0.7:
                each.end = leader.end
                knows.fetched(node, RegistrationEpoch(each.registration), each.end)

    def new(self) -> None:
        """A follower copies from the start, where the leader lets it."""
        knows = self._knows()
        followers = [node for node in self.record.replicas if node != self.record.leader]
        if knows is not None and followers:
            node = self.chance.choice(followers)
            if self.nodes[node].alive and knows.handed(node, self.nodes[self.record.leader].end, 0):
                self.nodes[node].end = 0

    def commit(self) -> None:
        knows = self._knows()
        if knows is not None and self.record.accepted:
            self.committed = max(self.committed, knows.committed())


@pytest.mark.parametrize("part", range(4))
def test_every_leader_has_what_was_committed(part: int) -> None:
    recalled = rescued = 0
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        world = World(random.Random(seed))
        for _ in range(STEPS):
            before = world.record
            try:
                world.step()
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            recalled += world.record.leader >= 0 and world.record.leader in dict(before.passed_over)
        rescued += world.rescued
    assert recalled > 5 and rescued > 5, "those that were passed over lead now and then"
