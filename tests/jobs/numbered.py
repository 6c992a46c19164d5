"""A query with state of Spark's own and an operator of Holdfast behind it."""

from pathlib import Path

from jobs.operators import CountsLongs
from jobs.sums import Sums, expected
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful


class Numbered(Sums):
    """Sums by key, which then go through an operator that numbers them all."""

    def __init__(
        self, spark: SparkSession, source: Path, checkpoint: str, settings: dict[str, str]
    ) -> None:
        super().__init__(spark, source, checkpoint, settings, _totals)
        self.function = stateful(
            CountsLongs(),
            sink=self.take,
            uid="numbered",
            parallelism=1,
            schema="id long, nth long, subtask int",
        )

    def seen(self) -> dict[int, tuple[list[int], list[int]]]:
        """Totals and numbers of each batch."""
        return {
            batch: (sorted(row[0] for row in rows), sorted(row[1] for row in rows))  # type: ignore[misc]
            for batch, rows in self.batches.items()
        }


def _totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.sum("value").alias("id")).select("id")


def numbered(batches: range) -> dict[int, tuple[list[int], list[int]]]:
    """What comes out of it."""
    return {
        batch: (sorted(total for _, total, _ in rows), list(range(7 * batch, 7 * batch + 7)))
        for batch, rows in expected(batches).items()
    }
