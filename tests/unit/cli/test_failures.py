"""How commands fail: each failure has its exit code, says what happened and gives advice that helps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from hapax.cli import administration
from hapax.cli.main import COMMANDS, GROUPS, application
from hapax.client import (
    AbortableError,
    FencedError,
    HapaxError,
    NotHapaxError,
    RetriableError,
    SettingsError,
)
from hapax.client.errors import connection_failed, from_code, from_trouble
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.states import Trouble

NOWHERE = "127.0.0.1:1"


class Admin:
    """Starts unless `refuses`. Every call raises `error`."""

    refuses: HapaxError | None = None
    error: HapaxError = HapaxError("")

    def __init__(self, settings: object) -> None:
        pass

    async def start(self) -> None:
        if self.refuses is not None:
            raise self.refuses

    async def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*_: object, **__: object) -> None:
            raise type(self).error

        return call


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Admin]]:
    monkeypatch.setattr(administration, "Admin", Admin)
    yield Admin
    Admin.refuses = None


def invoke(*words: str, given: str = "") -> Any:
    done = CliRunner().invoke(application([words[0]]), words, input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def code(number: int, what: str, reason: str = "") -> HapaxError:
    return from_code(number, what, reason)


@pytest.mark.parametrize(
    ("error", "exit_code", "says", "advice"),
    [
        (code(3, "topic 't'"), 4, "topic 't': UNKNOWN_TOPIC_OR_PARTITION: there is no such topic", "Check the name"),
        (code(100, "t"), 4, "UNKNOWN_TOPIC_ID", "list the topics"),
        (code(69, "group 'g'"), 4, "no offsets are committed", "Check the group's name"),
        (code(105, "id 'x'"), 4, "no producer has used", "Check the transactional id"),
        (code(29, "topic 't'"), 1, "may not use the topic", "administrator"),
        (code(30, "group 'g'"), 1, "GROUP_AUTHORIZATION_FAILED: this client may not use the group", "administrator"),
        (code(31, "cluster"), 1, "may not administer", "administrator"),
        (code(53, "id 'x'"), 1, "may not use the transactional id", "administrator"),
        (code(36, "topic 't'"), 1, "TOPIC_ALREADY_EXISTS", "Choose another name"),
        (code(40, "topic 't'", "no such configuration: x"), 1, "no such configuration: x", "Correct the configuration"),
        (code(41, "cluster"), 1, "no controller is active", "Check that a controller is running, then try again"),
        (code(15, "group 'g'"), 1, "no coordinator is available", "check that a coordinator is running"),
        (code(5, "t-0"), 1, "has no leader at the moment", "check that a broker with an in-sync replica is running"),
        (code(7, "t"), 1, "may still finish", "Check the result before trying again"),
        (code(25, "group 'g'"), 1, "from its members only", "stop its members first"),
        (code(88, "group 'g'"), 1, "open transaction", "once the transaction has ended"),
        (code(14, "group 'g'"), 1, "COORDINATOR_LOAD_IN_PROGRESS", "Try again"),
        (connection_failed("calling: reset"), 1, "calling: reset", "Check that the cluster is running"),
        (NotHapaxError("cluster 'k' is not Hapax"), 1, "is not Hapax", "needs a Hapax cluster"),
        (SettingsError("linger.ms = 'x': a whole number"), 2, "linger.ms", ""),
        (FencedError("lease 'x' was taken over by 'y'"), 1, "taken over by 'y'", "Another client holds"),
        (AbortableError("NOT_ENOUGH_REPLICAS"), 1, "NOT_ENOUGH_REPLICAS", "none of its records becomes visible"),
        (
            from_trouble(Trouble(ErrorKind.RETRY, ErrorCode.NETWORK_EXCEPTION, "lost"), maybe_written=True),
            1, "lost", "check the end of the topic",
        ),
        (
            from_trouble(Trouble(ErrorKind.RETRY, ErrorCode.NOT_ENOUGH_REPLICAS, "")),
            1, "fewer replicas are in sync than min.insync.replicas requires", "Check that the brokers are running",
        ),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_failure_has_its_exit_code_and_advice(
    admin: type[Admin], error: HapaxError, exit_code: int, says: str, advice: str
) -> None:
    admin.error = error
    done = invoke("topic", "list")
    assert done.exit_code == exit_code
    (line,) = done.stderr.splitlines()
    assert line.startswith("hapax: ") and says in line and advice in line.removeprefix(f"hapax: {says}")


@pytest.mark.parametrize("number", [3, 100, 29, 30, 31, 53, 36, 40, 105, 69])
def test_what_cannot_help_is_not_advised(admin: type[Admin], number: int) -> None:
    admin.error = code(number, "x")
    assert "ry again" not in invoke("topic", "list").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"), ("group", "list"), ("drain", "1"), ("reassign", "list"), ("replicas", "list"),
        ("cluster", "nodes"), ("txn", "list"),
    ],
)  # fmt: skip
def test_a_cluster_that_does_not_answer_has_an_exit_code_of_its_own(admin: type[Admin], words: tuple[str, ...]) -> None:
    admin.refuses = connection_failed("no node answers: refused")
    done = invoke(*words)
    assert (done.exit_code, "Check that the cluster is running" in done.stderr) == (3, True)


@pytest.mark.parametrize("words", [("consume", "t"), ("produce", "t"), ("lease", "list")])
def test_so_it_has_for_commands_with_clients_of_their_own(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(administration, "_FIND_TIMEOUT_MS", 100)
    limit = ("--set", "request.timeout.ms=100") if words[0] != "lease" else ()
    done = invoke(*words, *limit, "--bootstrap", NOWHERE)
    assert done.exit_code == 3 and NOWHERE in done.stderr and "Check that the cluster is running" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "offsets", "t", "--isolation-level", "read_comitted"),
        ("topic", "look", "t", "0", "--isolation-level", "read_comitted"),
        ("topic", "offsets", "t", "--at", "noon"),
        ("topic", "create", "t", "--config", "retention"),
        ("consume", "t", "--isolation-level", "read_comitted"),
        ("consume", "t", "--set", "isolation"),
        ("produce", "t", "--set", "lingr.ms=1"),
        ("topic", "list", "--bootstrap", "nowhere"),
        ("group", "reset", "g", "--topic", "t"),
        ("reassign", "start"),
        ("txn", "abort"),
        ("txn", "abort", "x", "--topic", "t"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_ends_a_command_before_it_calls_the_cluster(words: tuple[str, ...]) -> None:
    bootstrap = () if "--bootstrap" in words else ("--bootstrap", NOWHERE)
    done = invoke(*words, *bootstrap)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "Check that the cluster" not in done.stderr


def test_a_wrong_setting_is_named_with_the_nearest_one() -> None:
    done = invoke("produce", "t", "--set", "lingr.ms=1", "--bootstrap", NOWHERE)
    assert "did you mean 'linger.ms'?" in done.stderr


def test_a_retriable_error_without_an_explanation_keeps_its_advice() -> None:
    assert administration.sentence(RetriableError("busy")) == "busy. Try again"


def commands(name: str) -> Iterator[tuple[str, click.Command]]:
    found = typer.main.get_command(application([name])).commands[name]  # type: ignore[attr-defined]
    if hasattr(found, "commands"):
        yield from ((f"{name} {each}", command) for each, command in found.commands.items())
    else:
        yield name, found


@pytest.mark.parametrize("name", [*GROUPS, *COMMANDS])
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    for path, command in commands(name):
        assert command.help and command.help.rstrip().endswith("."), path
        for parameter in command.params:
            if parameter.param_type_name == "option":
                text = inspect.cleandoc(parameter.help or "")  # type: ignore[attr-defined]
                assert text and (text.endswith(".") or ":" in text), (path, parameter.name)
