"""The blocking classes: their futures, and that they have what the asyncio classes have."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from typing import Any

import pytest

from hapax import client
from hapax.client import blocking
from hapax.client.blocking import _copy
from hapax.client.errors import WrongState


async def test_a_delivery_that_the_caller_gave_up_is_left_alone() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(1)
    given_up: concurrent.futures.Future[int] = concurrent.futures.Future()
    given_up.cancel()
    _copy(done, given_up)
    assert given_up.cancelled()
    waited_for: concurrent.futures.Future[int] = concurrent.futures.Future()
    _copy(done, waited_for)
    assert waited_for.result(0) == 1


async def test_a_delivery_that_was_cancelled_ends_for_who_waits() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.cancel()
    target: concurrent.futures.Future[int] = concurrent.futures.Future()
    _copy(done, target)
    with pytest.raises(concurrent.futures.CancelledError):
        target.result(0)


def test_a_blocking_call_on_the_loops_own_thread_is_refused() -> None:
    """It would wait for itself. A finalizer may try: the garbage collector runs on any thread."""

    async def work() -> None:
        with pytest.raises(WrongState, match="would wait for itself"):
            blocking.run(asyncio.sleep(0))

    blocking.submit(work()).result(20)


def public(cls: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["Admin", "Consumer", "Leases", "MultiWriter", "Producer", "Writer"])
def test_every_public_method_has_a_blocking_twin_of_the_same_signature(name: str) -> None:
    asynchronous, twin = getattr(client, name), getattr(blocking, name)
    missing = public(asynchronous).keys() - public(twin).keys()
    assert missing == set()
    for method, wanted in public(asynchronous).items():
        found = public(twin)[method]
        assert isinstance(found, property) == isinstance(wanted, property), method
        if isinstance(wanted, property):
            continue
        assert not inspect.iscoroutinefunction(found), method
        of_twin, of_wanted = inspect.signature(found), inspect.signature(wanted)
        assert list(of_twin.parameters.values()) == list(of_wanted.parameters.values()), method
        # A Writer's commit() never returns.
        if method not in ("send", "send_batches", "transaction") and name != "Writer":
            assert of_twin.return_annotation == of_wanted.return_annotation, method
    assert twin.__iter__ if hasattr(asynchronous, "__aiter__") else True


def test_a_blocking_method_keeps_name_and_docstring() -> None:
    assert blocking.Consumer.poll.__name__ == "poll"
    assert blocking.Consumer.poll.__doc__ == client.Consumer.poll.__doc__


def test_a_generator_argument_is_read_on_the_callers_thread() -> None:
    """It may make blocking calls, which are refused on the loop's thread."""
    consumer = blocking.Consumer({"bootstrap.servers": "127.0.0.1:1"})
    consumer.assign(("topic", blocking.run(asyncio.sleep(0, index))) for index in range(2))
    assert consumer.assignment() == [("topic", 0), ("topic", 1)]


def test_an_overridden_method_is_called() -> None:
    joined = client.Joined("id", client.CommitToken("scope", 1), 7, 0, 1, 60_000, False, 0)
    writer = blocking.MultiWriter({"bootstrap.servers": "127.0.0.1:1"}, "id").writer(joined)
    with pytest.raises(WrongState, match="a writer does not decide"):
        writer.commit()


def test_a_callback_runs_on_the_thread_that_waits() -> None:
    here = blocking._OnCallersThread()
    threads: list[threading.Thread] = []

    def told(partitions: list[client.TopicPartition]) -> None:
        threads.append(threading.current_thread())
        assert blocking.run(asyncio.sleep(0, "a blocking call")) == "a blocking call"
        if not partitions:
            raise ZeroDivisionError

    wrapped = here.wrapped(told)
    assert wrapped is not None

    async def poll(partitions: list[client.TopicPartition]) -> str:
        await wrapped(partitions)  # type: ignore[misc]
        return "records"

    one = [client.TopicPartition("t", 0)]  # type: ignore[arg-type]
    assert here.run(poll(one)) == "records"
    with pytest.raises(ZeroDivisionError):
        here.run(poll([]))
    assert here.run(poll(one)) == "records"
    assert threads == [threading.current_thread()] * 3


def test_a_callback_that_is_interrupted_ends_the_call_and_leaves_nothing_behind() -> None:
    here = blocking._OnCallersThread()
    ended = threading.Event()

    def interrupted(partitions: list[client.TopicPartition]) -> None:
        raise KeyboardInterrupt

    wrapped = here.wrapped(interrupted)
    assert wrapped is not None

    async def poll() -> None:
        try:
            await wrapped([])  # type: ignore[misc]
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        here.run(poll())
    assert ended.wait(20)
    assert here.run(asyncio.sleep(0, "next")) == "next"
