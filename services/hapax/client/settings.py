"""Settings of producers, consumers and admin clients, under Kafka's names.

The table `SETTINGS` has each setting's name, the clients that have it, its default and the reader of its value. Values
are given as text or as the type itself. An unknown name is an error that suggests the nearest name: a misspelt setting
(`enable.idempotance`) that is silently ignored is hard to find.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from hapax.client.errors import SettingsError
from hapax.client.jaas import JaasConfig, parsed
from hapax.core.sasl.exchange import MECHANISMS

Settings = Mapping[str, object]

COMPRESSION: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's codec numbers."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    users: str
    """The clients that have the setting: some of `p`roducer, `c`onsumer and `a`dmin client."""
    default: object
    read: Callable[[object], object]
    meaning: str
    secret: bool = False
    """Its value is in no message."""


def _whole(low: int, high: int = 2**63 - 1) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool):
            raise ValueError("it must be a whole number")
        number = int(value) if isinstance(value, int | str) else None
        if number is None or not low <= number <= high:
            raise ValueError(
                f"it must be a whole number from {low} to {high}" if high < 2**63 - 1
                else f"it must be a whole number, at least {low}")
        return number

    return read


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("it must be true or false")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("it must be a text")


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _one_of(*names: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in names:
            return value.lower()
        raise ValueError("it must be one of " + ", ".join(names))

    return read


def _acks(value: object) -> int:
    if str(value).lower() in ("all", "-1"):
        return -1
    if str(value) in ("0", "1"):
        return int(str(value))
    raise ValueError("it must be 0, 1 or all")


def _protocol(value: object) -> str:
    if isinstance(value, str) and value.upper() in _PROTOCOLS:
        return value.upper()
    raise ValueError("it must be one of " + ", ".join(_PROTOCOLS))


def _mechanism(value: object) -> str | None:
    if value is None or value in MECHANISMS:
        return None if value is None else str(value)
    raise ValueError("it must be one of " + ", ".join(MECHANISMS))


def _jaas(value: object) -> JaasConfig | None:
    return None if value is None else parsed(_text(value))


def _token_url(value: object) -> object:
    """The path of a file, or an Endpoint."""
    if value is None:
        return None
    scheme, _, rest = _text(value).partition("://")
    if scheme == "file":
        path = unquote(rest)
        if not path.startswith("/") or "\0" in path:
            raise ValueError("it must be file:// and an absolute path")
        return path
    from hapax.client.token_endpoint import endpoint_of  # 20 ms that other clients do not need

    return endpoint_of(_text(value))


def _handler(value: object) -> object:
    if value is None or value == _TOKEN_HANDLER:
        return value
    raise ValueError(f"it must be {_TOKEN_HANDLER}")


def _callable(value: object) -> object:
    if value is None or callable(value):
        return value
    raise ValueError("it must be a function")


def _pem_only(value: object) -> str:
    if value == "PEM":
        return "PEM"
    raise ValueError("it must be PEM")


def _versions(value: object) -> tuple[str, ...]:
    names = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or any(each not in ("TLSv1.2", "TLSv1.3") for each in names):
        raise ValueError("it must be a list of TLSv1.2, TLSv1.3")
    return tuple(names)


def _identification(value: object) -> str:
    if value in ("", "none", "https"):
        return "" if value == "none" else str(value)
    raise ValueError("it must be https, or empty")


def _assignors(value: object) -> tuple[str, ...]:
    names = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or any(each not in _ASSIGNORS for each in names):
        raise ValueError("it must be a list of " + ", ".join(_ASSIGNORS))
    return tuple(dict.fromkeys(names))


def _servers(value: object) -> tuple[tuple[str, int], ...]:
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError("it must be host:port, host:port, ...")
    found = []
    for entry in entries:
        host, colon, port = str(entry).strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{entry!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


_INT32 = 2**31 - 1
_TOKEN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ASSIGNORS = ("cooperative-sticky", "range", "roundrobin")
SETTINGS: Final = {
    setting.name: setting
    for setting in (
        Setting("bootstrap.servers", "pca", None, _servers, "Nodes to ask for the cluster first: host:port, ..."),
        Setting("client.id", "pca", "hapax", _text, "The client's name in the servers' logs."),
        Setting("request.timeout.ms", "pca", 30_000, _whole(1, _INT32), "Time-out of one request."),
        Setting("socket.connection.setup.timeout.ms", "pca", 10_000, _whole(1, _INT32), "Time-out of connecting."),
        Setting("retry.backoff.ms", "pca", 100, _whole(0, _INT32), "Pause after the first failed attempt; it doubles."),
        Setting("retry.backoff.max.ms", "pca", 1_000, _whole(0, _INT32), "The longest pause between attempts."),
        Setting("metadata.max.age.ms", "pca", 300_000, _whole(1, _INT32), "Age at which metadata is refreshed."),
        Setting(
            "security.protocol", "pca", "PLAINTEXT", _protocol,
            "PLAINTEXT, or SSL: TLS, with a check of the server's certificate. SASL_SSL, SASL_PLAINTEXT: with a login.",
        ),
        Setting(
            "sasl.mechanism", "pca", None, _mechanism, "How to log in: " + ", ".join(MECHANISMS) + ".",
        ),
        Setting("sasl.mechanisms", "pca", None, _mechanism, "Another name of it, librdkafka's."),
        Setting("sasl.username", "pca", None, _optional_text, "User name, for PLAIN and SCRAM."),
        Setting("sasl.password", "pca", None, _optional_text, "Password, for PLAIN and SCRAM.", secret=True),
        Setting(
            "sasl.password.file", "pca", None, _optional_text,
            "File with the password in its first line, instead. Each login reads it.",
        ),
        Setting(
            "sasl.jaas.config", "pca", None, _jaas,
            "Instead of these two, the line that Kafka's tools have: ScramLoginModule, PlainLoginModule or"
            " OAuthBearerLoginModule.", secret=True,
        ),
        Setting(
            "sasl.oauthbearer.token.file", "pca", None, _optional_text,
            "File with the token for OAUTHBEARER, such as a projected service-account token. Each login reads it.",
        ),
        Setting(
            "sasl.oauthbearer.token.endpoint.url", "pca", None, _token_url,
            "https URL of an OpenID provider that gives tokens for a client's id and secret (http: on this machine"
            " only), or file:// and the path of a token.", secret=True,
        ),
        Setting(
            "sasl.oauthbearer.client.credentials.client.id", "pca", None, _optional_text,
            "The client's id at this provider. Also clientId in sasl.jaas.config.",
        ),
        Setting(
            "sasl.oauthbearer.client.credentials.client.secret", "pca", None, _optional_text,
            "Its secret. Also clientSecret in sasl.jaas.config.", secret=True,
        ),
        Setting("sasl.oauthbearer.client.id", "pca", None, _optional_text, "Another name of the id, librdkafka's."),
        Setting(
            "sasl.oauthbearer.client.secret", "pca", None, _optional_text, "Another name of the secret, librdkafka's.",
            secret=True,
        ),
        Setting(
            "sasl.oauthbearer.client.secret.file", "pca", None, _optional_text,
            "File with the secret in its first line, instead. Each request for a token reads it.",
        ),
        Setting(
            "sasl.oauthbearer.scope", "pca", None, _optional_text,
            "The scope that is asked for. Also scope in sasl.jaas.config.",
        ),
        Setting(
            "sasl.oauthbearer.header.urlencode", "pca", False, _flag,
            "Whether id and secret are URL-encoded before they are sent, as RFC 6749 says.",
        ),
        Setting(
            "https.ca.location", "pca", None, _optional_text,
            "PEM file of the authorities of the provider's certificate. Default: the system's.",
        ),
        Setting(
            "sasl.login.callback.handler.class", "pca", None, _handler,
            "Kafka's tools need it for such a token: OAuthBearerLoginCallbackHandler with its package. No effect here.",
        ),
        Setting(
            "sasl.oauthbearer.token.provider", "pca", None, _callable,
            "In a program: a function, async or not, that returns a token for OAUTHBEARER, or (token, expires_ms).",
        ),
        Setting(
            "sasl.allow.secrets.without.tls", "pca", False, _flag,
            "Whether PLAIN and OAUTHBEARER may be used with SASL_PLAINTEXT, where all can read the secret.",
        ),
        Setting(
            "ssl.truststore.location", "pca", None, _optional_text,
            "PEM file of the authorities that servers' certificates must come from. Default: the system's.",
        ),
        Setting("ssl.ca.location", "pca", None, _optional_text, "Another name of it, librdkafka's."),
        Setting("ssl.truststore.certificates", "pca", None, _optional_text, "The same as PEM text."),
        Setting(
            "ssl.keystore.location", "pca", None, _optional_text,
            "PEM file of the client's own certificate, with its chain, and its key.",
        ),
        Setting("ssl.certificate.location", "pca", None, _optional_text, "PEM file of the certificate alone."),
        Setting("ssl.key.location", "pca", None, _optional_text, "PEM file of its key."),
        Setting("ssl.keystore.certificate.chain", "pca", None, _optional_text, "The certificate as PEM text."),
        Setting("ssl.keystore.key", "pca", None, _optional_text, "The key as PEM text.", secret=True),
        Setting("ssl.key.password", "pca", None, _optional_text, "Password of the key.", secret=True),
        Setting("ssl.keystore.type", "pca", "PEM", _pem_only, "Only PEM is supported."),
        Setting("ssl.truststore.type", "pca", "PEM", _pem_only, "Only PEM is supported."),
        Setting("ssl.enabled.protocols", "pca", ("TLSv1.2", "TLSv1.3"), _versions, "Versions of TLS."),
        Setting(
            "ssl.endpoint.identification.algorithm", "pca", "https", _identification,
            "https: the certificate must name the host that is connected to. Empty or none: it need not.",
        ),
        Setting("default.api.timeout.ms", "ca", 60_000, _whole(1, _INT32), "Time-out of a call with its retries."),
        Setting("max.block.ms", "p", 60_000, _whole(0, _INT32), "Time-out of a blocked call."),
        Setting("acks", "p", -1, _acks, "Who acknowledges: 0 no node, 1 the leader, all in-sync replicas."),
        Setting("retries", "p", _INT32, _whole(0, _INT32), "Attempts after the first failed one."),
        Setting("delivery.timeout.ms", "p", 120_000, _whole(1, _INT32), "Time-out from send() to delivery."),
        Setting("linger.ms", "p", 0, _whole(0, _INT32), "How long a batch waits for more records."),
        Setting("batch.size", "p", 16_384, _whole(1, _INT32), "Bytes at which a batch is full."),
        Setting("max.request.size", "p", 1_048_576, _whole(1, _INT32), "Bytes of the largest request."),
        Setting("buffer.memory", "p", 33_554_432, _whole(1), "Bytes of records that may wait to be sent."),
        Setting("compression.type", "p", "none", _one_of(*COMPRESSION), "none, gzip, snappy, lz4 or zstd."),
        Setting("enable.idempotence", "p", True, _flag, "Retries duplicate no record."),
        Setting("max.in.flight.requests.per.connection", "p", 5, _whole(1, _INT32), "Batches in flight per partition."),
        Setting("transactional.id", "p", None, _optional_text, "Identifies the producer across restarts."),
        Setting("transaction.timeout.ms", "p", 60_000, _whole(1, _INT32), "Age at which a transaction is aborted."),
        Setting(
            "transaction.two.phase.commit.enable", "p", False, _flag,
            "Transactions can be prepared, and have no time limit (KIP-939).",
        ),
        Setting("partitioner", "p", "murmur2", _one_of("murmur2", "murmur2_random"), "How keys determine partitions."),
        Setting("group.id", "c", None, _optional_text, "The group that is joined, or offsets are committed for."),
        Setting(
            "group.protocol", "c", "auto", _one_of("auto", "consumer", "classic"),
            "consumer (KIP-848), classic, or auto: consumer where the cluster has it.",
        ),
        Setting("group.instance.id", "c", None, _optional_text, "Makes the consumer a static member of its group."),
        Setting("session.timeout.ms", "c", 45_000, _whole(1, _INT32), "Time without heartbeats that ends membership."),
        Setting("heartbeat.interval.ms", "c", 3_000, _whole(1, _INT32), "Interval of heartbeats (classic protocol)."),
        Setting("max.poll.interval.ms", "c", 300_000, _whole(1, _INT32), "Longest pause between polls of a member."),
        Setting(
            "partition.assignment.strategy", "c", ("cooperative-sticky",), _assignors,
            "Assignors (classic protocol): cooperative-sticky, range, roundrobin.",
        ),
        Setting("group.remote.assignor", "c", None, _optional_text, "Assignor of the server (consumer protocol)."),
        Setting("enable.auto.commit", "c", True, _flag, "Commit positions periodically (needs group.id)."),
        Setting("auto.commit.interval.ms", "c", 5_000, _whole(1, _INT32), "Interval of these commits."),
        Setting("auto.offset.reset", "c", "latest", _one_of("latest", "earliest", "none"), "With no offset."),
        Setting(
            "isolation.level", "c", "read_uncommitted", _one_of("read_uncommitted", "read_committed"),
            "Whether records of open and aborted transactions are returned.",
        ),
        Setting("fetch.min.bytes", "c", 1, _whole(0, _INT32), "Bytes that the server waits for before it answers."),
        Setting("fetch.max.wait.ms", "c", 500, _whole(0, _INT32), "Longest wait for fetch.min.bytes."),
        Setting("fetch.max.bytes", "c", 52_428_800, _whole(1, _INT32), "Largest answer, bytes."),
        Setting("max.partition.fetch.bytes", "c", 1_048_576, _whole(1, _INT32), "Largest share of a partition."),
        Setting("max.poll.records", "c", 500, _whole(1, _INT32), "Most records that one poll returns."),
        Setting(
            "client.rack", "c", "", _text,
            "The consumer's rack. Where brokers choose replicas by rack, it reads from one in its rack (KIP-392).",
        ),
        Setting("check.crcs", "c", True, _flag, "Whether to check each batch's CRC."),
    )
}


class Options:
    """Settings that were read: `options["linger.ms"]`. Settings that were not given have their defaults."""

    def __init__(self, given: Settings, user: str) -> None:
        self._values: dict[str, Any] = {s.name: s.default for s in SETTINGS.values() if user in s.users}
        self.given = frozenset(given)
        for name, value in given.items():
            setting = SETTINGS.get(name)
            if setting is None or user not in setting.users:
                raise SettingsError(_unknown(name, user))
            try:
                self._values[name] = setting.read(value)
            except (ValueError, TypeError) as error:
                shown = "" if setting.secret else f" = {value!r}"
                raise SettingsError(f"{name}{shown}: {error}") from None
        if self._values["bootstrap.servers"] is None:
            raise SettingsError("bootstrap.servers is missing: give host:port of a node")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]


def known_to(user: str, given: Settings) -> dict[str, object]:
    """`given` without the settings that other clients have and this one does not: for a file that serves all."""
    return {
        name: value for name, value in given.items() if name not in SETTINGS or user in SETTINGS[name].users}


def _unknown(name: str, user: str) -> str:
    known = [s.name for s in SETTINGS.values() if user in s.users]
    near = difflib.get_close_matches(name, known, 1)
    role = {"p": "a producer", "c": "a consumer", "a": "an admin client"}[user]
    if name in SETTINGS:
        return f"{name} is not a setting of {role}"
    return f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else f" of {role}")


def producer_options(given: Settings) -> Options:
    """Reads a producer's settings. Raises SettingsError for settings that exclude each other."""
    options = Options(given, "p")
    values = options._values
    if values["transactional.id"] is not None and values["enable.idempotence"] is False:
        raise SettingsError("transactional.id needs enable.idempotence=true")
    if values["transaction.two.phase.commit.enable"]:
        if values["transactional.id"] is None:
            raise SettingsError("transaction.two.phase.commit.enable=true needs a transactional.id")
        if "transaction.timeout.ms" in options.given:
            raise SettingsError("transaction.timeout.ms has no effect with transaction.two.phase.commit.enable=true")
    weak = values["acks"] != -1 or values["retries"] == 0 or values["max.in.flight.requests.per.connection"] > 5
    if weak and "enable.idempotence" not in options.given and values["transactional.id"] is None:
        values["enable.idempotence"] = False  # as in Kafka's own client, a weaker setting turns it off
    if values["enable.idempotence"] and weak:
        raise SettingsError(
            "enable.idempotence=true needs acks=all, retries above 0 and"
            " max.in.flight.requests.per.connection of at most 5"
        )
    if values["delivery.timeout.ms"] < values["linger.ms"] + values["request.timeout.ms"]:
        if "delivery.timeout.ms" in options.given and "request.timeout.ms" in options.given:
            raise SettingsError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
        if "delivery.timeout.ms" in options.given:
            values["request.timeout.ms"] = max(1, values["delivery.timeout.ms"] - values["linger.ms"])
        else:
            values["delivery.timeout.ms"] = values["linger.ms"] + values["request.timeout.ms"]
    return options


def consumer_options(given: Settings) -> Options:
    """Reads a consumer's settings. Raises SettingsError for settings that exclude each other."""
    options = Options(given, "c")
    protocol = options["group.protocol"]
    if protocol == "consumer":
        foreign = {"partition.assignment.strategy", "heartbeat.interval.ms"} & options.given
    else:
        foreign = {"group.remote.assignor"} & options.given if protocol == "classic" else set()
    if foreign:
        raise SettingsError(f"{min(foreign)} is not used with group.protocol={protocol}")
    if options["group.instance.id"] == "":
        raise SettingsError("group.instance.id must not be empty")
    if options["enable.auto.commit"] and "enable.auto.commit" in options.given and options["group.id"] is None:
        raise SettingsError("enable.auto.commit=true needs a group.id")
    return options


def settings_table() -> str:
    """The table of docs/client.md."""
    rows = ["| setting | of | default | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = setting.default
        if default is None:
            default = "–"
        elif isinstance(default, bool):
            default = str(default).lower()
        elif setting.name == "acks":
            default = "all"
        elif isinstance(default, tuple):
            default = ", ".join(default)
        rows.append(f"| `{setting.name}` | {setting.users.upper()} | {default} | {setting.meaning} |")
    return "\n".join(rows) + "\n"
