"""DataFrames of a batch: checked, computed, and taken apart into rows and acknowledgements."""

from pyspark.sql import DataFrame

from holdfast.errors import InvalidRequestError
from holdfast.spark.subtask import COLUMN, Acknowledgement, decode_acknowledgements


def readable(frame: object, what: str) -> DataFrame:
    """The frame, if it has rows that can be read now.

    Args:
        frame: The user's argument.
        what: Says in an error what the frame is for.

    Raises:
        InvalidRequestError: The frame is a stream, or no DataFrame at all.
    """
    if not isinstance(frame, DataFrame):
        message = f"{what} must be a DataFrame, not {type(frame).__name__}"
        raise InvalidRequestError(message)
    if frame.isStreaming:
        message = f"{what} are a stream; make them of the rows that the function was given"
        raise InvalidRequestError(message)
    return frame


def compute(frame: DataFrame) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def rows_in(output: DataFrame) -> DataFrame:
    """The rows of an operator's output without the acknowledgements among them."""
    return output.where(f"{COLUMN} IS NULL").drop(COLUMN)


def acknowledgements_in(output: DataFrame) -> list[Acknowledgement]:
    """The acknowledgements among the rows of an operator's output."""
    reports = output.where(f"{COLUMN} IS NOT NULL").select(COLUMN).toArrow()
    return decode_acknowledgements(reports[COLUMN].to_pylist())
