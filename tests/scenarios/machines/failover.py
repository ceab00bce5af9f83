"""Drives the decisions about one partition as the controller makes them, with its leader's word in between.

    replicas 0,1,2        a new partition; its live replicas are in sync
    up N [lost]           a process of broker N registers; `lost`: its folder lost writes, or is empty
    down N                its registration is gone
    standing N fit|unfit|stopping
    least N               min.insync.replicas, 1 unless it is said
    accept                the leader says that it takes writes
    joins N / lags N      the leader takes a replica into the in-sync set, or out of it
    alone                 it hears that others left the set
    settle [unclean]      what the controller does after brokers came and went
    prefer [asked]        what it does when nothing is urgent; `asked`: what it does when a person asks for it
    reassign 3,1 / cancel / complete
    state                 the partition again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hapax.core.cluster.failover import (
    FIT,
    STOPPING,
    UNFIT,
    Live,
    PartitionState,
    accept,
    cancel,
    complete,
    is_unclean,
    keeps_a_copy,
    left_out,
    prefer,
    reassign,
    settle,
)
from hapax.core.types import NO_LEADER_EPOCH, LeaderEpoch, NodeId, RegistrationEpoch
from scenarios.script import Command, ScriptError

RANKS = {"fit": FIT, "unfit": UNFIT, "stopping": STOPPING}


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.brokers: dict[NodeId, Live] = {}
        self.intact: dict[NodeId, RegistrationEpoch] = {}
        self.registrations = 0
        self.least = 1
        self.partition: PartitionState

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, f"do_{command.name}", None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        yield from method(command)

    # --- the world

    def do_replicas(self, command: Command) -> Iterable[str]:
        nodes = _nodes(command)
        isr = tuple(node for node in nodes if node in self.brokers)
        self.partition = PartitionState(
            isr[0], LeaderEpoch(0), self.brokers[isr[0]].registration, nodes, isr, NO_LEADER_EPOCH,
            tuple(self.brokers[node].registration for node in isr))
        yield self._state()

    def do_up(self, command: Command) -> Iterable[str]:
        node = _node(command)
        self.registrations += 1
        registration = RegistrationEpoch(self.registrations)
        if command.flag("lost") or node not in self.intact:
            self.intact[node] = registration
        self.brokers[node] = Live(registration, self.intact[node])
        return ()

    def do_down(self, command: Command) -> Iterable[str]:
        del self.brokers[_node(command)]
        return ()

    def do_standing(self, command: Command) -> Iterable[str]:
        node = _node(command)
        self.brokers[node] = self.brokers[node]._replace(rank=RANKS[command.positional[1]])
        return ()

    def do_least(self, command: Command) -> Iterable[str]:
        """min.insync.replicas"""
        self.least = int(command.positional[0])
        return ()

    # --- the leader's word

    def do_accept(self, command: Command) -> Iterable[str]:
        self.partition = accept(self.partition, self.least)
        yield self._state()

    def do_joins(self, command: Command) -> Iterable[str]:
        node, before = _node(command), self.partition
        self.partition = replace(
            before, isr=(*before.isr, node),
            isr_registrations=(*before.isr_registrations, self.brokers[node].registration),
            passed_over=self._passed_over((*before.isr, node)))
        yield self._state()

    def do_lags(self, command: Command) -> Iterable[str]:
        node, before = _node(command), self.partition
        left = tuple(n for n in before.isr if n != node)
        self.partition = replace(
            before, isr=left, isr_registrations=tuple(before.member_registration(n) for n in left),
            passed_over=self._passed_over(left))
        yield self._state()

    def do_alone(self, command: Command) -> Iterable[str]:
        """It heard of the set that the controller made."""
        self.partition = replace(self.partition, passed_over=self._passed_over(self.partition.isr))
        yield self._state()

    def _passed_over(self, isr: tuple[NodeId, ...]) -> tuple[tuple[NodeId, RegistrationEpoch], ...]:
        enough = self.partition.accepted and len(isr) >= self.least
        return () if enough else left_out(self.partition, isr)

    # --- the controller

    def do_settle(self, command: Command) -> Iterable[str]:
        return self._becomes(settle(
            self.partition, self.brokers, unclean=command.flag("unclean")))

    def do_prefer(self, command: Command) -> Iterable[str]:
        return self._becomes(prefer(self.partition, self.brokers, while_moving=command.flag("asked")))

    def do_complete(self, command: Command) -> Iterable[str]:
        return self._becomes(complete(self.partition, self.brokers))

    def do_reassign(self, command: Command) -> Iterable[str]:
        target = _nodes(command)
        if not keeps_a_copy(self.partition, target):
            return ["refused: it would remove the last in-sync copy"]
        return self._becomes(settle(reassign(self.partition, target), self.brokers))

    def do_cancel(self, command: Command) -> Iterable[str]:
        if not keeps_a_copy(self.partition, self.partition.original):
            return ["refused: it would remove the last in-sync copy"]
        return self._becomes(settle(cancel(self.partition), self.brokers))

    def do_state(self, command: Command) -> Iterable[str]:
        yield self._state()

    def _becomes(self, after: PartitionState) -> Iterable[str]:
        before, self.partition = self.partition, after
        if after is before:
            return ["nothing to do"]
        return [self._state() + (", unclean" if is_unclean(before, after) else "")]

    def _state(self) -> str:
        p = self.partition
        text = f"leader {p.leader if p.leader >= 0 else 'none'}, epoch {p.leader_epoch}"
        text += ", accepted" if p.accepted else ""
        text += f", in sync {_text(p.isr)}, replicas {_text(p.replicas)}"
        if p.accepted and p.passed_over:
            text += f", passed over {_text(tuple(node for node, _ in p.passed_over))}"
        if p.adding or p.removing:
            text += f", adding {_text(p.adding)}, removing {_text(p.removing)}"
        return text


def _nodes(command: Command) -> tuple[NodeId, ...]:
    return tuple(NodeId(int(part)) for part in command.positional[0].split(","))


def _node(command: Command) -> NodeId:
    return NodeId(int(command.positional[0]))


def _text(nodes: tuple[NodeId, ...]) -> str:
    return ",".join(map(str, nodes)) or "none"
