"""How a task attempt joins its batch's transaction: early and tentatively while it waits for rows, and with rows."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from hapax.client import Joined, Winner
from hapax_spark.arrow import output_columns
from hapax_spark.cluster import Attempt, Cluster
from hapax_spark.options import Options
from hapax_spark.tokens import Token

TOKEN = Token("spark-q", "q", 3, owner="q", run="live")
ROWS = pa.record_batch([pa.array(["a", "b"])], names=["value"])
VALUE = StructType([StructField("value", StringType())])
KEYED = StructType([StructField("key", StringType()), *VALUE])


class Transactions:
    """Of one transactional id. `others`: the open transaction belongs to another run."""

    def __init__(self, others: bool) -> None:
        self.others = others
        self.joins: list[tuple[bool, tuple[str, int] | None]] = []
        """Tentative, and the first partition."""
        self.sent: list[tuple[str, int, int]] = []

    async def join(self, token: Any, key: str, *, timeout_ms: int, first: Any, tentative: bool) -> Joined:
        self.joins.append((tentative, first))
        return Joined(
            "spark-q", token, 7, 0, 1, timeout_ms, False, 0, first, b"a pass", not (tentative and self.others))

    def writer(self, joined: Joined, *, shared: bool) -> Any:
        assert joined.noted, "nothing is written by a member whose run does not count"

        async def send_batch(topic: str, partition: int, data: bytes, records: int) -> None:
            self.sent.append((topic, partition, records))

        async def finish() -> Winner:
            return Winner(7, 0, (), 2)

        async def nothing() -> None: ...

        writer = SimpleNamespace(send_batch=send_batch, finish=finish, close=nothing)

        async def start() -> Any:
            return writer

        writer.start = start
        return writer

    async def existing_topics(self, names: Iterable[str]) -> set[str]:
        return set(names)

    async def partitions_of(self, topic: str) -> int:
        return 4

    def available_partitions(self, topic: str) -> list[int]:
        return [0, 1, 2, 3]


class World(Cluster):
    def __init__(self, *, others: bool = False) -> None:
        super().__init__(Options("host:1", topic="t"))
        self.made = Transactions(others)
        self.wrote = ("spark-q", "q")

    async def transactions(self, transactional_id: str) -> Any:
        return self.made


def attempt(world: World, schema: StructType = VALUE, *, early: bool = True) -> Attempt:
    return Attempt(world, TOKEN, "task", output_columns(schema, "t"), early=early)


def early_join(world: World, task: Attempt) -> None:
    """Waits for it."""
    async def joined() -> None:
        await task._place(tentative=True)

    world.run(joined())


def test_the_first_batch_goes_to_the_partition_that_the_early_join_named() -> None:
    world = World()
    task = attempt(world)
    early_join(world, task)
    task.write(ROWS)
    task.write(ROWS)
    task.finish()
    ((tentative, first),) = world.made.joins
    assert tentative and first is not None
    assert world.made.sent == [(*first, 2), ("t", (first[1] + 1) % 4, 2)]


def test_rows_make_the_run_count_where_another_one_wrote_before() -> None:
    """This one may be the live driver's, and the other one's transaction a leftover."""
    world = World(others=True)
    task = attempt(world)
    early_join(world, task)
    task.write(ROWS)
    task.finish()
    assert [tentative for tentative, _ in world.made.joins] == [True, False]


def test_a_task_without_rows_never_makes_it_count() -> None:
    world = World(others=True)
    task = attempt(world)
    early_join(world, task)
    assert task.finish() is None
    task.leave()
    assert [tentative for tentative, _ in world.made.joins] == [True]


def test_a_task_that_joins_with_its_first_row_joins_once() -> None:
    world = World(others=True)
    task = attempt(world, early=False)
    task.write(ROWS)
    task.finish()
    assert [tentative for tentative, _ in world.made.joins] == [False]


def test_rows_with_keys_name_no_partition() -> None:
    world = World()
    task = attempt(world, KEYED)
    early_join(world, task)
    task.leave()
    assert world.made.joins == [(True, None)]
