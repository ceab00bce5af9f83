"""Drives the transaction machine of one shard, with real partitions and a group around it.

    machine transaction [version=1] [allow=two-phase]   version: of the producers, unless they say otherwise

    init P [id=app] [recover] [timeout=MS] [connection=N] [version=N] [two-phase] [keep]
                                         P starts again (or recovers under the identity it has); keep: an open
                                         transaction is not aborted (KIP-939)
    commit-prepared serial=N [id=app]    an operator commits in the producer's place
    add P PARTITION…  /  add-offsets P   version 1: registers partitions, the group's offsets
    verify P PARTITION                   a broker asks (version 2: registers), and then dies before it writes
    produce P PARTITION VALUE…           one transactional batch; verified=no: past the broker's checks
    offsets P GROUP PARTITION=OFFSET…    TxnOffsetCommit
    commit P  /  abort P                 EndTxn
    join MEMBER TOKEN [id=app] [unknown] MEMBER (a task attempt) joins the transaction of SCOPE:VALUE
    end TOKEN commit|abort [winners=M:PARTITION+PARTITION,…] [count=N] [serial=N] [unknown] [other-count] [id=app]
    end TOKEN commit|abort by=P          the single writer ends with a token
    renew MEMBER serial=N timeout=MS  /  token SCOPE [id=app]
    reconnect P connection=N             P's later calls come on another connection
    delay NAME COMMAND…                  the call is made, but stays in the network until `deliver NAME`
    deliver NAME                         as often as wanted
    markers [PARTITION…] [id=app]        the outstanding markers, or some, are written and answered
    postpone / complete                  from now on completions wait for the id's next record; now it is stored
    lost COMMAND…                        the coordinator decides, then dies before the record is stored
    take-over [connection=N]             another coordinator loads the log; N: this node's newest connection
    former COMMAND…                      done by the coordinator that was taken over from, which does not know it
    wait MS                              time passes
    expire
    down PARTITION  /  up PARTITION  /  delete-topic TOPIC
    hanging P PARTITION [first=OFFSET]   a broker finds P's transaction there open for too long
    read PARTITION…  /  position GROUP PARTITION…   what readers see
    exhaust [id=app] epoch=N             as if the id had lived through N epochs
    state
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import CommitRequest
from hapax.core.transaction.record import ProducerIdentity, Token
from hapax.core.transaction.requests import (
    AbortHanging,
    AddPartitionsToTxn,
    CommitPrepared,
    Decision,
    EndTransaction,
    EndTxn,
    GetCommitToken,
    InitProducerId,
    JoinTransaction,
    Kept,
    Limits,
    RenewTransaction,
    SendMarkers,
    Winner,
    WinnerPartition,
)
from hapax.core.types import TopicPartition
from scenarios.script import Command, ScriptError, parse_command
from scenarios.transaction_world import Call, CoordinatorDied, Producer, World, show


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.version = command.number("version", 2)
        self.world = World(Limits(two_phase_commit=command.text("allow", "") == "two-phase"))
        self.producers: dict[str, Producer] = {}
        self.delayed: dict[str, Callable[[], None]] = {}
        self.delaying = ""
        self.former: Any = None
        self.former_outgoing: dict[str, SendMarkers] = {}

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        try:
            method(command)
        except Refusal as refusal:
            self.world.say(f"refused {refusal}")
        said, self.world.said = self.world.said, []
        return said

    # --- one writer ---

    def do_init(self, command: Command) -> None:
        who = command.positional[0]
        known = self.producers.get(who)
        producer = known or Producer(who, command.text("id", "app"), command.number("version", self.version))
        self.producers[who] = producer
        producer.connection = command.number("connection", producer.connection)
        identity = producer.identity if command.flag("recover") else (-1, -1)
        request = InitProducerId(
            producer.transactional_id, command.number("timeout", 60_000), self.world.caller(producer),
            *identity, command.flag("two-phase"), command.flag("keep"),
        )  # type: ignore[arg-type]  # fmt: skip

        def initialised(reply: ProducerIdentity | Kept) -> str:
            if isinstance(reply, ProducerIdentity):
                return self._became(producer, reply)
            return f"{self._became(producer, reply.identity)}, keeps {reply.ongoing[0]}@{reply.ongoing[1]}"

        self._call(who, "init_producer_id", request, initialised)

    def do_commit_prepared(self, command: Command) -> None:
        operator = Producer("operator", command.text("id", "app"), 2)
        request = CommitPrepared(
            operator.transactional_id, command.number("serial"), self.world.caller(operator))  # type: ignore[arg-type]
        self._call("operator", "commit_prepared", request, lambda reply: f"committed, {reply.identity[1]} counts")

    def do_add(self, command: Command) -> None:
        who, *names = command.positional
        self._add(self.producers[who], *names)

    def do_add_offsets(self, command: Command) -> None:
        self._add(self.producers[command.positional[0]], "offsets")

    def _add(self, producer: Producer, *names: str) -> None:
        request = AddPartitionsToTxn(
            producer.transactional_id, *producer.identity, tuple(map(self.world.partition, names)),
            self.world.caller(producer),
        )  # type: ignore[arg-type]  # fmt: skip
        self._call(producer.name, "add_partitions_to_txn", request, lambda reply: "added")

    def do_produce(self, command: Command) -> None:
        who, partition, *values = command.positional
        producer, at = self.producers[who], self.world.partition(partition)
        if command.text("verified", "yes") == "no":
            self.world.store_batch(producer, at, tuple(values))
            return
        if self.delaying:
            producer = replace(producer, sequences=dict(producer.sequences))
        self._maybe_later(lambda: self.world.produce(producer, at, tuple(values)))

    def do_verify(self, command: Command) -> None:
        who, partition = command.positional
        self.world.verify(self.producers[who], self.world.partition(partition), lambda: "registered")

    def do_offsets(self, command: Command) -> None:
        who, group = command.positional
        offsets = [
            CommitRequest(_topic_partition(partition), int(offset), -1, "")  # type: ignore[arg-type]
            for partition, offset in command.arguments.items()
        ]
        self.world.commit_offsets(self.producers[who], group, offsets)

    def do_commit(self, command: Command) -> None:
        self._end(command.positional[0], commit=True)

    def do_abort(self, command: Command) -> None:
        self._end(command.positional[0], commit=False)

    def _end(self, who: str, commit: bool) -> None:
        producer = self.producers[who]
        request = EndTxn(
            producer.transactional_id, *producer.identity, commit, self.world.caller(producer), producer.version
        )  # type: ignore[arg-type]
        verb = "committed" if commit else "aborted"

        def ended(reply: ProducerIdentity) -> str:
            if producer.version == 1:
                return verb
            return f"{verb}, {self._became(producer, reply)}"

        self._call(who, "end_txn", request, ended)

    def _became(self, producer: Producer, identity: ProducerIdentity) -> str:
        producer.become(*identity)
        return f"is {identity.producer_id}@{identity.producer_epoch}"

    # --- many writers, tokens ---

    def do_join(self, command: Command) -> None:
        who, token = command.positional[:2]
        member = Producer(who, command.text("id", "app"), 2)
        request = JoinTransaction(
            member.transactional_id, _token(token), who, command.number("timeout", 60_000),
            self.world.caller(member), command.flag("unknown"),
        )  # fmt: skip

        def joined(reply: Any) -> str:
            if reply.already_committed:
                return f"already committed {_committed(reply.committed)}"
            self.producers[who] = member
            return f"joined serial={reply.serial}, {self._became(member, reply.identity)}"

        self._call(who, "join_transaction", request, joined)

    def do_end(self, command: Command) -> None:
        token, verb = command.positional[:2]
        by = self.producers.get(command.text("by", ""))
        driver = by or Producer("driver", command.text("id", "app"), 2)
        identity = by.identity if by else (-1, -1)
        request = EndTransaction(
            driver.transactional_id, verb == "commit", self.world.caller(driver), _token(token),
            producer_id=identity[0], producer_epoch=identity[1], winners=self._winners(command),
            record_count=command.number("count", 0), allow_other_count=command.flag("other-count"),
            serial=command.number("serial", 0), allow_unknown_history=command.flag("unknown"),
        )  # type: ignore[arg-type]  # fmt: skip

        def ended(reply: Any) -> str:
            said = f"{reply.outcome.name} serial={reply.serial} records={reply.committed_records}"
            return f"{said}, {self._became(by, reply.identity)}" if by else said

        self._call(driver.name, "end_transaction", request, ended)

    def _winners(self, command: Command) -> tuple[Winner, ...]:
        winners = []
        for word in command.text("winners", "").split(","):
            if word:
                who, _, names = word.partition(":")
                member = self.producers[who]
                parts = [self.world.partition(each) for each in names.split("+")]
                last = tuple(
                    WinnerPartition(each, member.sequences.get(each, 99) - 1)  # type: ignore[arg-type]
                    for each in parts
                )
                winners.append(Winner(*member.identity, last))  # type: ignore[arg-type]
        return tuple(winners)

    def do_renew(self, command: Command) -> None:
        member = self.producers[command.positional[0]]
        request = RenewTransaction(
            member.transactional_id, command.number("serial"), command.number("timeout"), self.world.caller(member)
        )  # type: ignore[arg-type]
        self._call(member.name, "renew_transaction", request, lambda reply: f"{reply.remaining_ms} ms left")

    def do_token(self, command: Command) -> None:
        asks = Producer("driver", command.text("id", "app"), 2)
        request = GetCommitToken(asks.transactional_id, command.positional[0], self.world.caller(asks))
        self._call(asks.name, "get_commit_token", request, lambda reply: _committed(reply.token))

    # --- the network ---

    def do_reconnect(self, command: Command) -> None:
        self.producers[command.positional[0]].connection = command.number("connection")

    def do_delay(self, command: Command) -> None:
        self.delaying = command.positional[0]
        rest = parse_command(command.line.split(maxsplit=2)[2])
        getattr(self, "do_" + rest.name.replace("-", "_"))(rest)
        self.delaying = ""

    def do_deliver(self, command: Command) -> None:
        self.delayed[command.positional[0]]()

    def _call(self, who: str, method: str, request: Any, then: Any) -> None:
        def make() -> None:
            arrived = replace(request, caller=request.caller._replace(arrived=self.world.clock))
            self.world.call(Call(who, method, arrived, then))

        self._maybe_later(make)

    def _maybe_later(self, call: Callable[[], None]) -> None:
        if self.delaying:
            self.delayed[self.delaying] = call
        else:
            call()

    # --- the coordinator ---

    def do_markers(self, command: Command) -> None:
        self.world.deliver(command.text("id", "app"), [self.world.partition(each) for each in command.positional])

    def do_lost(self, command: Command) -> None:
        self.world.losing = True
        try:
            rest = parse_command(command.line.removeprefix("lost "))
            getattr(self, "do_" + rest.name.replace("-", "_"))(rest)
            self.world.say("nothing was to be stored")
        except CoordinatorDied:
            self.world.say("decided, not stored, not answered")
        self.world.losing = False

    def do_take_over(self, command: Command) -> None:
        live = self.world.shard
        self.former, self.former_outgoing = live, dict(self.world.outgoing)
        self.world.take_over()
        if "connection" in command.arguments:
            self.world.shard = self.world.loaded(command.number("connection"))
        differing = [
            transactional_id
            for transactional_id, transaction in live.transactions.items()
            if self.world.shard.transactions.get(transactional_id) != transaction
        ]
        self.world.say(f"differs: {' '.join(differing)}" if differing else "same state")

    def do_former(self, command: Command) -> None:
        """Its shard epoch is the old one: its records are refused, and so are its markers."""
        current, self.world.shard = self.world.shard, self.former
        outgoing, self.world.outgoing = self.world.outgoing, self.former_outgoing
        self.world.epoch -= 1
        self.world.losing = True
        try:
            rest = parse_command(command.line.removeprefix("former "))
            getattr(self, "do_" + rest.name.replace("-", "_"))(rest)
        except CoordinatorDied:
            self.world.say(f"the record is refused: {ErrorCode.TRANSACTION_COORDINATOR_FENCED.name}")
        self.world.losing = False
        self.world.epoch += 1
        self.world.shard, self.world.outgoing = current, outgoing

    def do_wait(self, command: Command) -> None:
        self.world.advance(int(command.positional[0].replace("_", "")))

    def do_postpone(self, command: Command) -> None:
        self.world.postponing = True

    def do_complete(self, command: Command) -> None:
        self.world.complete(command.text("id", "app"))

    def do_expire(self, command: Command) -> None:
        for transactional_id in self.world.shard.expired(self.world.now):
            decision = self.world.shard.expire(transactional_id, self.world.now)
            assert decision is not None and decision.record is not None
            self.world.store(decision.record)

    def do_exhaust(self, command: Command) -> None:
        shard, transactional_id = self.world.shard, command.text("id", "app")
        shard.load(replace(shard.transactions[transactional_id], producer_epoch=command.number("epoch")))  # type: ignore[arg-type]
        for producer in self.producers.values():
            if producer.transactional_id == transactional_id:
                producer.become(producer.producer_id, command.number("epoch"))

    def do_state(self, command: Command) -> None:
        for transaction in self.world.shard.transactions.values():
            self.world.say(show(transaction))

    # --- brokers and readers ---

    def do_down(self, command: Command) -> None:
        self.world.down.add(self.world.partition(command.positional[0]))

    def do_up(self, command: Command) -> None:
        self.world.down.discard(self.world.partition(command.positional[0]))

    def do_delete_topic(self, command: Command) -> None:
        self.world.delete_topic(command.positional[0])

    def do_hanging(self, command: Command) -> None:
        producer, at = self.producers[command.positional[0]], self.world.partition(command.positional[1])
        open_there = {each.producer_id: each for each in self.world.partitions[at].partition.open_transactions()}
        found = open_there.get(producer.producer_id)
        first = command.number("first", found.first_offset if found else 0)
        epoch = found.producer_epoch if found else producer.producer_epoch
        request = AbortHanging(
            producer.transactional_id, producer.producer_id, epoch, at, first, self.world.caller(producer)
        )  # type: ignore[arg-type]
        answer = self.world.shard.abort_hanging(request, self.world.now)
        assert isinstance(answer, Decision)
        for send in answer.effects:
            assert isinstance(send, SendMarkers)
            _, what = self.world.write_marker(send, send.markers[0], at)
            self.world.say(f"conditional marker: {what}")

    def do_read(self, command: Command) -> None:
        for word in command.positional:
            logged = self.world.partitions[self.world.partition(word)]
            committed = " ".join(value for _, value in logged.read_committed()) or "nothing"
            everything = " ".join(value for _, value in logged.read_uncommitted()) or "nothing"
            waits = logged.partition.high_watermark - logged.partition.last_stable_offset
            self.world.say(
                f"{word}: read_committed {committed}; read_uncommitted {everything}"
                + (f"; {waits} offsets undecided" if waits else "")
            )

    def do_position(self, command: Command) -> None:
        group, *names = command.positional
        for found in self.world.group.fetch(group, [_topic_partition(each) for each in names], True):
            where = f"{group} {found.partition.topic}-{found.partition.partition}"
            if found.error:
                self.world.say(f"{where}: {found.error.name}")
            else:
                self.world.say(f"{where}: {found.committed.offset if found.committed else 'none'}")


def _topic_partition(word: str) -> TopicPartition:
    topic, _, index = word.rpartition("-")
    return TopicPartition(topic, int(index))  # type: ignore[arg-type]


def _token(word: str) -> Token:
    scope, _, value = word.partition(":")
    return Token(scope, int(value))


def _committed(token: Any) -> str:
    if token is None:
        return "no token"
    return f"{token.scope}:{token.value} with {token.record_count} records in serial={token.serial}"

