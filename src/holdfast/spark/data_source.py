"""The data source `holdfast`: states of checkpoints and savepoints as DataFrames.

Spark finds it in the package `pyspark_holdfast`. Options select a view, the driver looks it up, and tasks read it. The
second half casts Arrow data to Spark types that preserve every value.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.backends.arrow import conform, fields_of, is_bytes, is_text, paths_in, plain_type
from holdfast.backends.inspection import (
    Raw,
    ReadableState,
    StatePart,
    at_keys,
    key_schema,
    readable_state,
    states,
)
from holdfast.common import json_decoder, raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import acquire_lease, find_checkpoint, hold_checkpoint
from holdfast.spark.compat import (
    HAS_TIME_TYPE,
    IS_PYSPARK_4,
    DataSourceReader,
    InputPartition,
    arrow_schema_of,
    settings_of,
)
from holdfast.spark.event_time import check_rows_per_batch
from holdfast.spark.pushed_filters import keys_in
from holdfast.spark.sessions import register_source
from holdfast.spark.settings import Stores, check_settings, is_of_stores, nearest
from holdfast.spark_progress import subtasks

SETTINGS = "settings"
"""The option for Spark settings as a JSON object. Spark converts names of options to lower case."""

_OPTIONS = ("path", "view", "operator", "state", "raw", "kind", "key", SETTINGS)
_OPTIONS_OF_STORES = ("spark.hadoop.", "spark.holdfast.s3.")
_VIEWS = ("states", "elements", "metadata")

_MAX_DIGITS = 38


def scan_state(
    spark: SparkSession,
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Read a state of a checkpoint or savepoint as a DataFrame, with tasks of the session.

    The same as `spark.read.format("holdfast")`, plus the session's settings of stores, which Spark does not pass to
    data sources. Works with PySpark 3.5 too, which has no data sources in Python.

    Args:
        spark: The session, also one of Spark Connect.
        pointer: URI of the checkpoint or savepoint, or as for `holdfast.read_state`.
        operator: The operator's uid. Without it, `state` and `raw` the rows are a list of all states.
        state: The state's name; may be left out if the operator has only one state.
        raw: As for `holdfast.read_state`.
        kind: As for `holdfast.read_state`.
        key: Only read the rows of this key of keyed state: a value for each of the key's
            columns, by name, as in JSON or in the output of `holdfast cat`.

    Raises:
        TypeError: A value of the key is of another type.
        InvalidRequestError: Spark's Python data sources can't run with the session's number of rows per batch.
        pyspark.errors.AnalysisException: There is no such state, or it can't be read; the message
            lists the available names. With PySpark 3.5 the error is an `InvalidRequestError` or another
            `CheckpointError`.
    """
    settings = {key: text for key, text in settings_of(spark).items() if is_of_stores(key)}
    options = {SETTINGS: msgspec.json.encode(settings).decode()}
    named = {"operator": operator, "state": state, "raw": raw, "kind": kind}
    options |= {name: value for name, value in named.items() if value is not None}
    if key is not None:
        options["key"] = json.dumps(dict(key))
    if not IS_PYSPARK_4:
        return _scan_in_tasks(spark, StateView.of(options | {"path": fspath(pointer)}))
    from pyspark_holdfast import DefaultSource  # noqa: PLC0415  # PySpark 3.5 can't import it

    check_rows_per_batch(spark)
    register_source(spark, DefaultSource)
    return spark.read.format("holdfast").options(**options).load(fspath(pointer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A view of a checkpoint or savepoint: its rows in a table, or the state that has them.

    Attributes:
        stores: The settings of stores.
        schema: The columns of the rows.
        table: All rows, if they are few.
        state: The state that has the rows, otherwise; in the checkpoint whose directory is `checkpoint`.
    """

    stores: Stores
    schema: pa.Schema
    table: pa.Table | None = None
    state: ReadableState | None = None
    checkpoint: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StateView":
        """Return the view that options of the data source select; reads the checkpoint's metadata.

        Raises:
            InvalidRequestError: An option is unknown or can't be used, or there is no such state.
            CheckpointError: The checkpoint can't be read.
        """
        given = {key.lower(): value for key, value in options.items()}
        _check(given)
        # The message doesn't have the text, which may hold a secret.
        message = "option settings must be a JSON object with Spark settings"
        settings = _decode(given.get(SETTINGS, "{}"), dict[str, str], message) | {
            name: value for name, value in given.items() if name.startswith(_OPTIONS_OF_STORES)
        }
        check_settings(settings)
        pointer = given.get("path")
        if pointer is None:
            raise InvalidRequestError("no checkpoint or savepoint; pass one to load(...)")
        stores = Stores.parse(settings, pointer)
        stores.use()
        operator, state, raw = given.get("operator"), given.get("state"), given.get("raw")
        kind, key = given.get("kind"), None
        if (text := given.get("key")) is not None:
            message = f"option key must be a JSON object with the values of the key's columns, got {text!r}"
            key = _decode(text, dict[str, Any], message)
        is_named = any(value is not None for value in (operator, state, raw, kind, key))
        view = given.get("view", "elements" if is_named else "states").lower()
        match view:
            case "elements":
                checkpoint = find_checkpoint(pointer)
                readable = readable_state(
                    checkpoint.metadata,
                    operator,
                    state,
                    raw=raw,  # type: ignore[arg-type]  # checked there
                    kind=kind,
                    key=key,
                )
                return cls(
                    stores=stores,
                    schema=readable.schema,
                    state=readable,
                    checkpoint=checkpoint.location.external_pointer,
                )
            case "states" | "metadata" if is_named:
                message = (
                    f"view {view} shows all states; leave operator, state, raw, kind and key out"
                )
                raise InvalidRequestError(message)
            case "states" | "metadata":
                table = states(pointer) if view == "states" else subtasks(pointer)
                return cls(stores=stores, schema=table.schema, table=table)
        raise InvalidRequestError(f"no view {view!r}; views are {', '.join(_VIEWS)}")

    @property
    def spark_schema(self) -> StructType:
        """The columns of the view in Spark types. Raises `InvalidRequestError`."""
        return spark_schema_of(self.schema)


class StatePartition(InputPartition):
    """The part of a state that one task reads; None for a small table, which is in the view."""

    def __init__(self, part: StatePart | None) -> None:
        super().__init__(None)
        self.part = part


class StateReader(DataSourceReader):
    """Reads the rows of a view, which the driver has looked up for all tasks.

    Raises:
        InvalidRequestError: The columns that Spark expects are not those of the view.
    """

    def __init__(self, view: StateView, schema: StructType) -> None:
        if schema != view.spark_schema:
            message = (
                "the columns must be those of the state; leave schema(...) out, and cast afterwards"
            )
            raise InvalidRequestError(message)
        self._view = view
        self._schema = schema

    @property
    def pushFilters(self) -> Any:  # noqa: N802  # Spark's name
        """The method that Spark calls with filters if `spark.sql.python.filterPushdown.enabled` is true.

        Spark 4.1 refuses a reader that defines it if the setting is false, which is its default. It recognises such a
        reader by `__func__`.
        """
        push: Any = partial(self._push_filters)
        push.__func__ = getattr(DataSourceReader, "pushFilters", None)
        return push

    def _push_filters(self, filters: list[Any]) -> list[Any]:
        """Read only the rows of the keys that filters name. Returns all filters: Spark evaluates them again."""
        state = self._view.state
        if state is not None and (key := key_schema(state)) is not None:
            keys = keys_in(filters, key)
            if keys is not None:
                self._view = replace(self._view, state=at_keys(state, keys))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each subtask, or several if its state is large.

        The checkpoint is leased until tasks begin, which hold it themselves.
        """
        state = self._view.state
        acquire_lease(self._view.checkpoint)
        return [StatePartition(part) for part in (state.split() if state is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition, verifying each byte."""
        self._view.stores.use()
        part = getattr(partition, "part", None)
        batches: Iterable[pa.RecordBatch] = ()
        if self._view.table is not None:
            batches = self._view.table.to_batches()
        elif self._view.state is not None and part is not None:
            batches = self._view.state.batches([part])
        with hold_checkpoint(self._view.checkpoint):
            for batch in batches:
                yield for_spark(batch, self._schema)


def _scan_in_tasks(spark: SparkSession, view: StateView) -> DataFrame:
    """Read a view without a data source: the task of row i reads partition i."""
    schema = view.spark_schema
    reader = StateReader(view, schema)
    partitions = reader.partitions()

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(partitions[number])

    count = len(partitions)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(read, schema)


def _check(keys: Iterable[str]) -> None:
    for key in keys:
        if key not in _OPTIONS and not key.startswith(_OPTIONS_OF_STORES):
            similar = nearest(key, _OPTIONS)
            suggestion = (
                f"options are {', '.join(_OPTIONS)}"
                if similar is None
                else f"did you mean {similar!r}?"
            )
            raise InvalidRequestError(f"no option {key!r}; {suggestion}")


def _decode(text: str, type: Any, message: str) -> Any:
    try:
        return json_decoder(type).decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise InvalidRequestError(message) from None


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark types of columns, all nullable. Raises `InvalidRequestError`."""
    fields = [(field.name, _spark_type(field.type, field.name)) for field in schema]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)


def for_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Cast rows to the types of a Spark schema.

    Raises:
        InvalidRequestError: A value would change, such as a time with nanoseconds, which Spark doesn't have.
    """
    wanted = arrow_schema_of(schema)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        try:
            columns.append(conform(column, field.type))
        except pa.ArrowException as error:
            raise_shortage(error)
            message = (
                f"column {field.name!r} of type {column.type} has values that don't fit Spark's type; "
                "read them with holdfast.read_state"
            )
            raise InvalidRequestError(message) from None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _spark_type(type: pa.DataType, at: str) -> pa.DataType:
    """Return the Arrow type that Spark uses for a type."""
    type = plain_type(type)
    fields = fields_of(type)
    inner = [
        _spark_type(field.type, path)
        for field, path in zip(fields, paths_in(type, at), strict=True)
    ]
    if types.is_struct(type):
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise InvalidRequestError(
                f"{at} has two fields of the same name, which Spark does not support"
            )
        return pa.struct(list(zip(names, inner, strict=True)))
    if types.is_map(type):
        return pa.map_(*inner)
    if fields:
        return pa.list_(*inner)
    for is_type, spark_type in _SPARK_TYPES:
        if is_type(type):
            return spark_type(type)
    message = (
        f"{at} is of type {type}, which Spark does not support; read it with holdfast.read_state"
    )
    raise InvalidRequestError(message)


def _is_decimal(type: pa.DataType) -> bool:
    return bool(
        types.is_decimal(type)
        and type.precision <= _MAX_DIGITS
        and 0 <= type.scale <= type.precision
    )


_SPARK_TYPES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...
] = (
    (types.is_uint8, lambda _: pa.int16()),
    (types.is_uint16, lambda _: pa.int32()),
    (types.is_uint32, lambda _: pa.int64()),
    (types.is_uint64, lambda _: pa.decimal128(20, 0)),
    (types.is_float16, lambda _: pa.float32()),
    (types.is_timestamp, lambda kind: pa.timestamp("us", None if kind.tz is None else "UTC")),
    (types.is_date, lambda _: pa.date32()),
    *([(types.is_time, lambda _: pa.time64("us"))] if HAS_TIME_TYPE else []),
    (types.is_duration, lambda _: pa.duration("us")),
    (is_text, lambda _: pa.string()),
    (is_bytes, lambda _: pa.binary()),
    (types.is_fixed_size_binary, lambda _: pa.binary()),
    (_is_decimal, lambda kind: pa.decimal128(kind.precision, kind.scale)),
    (types.is_boolean, lambda kind: kind),
    (types.is_integer, lambda kind: kind),
    (types.is_floating, lambda kind: kind),
    (types.is_null, lambda kind: kind),
)
