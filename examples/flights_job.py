"""A streaming job: flights come in small files and go out in Parquet files of one size.

    python -m examples.flights_job --source DIR --dir DIR [--checkpoints URI] [--drain] [--master URL]

It reads what is in the source directory, one file a micro-batch, and ends. Started again, it resumes
where it was, also after a kill. With `--drain` it writes the rest of the rows too.
"""

import sys
from collections.abc import Sequence

from examples.demo.job_start import flights, options_of, places_of, session
from examples.demo.places import FLIGHTS
from examples.right_size import RightSize, parquet_sink
from holdfast import stateful

ROWS_PER_FILE = 10_000
PARALLELISM = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job to the end of the source."""
    parser = options_of(FLIGHTS, __doc__)
    parser.add_argument("--drain", action="store_true", help="write the rest of the rows too")
    options = parser.parse_args(arguments)
    places = places_of(FLIGHTS, options)
    spark = session(places, options.master)
    (output,) = places.outputs
    query = (
        flights(spark, options.source)
        .writeStream.foreachBatch(
            stateful(
                RightSize(ROWS_PER_FILE, drain=options.drain),
                sink=parquet_sink(f"file://{output}", ROWS_PER_FILE),
                uid="right-size",
                parallelism=PARALLELISM,
            )
        )
        .option("checkpointLocation", f"file://{places.spark_checkpoints}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
