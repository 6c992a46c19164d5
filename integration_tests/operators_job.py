"""A query with joins, a co-process function, deduplication, changes, top rows and look-ups, to be killed.

    python -m integration_tests.operators_job --source DIR --dir DIR [--checkpoints URI] [--master URL]

It reads flights, a file a micro-batch, and ends. Flights from two airports are the two streams of joins.
"""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from examples.demo.job_start import flights, options_of, places_of, session
from examples.demo.places import Job
from holdfast import IdleTicks, KeyedCoProcessFunction, keyed, stateful_query
from holdfast.backends import FunctionInitializationContext, ReducingStateDescriptor

JOB = Job(
    "operators",
    outputs=("pairs", "asof", "counts", "newest", "changes", "top", "looked_up"),
    package="integration_tests",
)
DELAY = timedelta(days=2)
GAP = timedelta(days=1)
TOP = 3
AIRPORTS = ("EWR", "LGA")


class Counts(KeyedCoProcessFunction):
    """Counts the flights of an aircraft from either airport."""

    def open(self, context: FunctionInitializationContext) -> None:
        store = context.keyed_state_store
        self.counts = [
            store.get_reducing_state(ReducingStateDescriptor(airport, "sum", int))
            for airport in AIRPORTS
        ]

    def process_first(self, key: Any, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        return self.add(key, 0, rows.num_rows)

    def process_second(self, key: Any, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        return self.add(key, 1, rows.num_rows)

    def add(self, key: Any, airport: int, flights: int) -> Iterator[tuple[Any, ...]]:
        self.counts[airport].add(flights)
        yield key.tailnum, *(count.get() or 0 for count in self.counts)


async def look_up(key: Any) -> tuple[str]:
    """Return a name of an aircraft."""
    return (name_of(key.tailnum),)


def name_of(tailnum: str) -> str:
    return f"aircraft {tailnum}"


def main() -> int:
    """Run the job to the end of the source."""
    options = options_of(JOB, __doc__).parse_args()
    places = places_of(JOB, options)
    spark = session(places, options.master)
    # The default is an old type without a time zone.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    flown = flights(spark, options.source).where("dep_time is not null")
    # The second of the day is the flight number, so that an aircraft's flights have different times.
    time = "timestamp_seconds(unix_timestamp(time_hour) + flight)"
    first = flown.where(f"origin = '{AIRPORTS[0]}'").selectExpr(
        "tailnum", f"{time} as at", "flight"
    )
    second = flown.where(f"origin = '{AIRPORTS[1]}'").selectExpr(
        "tailnum", f"{time} as other_at", "flight as other_flight"
    )
    delay = f"{DELAY.days} days"
    first, second = first.withWatermark("at", delay), second.withWatermark("other_at", delay)

    pairs, asof, counts, newest, changes, top, looked_up = (
        keyed(first, "tailnum", uid=name, parallelism=2) for name in JOB.outputs
    )
    joined = pairs.connect(second).interval_join(
        time="at", other_time="other_at", lower=timedelta(0), upper=GAP, how="left"
    )
    both = [
        joined.operator,
        asof.connect(second).asof_join(time="at", other_time="other_at", how="left").operator,
        counts.connect(second)
        .process(Counts(), "tailnum string, first long, second long")
        .operator,
    ]
    single = [
        newest.deduplicate(keep="last", by="at").operator,
        changes.changes(by="at").operator,
        top.top_n(TOP, by="at").operator,
        looked_up.async_map(look_up, "name string").operator,
    ]

    def process(batch: DataFrame, batch_id: int) -> None:
        of_first = batch.where("first is not null").select("first.*")
        outputs = [operator.apply(batch) for operator in both]
        outputs += [operator.apply(of_first) for operator in single]
        for rows, output in zip(outputs, places.outputs, strict=True):
            # A batch that is repeated after a crash replaces what it wrote before it.
            rows.write.mode("overwrite").parquet(f"file://{output}/batch={batch_id}")

    idle_ticks = IdleTicks()
    query = (
        idle_ticks.add_to(joined.rows)
        .writeStream.foreachBatch(stateful_query(process, *both, *single, idle_ticks=idle_ticks))
        .option("checkpointLocation", f"file://{places.spark_checkpoints}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
