"""Columns that an async function looks up: each key once, from state, in the order of rows, and within limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from jobs.job import Job, keyed_stream, run_keyed
from jobs.keyed_subtasks import KeyedSubtasks
from pyspark.sql.types import StructType

from holdfast import keyed
from holdfast.errors import InvalidRequestError
from holdfast.spark.enrichment import AsyncMap, LookupLimits, enriched_schema

KEY = pa.schema([("k", pa.int64())])
OUTPUT = pa.schema(
    [("k", pa.int64()), ("n", pa.int64()), ("name", pa.string()), ("size", pa.int32())]
)
LIMITS = LookupLimits(max_concurrency=3, timeout=timedelta(seconds=20), max_attempts=3)


@dataclass
class Service:
    """A service that knows the even keys.

    Attributes:
        calls: The keys of all calls.
        max_running: The maximum number of calls at a time.
        failures: Number of calls of each key that fail first.
    """

    calls: list[int | None] = field(default_factory=list)
    max_running: int = 0
    failures: dict[int | None, int] = field(default_factory=dict)
    running: int = 0

    async def find(self, key: Any) -> tuple[str, int] | dict[str, Any] | None:
        self.calls.append(key.k)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.failures.get(key.k, 0):
            self.failures[key.k] -= 1
            raise ConnectionError(f"no answer for {key.k}")
        if key.k is None:
            return {"size": 0, "name": "none"}
        return None if key.k % 2 else (f"name {key.k}", key.k)

    def subtasks(self, ttl: timedelta | None = None, **limits: Any) -> KeyedSubtasks:
        chosen = LookupLimits(
            **{
                "max_concurrency": 3,
                "timeout": timedelta(seconds=20),
                "max_attempts": 3,
                **limits,
            }
        )
        return KeyedSubtasks(lambda: AsyncMap(self.find, None, ttl, chosen), KEY, output=OUTPUT)


def table(*keys: int | None) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "n": range(len(keys))})


def row(number: int, key: int | None) -> dict[str, Any]:
    """Return the row that is expected for a key."""
    if key is None:
        return {"k": None, "n": number, "name": "none", "size": 0}
    is_known = key % 2 == 0
    return {
        "k": key,
        "n": number,
        "name": f"name {key}" if is_known else None,
        "size": key if is_known else None,
    }


def test_each_key_is_looked_up_once_and_rows_keep_their_order() -> None:
    service = Service()
    subtasks = service.subtasks()
    keys = [4, 1, None, 4, 8, 1, 7, 10, 12, None]
    out = subtasks.batch(table(*keys))
    assert out == [row(number, key) for number, key in enumerate(keys)]
    assert sorted(service.calls, key=str) == sorted({*keys}, key=str)
    assert service.max_running == 3
    subtasks.parallelism = 2
    out = subtasks.batch(table(*keys, 2), replays=1)
    assert sorted(out, key=lambda each: each["n"]) == [
        row(number, key) for number, key in enumerate([*keys, 2])
    ]
    assert service.calls.count(2) == 2  # in both runs of the batch
    assert service.calls.count(1) == service.calls.count(None) == 1


def test_columns_are_looked_up_again_after_their_time_to_live() -> None:
    service = Service()
    subtasks = service.subtasks(timedelta(milliseconds=50))
    for now, calls in ((1, 1), (40, 1), (51, 2)):
        assert subtasks.batch(table(4), batch_time=now) == [row(0, 4)]
        assert service.calls == [4] * calls
    service.calls.clear()
    subtasks = service.subtasks(timedelta(0))
    for _ in range(2):
        subtasks.batch(table(4, 4))
    assert service.calls == [4, 4]


def test_failed_calls_are_repeated_and_then_fail_the_batch() -> None:
    service = Service(failures={4: 2})
    assert service.subtasks().batch(table(4, 6)) == [row(0, 4), row(1, 6)]
    assert sorted(service.calls, key=str) == [4, 4, 4, 6]
    service = Service(failures={4: 2})
    with pytest.raises(ConnectionError, match="no answer for 4"):
        service.subtasks(max_attempts=2).batch(table(4, 6))


def test_timeout_of_a_call_fails_the_batch() -> None:
    async def wait(_key: Any) -> None:
        await asyncio.Event().wait()

    limits = LookupLimits(max_concurrency=1, timeout=timedelta(milliseconds=1), max_attempts=1)
    subtasks = KeyedSubtasks(lambda: AsyncMap(wait, None, None, limits), KEY, output=OUTPUT)
    with pytest.raises(TimeoutError, match=r"took 0:00:00\.001000"):
        subtasks.batch(table(1))


def test_client_is_entered_once_for_new_keys() -> None:
    entered = []

    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        entered.append("entered")
        yield "client"
        entered.append("left")

    async def find(key: Any, client: str) -> tuple[str, int]:
        return client, key.k

    subtasks = KeyedSubtasks(lambda: AsyncMap(find, client, None, LIMITS), KEY, output=OUTPUT)
    for _ in range(2):
        out = subtasks.batch(table(1, 2))
        assert [each["name"] for each in out] == ["client", "client"]
    assert entered == ["entered", "left"]


def test_bad_results_and_arguments_are_refused(job: Job) -> None:
    async def find(_key: Any) -> tuple[str]:
        return ("one",)

    subtasks = KeyedSubtasks(lambda: AsyncMap(find, None, None, LIMITS), KEY, output=OUTPUT)
    with pytest.raises(InvalidRequestError, match="1 values was yielded"):
        subtasks.batch(table(1))
    by_key: Any = keyed(keyed_stream(job), "key", uid="enriched")
    for arguments, message in (
        ({"columns": "key string"}, r"already have the columns \['key'\]"),
        ({"max_concurrency": 0}, "max_concurrency must be an integer >= 1"),
        ({"max_attempts": True}, "max_attempts must be an integer >= 1"),
        ({"timeout": timedelta(0)}, "timeout must be a positive"),
        ({"ttl": 5}, "ttl must be a timedelta"),
        ({"function": 5}, "must be an async function"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            by_key.async_map(**{"function": find, "columns": "name string", **arguments})
    with pytest.raises(InvalidRequestError, match="at least one new column"):
        enriched_schema(StructType(), StructType())


def test_rows_are_enriched_over_restarts(job: Job) -> None:
    async def find(key: Any) -> dict[str, Any]:
        return {"name": f"name {key.key}"}

    for parallelism in (2, 3):
        job.feed(files=1, rows=4)
        by_key = keyed(keyed_stream(job), "key", uid="enriched", parallelism=parallelism)
        out = run_keyed(job, by_key.async_map(find, "name string", ttl=timedelta(hours=1)))
        (rows,) = out.values()
        assert [(each[0], each[3]) for each in rows] == [
            (each[0], f"name {each[0]}") for each in rows
        ]
        assert len(rows) == 4
