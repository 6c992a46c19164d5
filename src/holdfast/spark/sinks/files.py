"""A sink that writes files: a directory for each batch, which a repetition of the batch replaces."""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink

__all__ = ["replace"]


def replace(
    directory: str,
    *,
    format: str = "parquet",
    options: Mapping[str, str] | None = None,
    column: str = "batch",
) -> Sink:
    """Write the rows of each batch to a separate directory, `batch=17`, and replace it when the batch is repeated.

    Spark and other engines read all batches as one dataset, with the batch id as column `batch`. A reader can see a batch
    that is half written; files of the batch are complete once its directory has `_SUCCESS`.

    Args:
        directory: The directory of all batches.
        format: The format of the files, as in Spark's `DataFrameWriter`: parquet, orc, json, csv.
        options: Further options of the writer.
        column: The name of the batch in the names of directories.

    Raises:
        InvalidRequestError: In the batch: the rows have a column of this name.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        if column.lower() in map(str.lower, rows.columns):
            message = (
                f"the rows have a column {column!r}, which readers would take from the names of the directories; "
                "pass another column="
            )
            raise InvalidRequestError(message)
        path = f"{directory.rstrip('/')}/{column}={batch_id}"
        rows.write.format(format).mode("overwrite").options(**(options or {})).save(path)

    return write
