"""The form of every audit event: its name, its fields and what they mean. docs/audit.md is generated from it.

Events are recorded where a decision is made: at a login, at a refusal, and at a change once it is stored. No field
holds a password, a key or a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VERSION: Final = 1
"""`v` of each line. It rises when a field changes its meaning or goes; new fields and events do not raise it."""

COMMON: Final = {
    "v": "version of this form",
    "time": "when it happened, UTC, to the millisecond",
    "event": "the name of the event",
    "cluster": "`cluster.id`",
    "node": "the process that decided, such as `broker-0`",
    "principal": "who did it, such as `User:alice`; null: the cluster itself, or a client whose name is not known",
    "address": "IP address of the client; empty: none is known",
}
"""In each line, in this order."""

LISTENER: Final = "name of the listener; `REST`; `gRPC`; `services`: a port between the cluster's processes"
MECHANISM: Final = (
    "SASL mechanism; `TLS`: by the certificate; `Basic`, `Bearer`: by the header of REST or gRPC; empty: none was "
    "shown")
CALL: Final = "the call of the Kafka protocol or of gRPC; `time-out`, `healing`: the cluster did it by itself"
OUTCOME: Final = "`done`; `unknown`: the metadata store did not answer, so it may or may not have been stored"
TXN: Final = {
    "call": CALL, "transactional_id": "the id", "serial": "number of the transaction under this id",
}
_TOPIC: Final = "partitions, replication_factor and config; null: there is none"
_CHANGE: Final = {"call": CALL, "outcome": OUTCOME}


@dataclass(frozen=True, slots=True)
class Form:
    text: str
    fields: Mapping[str, str]
    """Beside COMMON, in the order of the line."""
    limited: bool = False
    """Whether a principal's events of this kind are bounded in number."""


EVENTS: Final[Mapping[str, Form]] = {
    "login": Form("A client has logged in, or has renewed its login.", {
        "listener": LISTENER, "mechanism": MECHANISM, "renewed": "true: again, on an open connection (KIP-368)",
    }, limited=True),
    "login_failed": Form("A client could not log in, or its TLS handshake failed.", {
        "listener": LISTENER, "mechanism": MECHANISM, "reason": "why; it may name the user that the client claims",
    }, limited=True),
    "refused": Form("A principal was not permitted to do something.", {
        "call": CALL,
        "operation": "of Kafka, such as `Write`; of REST, such as `POST`; `Call`: of a port between processes",
        "resource_type": "such as `Topic`; `Path`: of the REST API; `Method`: of a port between processes",
        "resource": "name of the resource", "rule": "the ACL that decided; null: none permits it",
        "reason": "how it was decided",
    }, limited=True),
    "rest_change": Form(
        "A caller of the REST API has asked for a change. What was changed is in the line of the acting controller or "
        "of the coordinator, which names the principal of the REST API itself.", {
            "call": "`REST`", "operation": "the method, such as `POST`", "resource": "the path",
            "status": "of the answer; from 500 on, the change may or may not have been made",
        }, limited=True),
    "topic_created": Form("A topic was created.", {
        **_CHANGE, "topic": "its name", "old": "null", "new": _TOPIC}),
    "topic_deleted": Form("A topic was deleted.", {
        **_CHANGE, "topic": "its name", "old": _TOPIC, "new": "null"}),
    "topic_partitions_added": Form("A topic got more partitions.", {
        **_CHANGE, "topic": "its name", "old": "partitions", "new": "partitions"}),
    "topic_config_changed": Form("The configuration of a topic was changed.", {
        **_CHANGE, "topic": "its name", "old": "the names that changed and their values; null: the default",
        "new": "the same names"}),
    "group_config_changed": Form("The configuration of a consumer group was changed.", {
        **_CHANGE, "group": "its id", "old": "the names that changed and their values; null: the default",
        "new": "the same names"}),
    "records_deleted": Form("The first records of a partition were deleted (DeleteRecords).", {
        **_CHANGE, "topic": "its name", "partition": "its number",
        "old": "null: where its records began is not asked",
        "new": "the lowest offset that it has now; null: not known",
    }),
    "group_deleted": Form("A consumer group was deleted, and its offsets.", {
        **_CHANGE, "group": "its id", "old": "null: its offsets are not told", "new": "null"}),
    "group_offsets_deleted": Form("A group's offsets of a topic were deleted.", {
        **_CHANGE, "group": "its id", "topic": "name of the topic; null: of all topics",
        "old": "the partitions that were named; of all topics: how many offsets", "new": "null"}),
    "acl_created": Form("An ACL was added.", {**_CHANGE, "old": "null", "new": "the ACL"}),
    "acl_deleted": Form("An ACL was removed.", {**_CHANGE, "old": "the ACL", "new": "null"}),
    "user_changed": Form("A user's SCRAM password was set or removed.", {
        **_CHANGE, "user": "its name", "old": "mechanism and iterations; null: it had none",
        "new": "mechanism and iterations; null: removed"}),
    "quota_changed": Form("A client quota was set or removed.", {
        **_CHANGE, "entity": "type and name of each part; the name null: the default",
        "old": "the quotas of the entity", "new": "the quotas of the entity"}),
    "replicas_moved": Form("A partition is to have other replicas, or its move was cancelled.", {
        **_CHANGE, "topic": "its name", "partition": "its number", "old": "the replicas that it was to have",
        "new": "the replicas that it is to have"}),
    "leader_elected": Form("A leader was elected on request.", {
        **_CHANGE, "topic": "its name", "partition": "its number", "old": "the leader before; -1: none",
        "new": "the leader"}),
    "replication_changed": Form("Brokers are drained or no longer, or the speed of moves has another limit.", {
        **_CHANGE, "old": "draining and bytes_per_second", "new": "draining and bytes_per_second"}),
    "transaction_aborted": Form("A transaction is being aborted: from now on its outcome is certain.", {
        **TXN, "old": "producer_id, producer_epoch and partitions of the transaction", "new": "its state"},
        limited=True),
    "producer_fenced": Form("A producer may no longer write under a transactional id.", {
        **TXN, "cause": "`initialized`: another one has the id; `timed_out`; `newer_token`",
        "fenced_address": "address of the fenced client",
        "old": "producer_id and producer_epoch that are refused from now on", "new": "those that follow",
    }, limited=True),
    "lease_taken_over": Form("A producer id on lease was taken from its holder, who may no longer write with it.", {
        **_CHANGE, "lease": "its name", "old": "holder: as it called itself",
        "new": "holder, producer_id and generation",
    }, limited=True),
    "backup_taken": Form("A client has taken a backup of the cluster, as it says itself.", {
        **_CHANGE, "backup": "its id"}),
    "producer_ids_reserved": Form(
        "A restore has begun: lower producer ids than these are refused from now on, and none is handed out.", {
            **_CHANGE, "old": "the lowest producer id that was not refused", "new": "the lowest one from now on"}),
    "backup_restored": Form("A backup was restored into the cluster, which serves its topics from now on.", {
        **_CHANGE, "backup": "its id"}),
    "left_out": Form("Events that were left out, because one principal (or one address) caused too many.", {
        "of": "name of the event that was left out", "count": "how many",
        "since": "when the first of them happened"}),
}


class Audit:
    """Where events are recorded. This one records nothing."""

    enabled: bool = False

    def record(self, event: str, principal: str | None, address: str, **fields: object) -> None:
        """`fields`: those of the event's form. Never waits, never fails."""


SILENT: Final = Audit()
_BEGIN: Final = "<!-- events: generated by `make docs` -->"
_END: Final = "<!-- end of events -->"


def with_events(page: str) -> str:
    """docs/audit.md with its tables as they are now."""
    lines = ["Each line has", "", "| field | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in COMMON.items()]
    for name, form in EVENTS.items():
        bounded = " Bounded for each principal." if form.limited else ""
        lines += ["", f"### {name}", "", form.text + bounded, "", "| field | meaning |", "|---|---|"]
        lines += [f"| `{field}` | {text} |" for field, text in form.fields.items()]
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n" + "\n".join(lines) + f"\n\n{_END}" + rest.partition(_END)[2]
