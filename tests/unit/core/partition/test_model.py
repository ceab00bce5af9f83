"""The partition machine against a simple model: clients that retry, a network that delays and repeats, a broker that
dies and loses what it had not synced, a coordinator that repeats its markers, snapshots anywhere.

The model knows nothing of windows, rows or indexes: it scans the log.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hapax.core.batch import BatchHeader
from hapax.core.control import Marker, ProducerFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import (
    APPEND,
    CLIENT,
    NEED_VERIFICATION,
    VERIFIED,
    Duplicate,
    PartitionMachine,
)
from hapax.core.sequence import MAX_SEQUENCE, advance
from scenarios.partition_log import Entry, LoggedPartition, data_header, digest

EXPIRY_MS = 1000
LEASED = 505
@dataclass(frozen=True)
class Batch:
    header: BatchHeader
    values: tuple[str, ...]


@dataclass
class Client:
    """A producer that follows the protocol: at most five batches in flight, retried until they are answered."""

    pid: int
    version: int = 0
    """Of its transactions; 0: none."""
    epoch: int = 0
    next_sequence: int = MAX_SEQUENCE - 5
    in_flight: list[Batch] = field(default_factory=list)
    sent: list[Batch] = field(default_factory=list)
    """Everything ever sent: the network may deliver it again, at any time."""
    serial: int = 0
    in_transaction: bool = False
    needs_epoch: bool = False
    marker: Marker | None = None
    """Decided by the coordinator, not yet acknowledged by the partition."""


class PartitionStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = LoggedPartition(PartitionMachine(expiry_ms=EXPIRY_MS))
        self.clients: list[Client] = []
        self.acknowledged: set[str] = set()
        self.pending: list[tuple[int, Client, Batch | None]] = []
        """(offset to be below the high watermark, client, its batch; None: its marker)"""
        self.values = 0
        self.now = 0

    @initialize()
    def make_clients(self) -> None:
        for pid, version in ((101, 0), (202, 1), (303, 2), (404, 2)):
            # One begins close to the wrap, in its first epoch; later epochs begin at 0.
            first = MAX_SEQUENCE - 5 if version < 2 else 0
            self.clients.append(Client(pid, version, next_sequence=first))

    @property
    def partition(self) -> PartitionMachine:
        return self.log.partition

    # --- clients --------------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**32 - 1))
    def traffic(self, seed: int) -> None:
        """A burst: new batches, some of them lost on the way, retries out of order and in order, late copies. From a
        seed, because lists that hypothesis draws are too short to get anywhere."""
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 12)):
            client = rng.choice(self.clients)
            action = rng.random()
            if action < 0.6:
                self.send(client, rng.randrange(1, 4), arrives=rng.random() < 0.8)
            elif action < 0.8:
                for batch in list(client.in_flight):
                    self.deliver(client, batch)
            elif action < 0.9 and client.in_flight:
                self.deliver(client, rng.choice(client.in_flight))
            elif client.sent:
                self.deliver(client, rng.choice(client.sent[-20:]))

    def send(self, client: Client, records: int, arrives: bool) -> None:
        if len(client.in_flight) >= 5 or client.marker is not None:
            return
        if client.version and not client.in_transaction:
            client.in_transaction = True
            client.serial += 1
        values = tuple(f"v{self.values + i}" for i in range(records))
        self.values += records
        header = data_header(
            client.pid, client.epoch, client.next_sequence, records, transactional=client.version > 0, values=values
        )
        client.next_sequence = (client.next_sequence + records) & MAX_SEQUENCE
        batch = Batch(header, values)
        client.in_flight.append(batch)
        client.sent.append(batch)
        if arrives:
            self.deliver(client, batch)

    @rule()
    def settle(self) -> None:
        """Everybody resends in order, and is answered."""
        for client in self.clients:
            for batch in list(client.in_flight):
                self.deliver(client, batch)
        self.write_markers()
        self.sync()

    def deliver(self, client: Client, batch: Batch) -> None:
        stranger = self.partition.producers.get(client.pid) is None
        if stranger and (not client.in_flight or batch is not client.in_flight[0]):
            return  # a stranger may begin anywhere; connections keep order, so a client's first batch comes first
        expected = self.expected_answers(client, batch)
        try:
            decision = self.partition.decide_append(batch.header, self.now, CLIENT)
            if decision is NEED_VERIFICATION:
                assert ErrorCode.INVALID_PRODUCER_EPOCH not in expected
                if batch not in client.in_flight or client.marker is not None:
                    assert "append" not in expected
                    return  # the coordinator says no
                decision = self.partition.decide_append(batch.header, self.now, VERIFIED)
        except Refusal as refusal:
            assert refusal.code in expected, refusal
            return
        if isinstance(decision, Duplicate):
            stored = self.stored_at(batch)
            assert stored is not None
            if decision.error:
                assert decision.error in expected
            else:
                assert "duplicate" in expected
                assert (decision.base_offset, decision.wait_for) == (
                    stored, stored + batch.header.last_offset_delta,
                )  # fmt: skip
            self.pending.append((decision.wait_for, client, batch))
            return
        assert decision is APPEND
        assert "append" in expected
        entry = self.log.append(batch.header, batch.values)
        self.pending.append((entry.header.last_offset, client, batch))

    def expected_answers(self, client: Client, batch: Batch) -> set[object]:
        """By the rules, from what is stored."""
        known = self.partition.describe_producer(client.pid)
        if known is not None and batch.header.producer_epoch < known.producer_epoch:
            return {ErrorCode.INVALID_PRODUCER_EPOCH}
        if (stored := self.stored_at(batch)) is not None:
            mine = [
                entry.header.base_offset
                for entry in self.log.entries
                if entry.header.producer_id == client.pid
                and entry.header.producer_epoch == batch.header.producer_epoch
                and entry.control is None
            ]
            decided_below = self.decided_below(client)
            if stored < decided_below and mine[-5:][0] < decided_below:
                return {ErrorCode.UNKNOWN_PRODUCER_ID}  # late: nobody waits for the answer
            in_window = stored in mine[-5:]
            return {"duplicate"} if in_window else {ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
        unstored = [each for each in client.in_flight if self.stored_at(each) is None]
        if batch in unstored:
            return {"append"} if batch is unstored[0] else {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        if self.is_open(client.pid):
            return {"append", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}  # late, into what is about to be aborted
        return {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}  # late, or the coordinator will say no

    def decided_below(self, client: Client) -> int:
        """One above its last marker; without transactions nothing is ever decided."""
        markers = [e.header.next_offset for e in self.log.entries if e.header.producer_id == client.pid and e.control]
        return max(markers, default=0) if client.version else 0

    def stored_at(self, batch: Batch) -> int | None:
        return next(
            (entry.header.base_offset for entry in self.log.entries if entry.values == batch.values), None
        )

    @rule(seed=st.integers(0, 2**32 - 1))
    def end_transactions(self, seed: int) -> None:
        """A commit needs every answer. An abort does not; a version-1 client that is left without answers then takes
        a new epoch, because it does not know which sequence is next."""
        rng = random.Random(seed)
        if rng.random() < 0.7:
            self.settle()
        for shard, client in enumerate(self.clients[1:]):
            commit = rng.random() < 0.6
            if rng.random() < 0.2 or not client.in_transaction or client.marker is not None:
                continue
            if commit and client.in_flight:
                continue
            client.needs_epoch = bool(client.in_flight) and client.version == 1
            client.in_flight.clear()
            epoch = client.epoch + 1 if client.version == 2 else client.epoch
            client.marker = Marker(
                client.pid, epoch, commit, 0, serial=client.serial, shard=shard, transaction_version=client.version
            )
        self.write_markers()

    def write_markers(self) -> None:
        """The coordinator repeats each marker until it is acknowledged."""
        for client in self.clients:
            if client.marker is None:
                continue
            decision = self.partition.decide_marker(client.marker)
            if isinstance(decision, Duplicate):
                self.pending.append((decision.wait_for, client, None))
            else:
                stored = self.log.append_control(client.marker)
                self.pending.append((stored.header.last_offset, client, None))

    @rule(back=st.integers(1, 3), commit=st.booleans())
    def late_markers(self, back: int, commit: bool) -> None:
        """A marker of a transaction long decided, whatever it says, decides nothing."""
        for client in self.clients[1:]:
            serial = client.serial - back
            if serial >= 1 and self.partition.producers.get(client.pid) is not None:
                decision = self.partition.decide_marker(Marker(client.pid, client.epoch, commit, 0, serial=serial))
                assert isinstance(decision, Duplicate)

    # --- the broker -----------------------------------------------------------------------------------------------

    @rule(leaving_out=st.integers(0, 2))
    def sync(self, leaving_out: int = 0) -> None:
        self.log.sync(leaving_out)
        waiting, self.pending = self.pending, []
        for wait_for, client, batch in waiting:
            if wait_for >= self.partition.high_watermark:
                self.pending.append((wait_for, client, batch))
            elif batch is not None:
                self.acknowledged.update(batch.values)
                if batch in client.in_flight:
                    client.in_flight.remove(batch)
            elif client.marker is not None:
                epoch = client.marker.producer_epoch + (1 if client.needs_epoch else 0)
                if epoch != client.epoch:
                    client.next_sequence = 0
                client.epoch, client.needs_epoch = epoch, False
                client.marker = None
                client.in_transaction = False

    @rule(kept=st.integers(0, 12))
    def crash(self, kept: int) -> None:
        self.log.crash(kept)
        self.pending.clear()

    @rule()
    def snapshot(self) -> None:
        self.log.take_snapshot()

    @rule(count=st.integers(1, 4))
    def truncate(self, count: int) -> None:
        """Another leader has less than this one had; what was committed, it has."""
        cut = self.log.entries[max(self.log.synced, len(self.log.entries) - count) :]
        if not cut:
            return
        offset = cut[0].header.base_offset
        self.log.truncate_to(offset)
        self.pending = [each for each in self.pending if each[0] < offset]

    @rule(raised=st.booleans(), lasts=st.integers(-10, 3 * EXPIRY_MS))
    def lease(self, raised: bool, lasts: int) -> None:
        """Somebody leases a producer, takes it over, renews or ends the lease, and writes to it."""
        view = self.partition.describe_producer(LEASED)
        epoch = 0 if view is None else view.producer_epoch + raised
        fence = ProducerFence(LEASED, epoch, max(0, self.now + lasts))
        try:
            fence = self.partition.decide_producer_fence(fence)
        except Refusal as refusal:
            assert refusal.code == ErrorCode.UNKNOWN_PRODUCER_ID
            assert self.partition.producers.lease_has_ended(LEASED)
            return
        self.log.append_control(fence)
        after = self.partition.describe_producer(LEASED)
        assert after is not None
        sequence = advance(after.last_sequence, 1)
        header = data_header(LEASED, epoch, sequence, 1)
        if fence.keep_until_ms < self.now:
            with pytest.raises(Refusal):
                self.partition.decide_append(header, self.now)
        else:
            assert self.partition.decide_append(header, self.now) is APPEND
            self.log.append(header, (f"v{self.values}",))
            self.values += 1

    @invariant()
    def a_leased_producer_is_never_a_stranger(self) -> None:
        """Once a fence is in the log, the partition knows the id: by its state, or as one whose lease has ended."""
        if any(isinstance(entry.control, ProducerFence) for entry in self.log.entries):
            known = self.partition.describe_producer(LEASED) is not None
            assert known != self.partition.producers.lease_has_ended(LEASED)

    @rule(ms=st.integers(1, 2 * EXPIRY_MS))
    def tick(self, ms: int) -> None:
        """Expiry forgets whoever is silent; the model's clients are not, while they have anything under way."""
        self.now += ms
        expiry = self.partition.decide_expiry(self.now)
        if expiry is None:
            return
        for client in self.clients:
            producer = self.partition.producers.get(client.pid)
            if producer is None or producer.last_offset >= expiry.below_offset or self.is_open(client.pid):
                continue
            if client.in_flight or client.in_transaction or client.marker:
                return
        for client in self.clients:
            producer = self.partition.producers.get(client.pid)
            if producer is not None and producer.last_offset < expiry.below_offset and not self.is_open(client.pid):
                client.sent.clear()
                client.serial = 0
        self.log.append_control(expiry)
        self.sync()

    def is_open(self, pid: int) -> bool:
        return any(transaction.producer_id == pid for transaction in self.partition.open_transactions())

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_acknowledged_is_lost_and_nothing_is_there_twice(self) -> None:
        stored = [value for entry in self.log.entries for value in entry.values]
        assert len(stored) == len(set(stored))
        readable = {value for _, value in self.log.read_uncommitted()}
        assert self.acknowledged <= readable

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        outcome, stable = scan(self.log.entries, self.partition.high_watermark)
        assert self.partition.last_stable_offset == stable
        expected = [
            (entry.header.base_offset + i, value)
            for entry in self.log.entries
            if entry.header.last_offset < stable and outcome.get(entry.header.base_offset, True)
            for i, value in enumerate(entry.values)
        ]
        assert self.log.read_committed() == expected
        assert self.log.read_committed(batches_in_fetch=3) == expected

    @invariant()
    def records_of_a_producer_are_in_order(self) -> None:
        for client in self.clients:
            mine = [
                int(value[1:])
                for entry in self.log.entries
                if entry.header.producer_id == client.pid
                for value in entry.values
            ]
            assert mine == sorted(mine)

    @precondition(lambda self: len(self.log.entries) % 3 == 0)
    @invariant()
    def replay_equals_live_state(self) -> None:
        live = digest(self.partition, [LEASED])
        assert digest(self.log.recovered(use_snapshots=False), [LEASED]) == live
        if self.log.snapshots:
            assert digest(self.log.recovered(use_snapshots=True), [LEASED]) == live

    @invariant()
    def counts_are_those_of_the_log(self) -> None:
        outcome, _ = scan(self.log.entries, self.partition.log_end_offset)
        for client in self.clients:
            if not client.sent:
                continue
            counted = sum(
                len(entry.values)
                for entry in self.log.entries
                if entry.header.producer_id == client.pid and outcome.get(entry.header.base_offset, True) is True
            )
            view = self.partition.describe_producer(client.pid)
            assert view is not None or not self.is_open(client.pid)
            if view is not None and not self.was_forgotten(client.pid):
                assert view.record_count == counted

    def was_forgotten(self, pid: int) -> bool:
        below = self.partition.producers.expired_below
        return any(entry.header.producer_id == pid and entry.header.base_offset < below for entry in self.log.entries)


def scan(entries: list[Entry], high_watermark: int) -> tuple[dict[int, bool | None], int]:
    """From the log alone: for each transactional batch, by base offset, whether it was committed (None: undecided);
    and the last stable offset."""
    outcome: dict[int, bool | None] = {}
    open_batches: dict[int, list[int]] = {}
    unstable = [high_watermark]
    for entry in entries:
        header = entry.header
        if isinstance(entry.control, Marker):
            batches = open_batches.pop(header.producer_id, [])
            outcome.update(dict.fromkeys(batches, entry.control.commit))
            if batches and header.base_offset >= high_watermark:
                unstable.append(batches[0])
        elif header.is_transactional and not header.is_control:
            open_batches.setdefault(header.producer_id, []).append(header.base_offset)
            outcome[header.base_offset] = None
    unstable += [batches[0] for batches in open_batches.values()]
    return outcome, min(unstable)


TestPartitionMachine = PartitionStateMachine.TestCase
TestPartitionMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
