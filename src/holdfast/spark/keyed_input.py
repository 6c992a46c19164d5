"""The rows of a stream with a key, and the output of an operator on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark import event_time
from holdfast.spark.event_time import LateRows
from holdfast.spark.keyed_output import KeyedOutput
from holdfast.spark.operators import Broadcast, Operator, StatefulFunction


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """The arguments of `keyed`, which explains them."""

    rows: DataFrame
    key: tuple[str, ...]
    uid: str
    parallelism: int | None
    max_parallelism: int | None
    persist: bool
    event_time: str | None
    late_rows: bool

    @property
    def has_watermark(self) -> bool:
        """True if the rows have a watermark, or the caller names the column that has it."""
        return self.event_time is not None or event_time.has_watermark(self.rows.schema)


def check_named(unnamed: tuple[object, ...]) -> None:
    """Refuse aggregates without names. Raises `InvalidRequestError`."""
    if unnamed:
        raise InvalidRequestError(
            f"aggregate {unnamed[0]!r} has no name; name its column, such as agg(orders=count())"
        )


def output_of(
    keyed_rows: KeyedInput,
    function: StatefulFunction,
    schema: StructType | str | None,
    *,
    event_time: str | None = None,
    side_outputs: Mapping[str, StructType | str] | None = None,
    broadcast: Broadcast | None = None,
    prepare: Callable[[DataFrame], Callable[[DataFrame], DataFrame]] | None = None,
    begin: Callable[[DataFrame], DataFrame] | None = None,
) -> KeyedOutput:
    """Return the output of a function on the rows. Arguments and errors are those of `Operator`."""
    is_function = isinstance(function, StatefulFunction)  # `Operator` refuses another object
    if is_function and function.time_mode == "event" and not function.keeps_late_rows:
        event_time = event_time or keyed_rows.event_time
    operator = Operator(
        function=function,
        uid=keyed_rows.uid,
        parallelism=keyed_rows.parallelism,
        max_parallelism=keyed_rows.max_parallelism,
        key=keyed_rows.key,
        schema=schema,
        persist=keyed_rows.persist,
        event_time=event_time,
        side_outputs=side_outputs or {},
        broadcast=broadcast,
        late_rows=keyed_rows.late_rows,
        prepare=prepare,
        begin=begin,
    )
    if operator.drops_late_rows:
        LateRows.of(keyed_rows.rows, event_time, uid=keyed_rows.uid)  # for its errors
    return KeyedOutput(keyed_rows.rows, operator)
