"""The operator of `KeyedRows.async_map`: rows get columns that an asynchronous function looks up by key.

Each key of a batch is looked up once, many at a time, and the results are kept in state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType
from tenacity import AsyncRetrying, stop_after_attempt, wait_random_exponential

from holdfast.backends.descriptors import StateTtlConfig, ValueStateDescriptor
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys, ValueColumns
from holdfast.errors import InvalidRequestError
from holdfast.spark.keyed_batches import KeyedBatchFunction
from holdfast.spark.operators import OutputRows, key_tuples, named_key

Columns: TypeAlias = tuple[Any, ...] | Mapping[str, Any]
"""The values of the new columns: a tuple in their order, or a mapping by their names."""

Lookup = Callable[..., Awaitable[Columns | None]]
"""Called with a key, and with the client if there is one; returns the columns, or None for nulls."""

Client = Callable[[], AbstractAsyncContextManager[Any]]

_STATE = "columns"
_EXISTS = pa.field("exists", pa.bool_())


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupLimits:
    """The limits of look-ups in a subtask.

    Attributes:
        max_concurrency: Maximum number of look-ups at a time.
        timeout: Maximum duration of an attempt.
        max_attempts: Maximum number of attempts for a key.
    """

    max_concurrency: int
    timeout: timedelta
    max_attempts: int

    def __post_init__(self) -> None:
        for name in ("max_concurrency", "max_attempts"):
            number = getattr(self, name)
            if type(number) is not int or number < 1:
                raise InvalidRequestError(f"{name} must be an integer >= 1, got {number!r}")
        if not isinstance(self.timeout, timedelta) or self.timeout <= timedelta(0):
            raise InvalidRequestError(f"timeout must be a positive timedelta, got {self.timeout!r}")


def enriched_schema(rows: StructType, columns: StructType) -> StructType:
    """Return the columns of rows with the new ones. Raises `InvalidRequestError` if a name is there twice."""
    known = {field.name.lower() for field in rows}
    both = sorted(field.name for field in columns if field.name.lower() in known)
    if both or not len(columns):
        raise InvalidRequestError(
            f"rows already have the columns {both}; give the new ones other names"
            if both
            else "name at least one new column, such as 'tier string'"
        )
    return StructType([StructField(each.name, each.dataType) for each in [*rows, *columns]])


class AsyncMap(KeyedBatchFunction):
    """Adds the columns that a function returns for the key of each row; rows keep their order.

    Arguments are those of `KeyedRows.async_map`.
    """

    state_names = (_STATE,)

    def __init__(
        self, function: Lookup, client: Client | None, ttl: timedelta | None, limits: LookupLimits
    ) -> None:
        if not callable(function):
            raise InvalidRequestError(
                f"function must be an async function of a key, got {function!r}"
            )
        self._function = function
        self._client = client
        self._ttl = ttl
        self._limits = limits

    def open(self, context: FunctionInitializationContext) -> None:
        assert context.output_schema is not None  # Spark's schema of the rows
        new = list(context.output_schema)[len(context.input_schema) :]
        self._columns = pa.schema(new)
        self._type = pa.struct([_EXISTS, *new])
        self._output = context.output_schema
        ttl = StateTtlConfig(self._ttl) if self._ttl else None
        descriptor = ValueStateDescriptor(_STATE, self._type, ttl=ttl)
        self._state: ValueColumns = self.store.get_state(descriptor).columns

    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = self._look_up(keys)
        start = 0
        for part in parts:
            own = values.take(pa.array(keys.codes[start : start + part.num_rows]))
            start += part.num_rows
            columns = [own.field(index + 1) for index in range(len(self._columns))]
            yield pa.RecordBatch.from_arrays([*part.columns, *columns], schema=self._output)

    def _look_up(self, keys: Keys) -> pa.StructArray:
        """Return the values of all keys: those in state, and those of the function, which are stored."""
        known = self._state.get(keys)
        missing = np.flatnonzero(known.is_null().to_numpy(zero_copy_only=False))
        if not len(missing):
            return known
        names, new_keys = self.store.key.names, keys.take(missing)
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop
            tuples = key_tuples(names, new_keys, named_key(names))
            results = thread.submit(asyncio.run, self._call_all(tuples)).result()
        values = self._encode(results)
        if self._ttl != timedelta(0):
            self._state.put(new_keys, values)
        places = np.arange(len(keys))
        places[missing] = len(keys) + np.arange(len(missing))
        return pa.concat_arrays([known, values]).take(pa.array(places))

    async def _call_all(self, keys: Sequence[Any]) -> list[Columns | None]:
        """Call the function for all keys. The first failure cancels the other calls."""
        permits = asyncio.Semaphore(self._limits.max_concurrency)
        retries = AsyncRetrying(
            stop=stop_after_attempt(self._limits.max_attempts),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            reraise=True,
        )
        async with nullcontext() if self._client is None else self._client() as client:
            arguments = () if self._client is None else (client,)

            async def attempt(key: Any) -> Columns | None:
                limit = self._limits.timeout
                try:
                    async with asyncio.timeout(limit.total_seconds()):
                        return await self._function(key, *arguments)
                except TimeoutError as error:
                    raise TimeoutError(f"a call of async_map's function took {limit}") from error

            async def call(key: Any) -> Columns | None:
                async with permits:
                    return await retries(attempt, key)

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(call(key)) for key in keys]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0]  # noqa: B904  # it is that of the function
        return [task.result() for task in tasks]

    def _encode(self, results: Sequence[Columns | None]) -> pa.StructArray:
        """Return the values of the state; a key without columns has a value too, so that it is not looked up again."""
        rows = OutputRows(self._columns)
        rows.add([columns for columns in results if columns is not None])
        table = pa.Table.from_batches(rows.take(), self._columns)
        is_known = np.array([columns is not None for columns in results], np.bool_)
        places = np.where(is_known, np.cumsum(is_known) - 1, 0)
        at = pa.array(places, mask=~is_known)
        columns = [column.take(at).combine_chunks() for column in table.columns]
        return pa.StructArray.from_arrays([pa.array(is_known), *columns], fields=list(self._type))
