"""A streaming job that keeps state by key: what it learns of each aircraft from the flights.

    python -m examples.fleet_job --source DIR --dir DIR [--checkpoints URI] [--master URL]

Three operators share the flights, and one checkpoint:

    delays      flights, mean and greatest delay of each aircraft on each route, when they change
    sessions    times in which an aircraft is in use: flights not more than three days apart
    grounded    reports of aircraft that have not flown for two weeks, by timers

It reads what is in the source directory, one file a micro-batch, and ends. Started again, it resumes
where it was, also after a kill.
"""

import sys
from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame

import holdfast as hf
from examples.demo.job_start import flights, options_of, places_of, session
from examples.demo.places import FLEET
from examples.grounded import Grounded
from holdfast import IdleTicks, keyed, stateful_query

PARALLELISM = 2
SESSION_GAP = timedelta(days=3)
GROUNDED_AFTER = timedelta(days=14)
# Flights come in the order in which they left, some nearly a day late.
WATERMARK_DELAY = timedelta(days=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job to the end of the source."""
    options = options_of(FLEET, __doc__).parse_args(arguments)
    places = places_of(FLEET, options)
    spark = session(places, options.master)
    flown = (
        flights(spark, options.source)
        .where("dep_time is not null")  # not cancelled
        .withWatermark("time_hour", f"{WATERMARK_DELAY.days} days")
    )
    by_route = keyed(
        flown, ["tailnum", "origin", "dest"], uid="delays", parallelism=PARALLELISM
    ).agg(flights=hf.count(), mean=hf.avg("dep_delay"), greatest=hf.max("dep_delay"))
    in_use = (
        keyed(flown, "tailnum", uid="sessions", parallelism=PARALLELISM)
        .window(hf.session_windows(SESSION_GAP), time="time_hour")
        .agg(flights=hf.count(), miles=hf.sum("distance"))
    )
    grounded = keyed(flown, "tailnum", uid="grounded", parallelism=PARALLELISM).process(
        Grounded(GROUNDED_AFTER), "tailnum string, last_flight timestamp"
    )
    operators = [by_route.operator, in_use.operator, grounded.operator]

    def process(batch: DataFrame, batch_id: int) -> None:
        for operator, output in zip(operators, places.outputs, strict=True):
            # A batch that is repeated after a crash replaces what it wrote before it.
            rows = operator.apply(batch)
            rows.write.mode("overwrite").parquet(f"file://{output}/batch={batch_id}")

    idle_ticks = IdleTicks()  # batches for timers, when the source has no more files
    query = (
        idle_ticks.add_to(flown)
        .writeStream.foreachBatch(stateful_query(process, *operators, idle_ticks=idle_ticks))
        .option("checkpointLocation", f"file://{places.spark_checkpoints}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
