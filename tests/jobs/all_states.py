"""An operator with state of every type, and a stopped query that has it, without Spark."""

from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
from jobs.keyed import TOTALS_INPUT, KeyedJob
from jobs.stopped_query import QUERY, put, write_query

from holdfast import StatefulFunction
from holdfast.backends import (
    FunctionInitializationContext,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import BackendName
from holdfast.spark.checkpoint_location import LINK_FILE, Link, encode_link
from holdfast.spark.settings import StateSettings

TOTALS = pa.schema([("key", pa.int64()), ("total", pa.int64())])
KEYED_STATES = ("totals", "last", "ids", "pages")
TTL_MS = 1_000
KEYS = range(300)


class AllStates(StatefulFunction):
    """Keeps the ids of each key in every type of state, and yields their sum."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        ttl = StateTtlConfig(timedelta(milliseconds=TTL_MS))
        self.store = context.keyed_state_store
        self.totals = self.store.get_reducing_state(ReducingStateDescriptor("totals", "sum", int))
        self.last = self.store.get_state(ValueStateDescriptor("last", int, ttl=ttl))
        self.ids = self.store.get_list_state(ListStateDescriptor("ids", int))
        self.pages = self.store.get_map_state(MapStateDescriptor("pages", int, int))
        self.timers = self.store.event_time_timers()
        self.batches = context.operator_state_store.get_union_list_state(
            ListStateDescriptor("batches", int)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = self.store.keys(batch)
            ids = batch["id"]
            self.totals.columns.add(keys, ids)
            self.last.columns.put(keys, ids)
            self.ids.columns.append(keys, ids)
            self.pages.columns.put(keys, pa.array([id % 3 for id in ids.to_pylist()]), ids)
            self.timers.columns.register(keys, [60_000] * len(keys))
            self.batches.update([len(batch)])
            yield pa.record_batch([keys.columns[0], self.totals.columns.get(keys)], TOTALS.names)


def all_states_job(
    directory: str,
    *,
    backend: BackendName = "columnar",
    parallelism: int = 2,
    job_id: str = QUERY,
    query_id: str = QUERY,
    claimed: str | None = None,
) -> KeyedJob:
    """Return a start of the query, which may claim a savepoint."""
    return KeyedJob(
        directory,
        AllStates(),
        schema=TOTALS_INPUT,
        output=TOTALS,
        parallelism=parallelism,
        job_id=job_id,
        query_id=query_id,
        start=claimed,
        claims_start=claimed is not None,
        state=StateSettings(backend=backend),
    )


def write_stopped_with_all_states(directory: str, backend: BackendName = "columnar") -> str:
    """Write a query with four finished batches, a second apart, and return its checkpointLocation.

    Each batch has 50 keys fewer than the one before. States that live for a second have only rows of the last batch.
    """
    location, checkpoints = f"{directory}/original", f"{directory}/checkpoints"
    write_query(location, batches=4)
    job = all_states_job(checkpoints, backend=backend)
    for batch in range(4):
        rows = [{"key": key, "id": 10 * key + batch} for key in KEYS[50 * batch :]]
        job.run(rows, times=(TTL_MS * batch, 0))
    link = Link(checkpoint_dir=checkpoints, job_id=QUERY, storage="filesystem")
    put(f"{location}/{LINK_FILE}", encode_link(link))
    return location
