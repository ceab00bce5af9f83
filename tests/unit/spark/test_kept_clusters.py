"""Connections that outlive a task: whose they are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from hapax.client import blocking
from hapax_spark.cluster import close_kept_clusters, kept_cluster
from hapax_spark.options import Options


class Client:
    """What a kept cluster disconnects."""

    def __init__(self) -> None:
        self.closed = 0

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    close_kept_clusters()
    yield
    close_kept_clusters()


def use(number: int) -> None:
    with kept_cluster(Options(f"host:{number}")):
        pass


def test_a_forked_process_leaves_its_parents_connections_alone() -> None:
    """It makes its own. Those of the parent belong to a loop that it does not have, on sockets that both share."""
    with kept_cluster(Options("host:1")) as parents:
        client = parents.start(Client())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in range(1, 10):
                use(number)
            close_kept_clusters()
            blocking.run(asyncio.sleep(0))  # what is to be closed is closed by now
            code = client.closed
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with kept_cluster(Options("host:1")) as again:
        assert again is parents and client.closed == 0
