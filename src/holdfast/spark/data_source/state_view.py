"""The data source `holdfast`: the view that its options select, the tasks that read it, and `read_state`."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.backends.inspection import Raw, ReadableState, StatePart, readable_state, states
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.data_source.spark_types import for_spark, spark_schema_of
from holdfast.spark.event_time import check_rows_per_batch
from holdfast.spark.sessions import register_source
from holdfast.spark.settings import Stores, check_settings, is_of_stores
from holdfast.spark_progress.tables import subtasks
from pyspark_holdfast import DefaultSource

SETTINGS = "settings"
"""The option for Spark settings as a JSON object. Spark converts names of options to lower case."""

_OPTIONS = ("path", "view", "operator", "state", "raw", "kind", "key", SETTINGS)
_OPTIONS_OF_STORES = ("spark.hadoop.", "spark.holdfast.s3.")
_VIEWS = ("states", "elements", "metadata")


def read_state(
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
    data sources.

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
            lists the available names.
    """
    check_rows_per_batch(spark)
    register_source(spark, DefaultSource)
    settings = {key: text for key, text in spark.conf.getAll.items() if is_of_stores(key)}
    options = {SETTINGS: msgspec.json.encode(settings).decode()}
    named = {"operator": operator, "state": state, "raw": raw, "kind": kind}
    options |= {name: value for name, value in named.items() if value is not None}
    if key is not None:
        options["key"] = json.dumps(dict(key))
    return spark.read.format("holdfast").options(**options).load(fspath(pointer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A view of a checkpoint or savepoint: its rows, or the state that has them.

    Attributes:
        stores: The stores of the checkpoint.
        schema: The columns.
        table: The rows of a small view; else None.
        state: The state of a view of elements; else None.
    """

    stores: Stores
    schema: pa.Schema
    table: pa.Table | None = None
    state: ReadableState | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StateView":
        """Return the view that options of the data source select; reads the checkpoint's metadata.

        Raises:
            InvalidRequestError: An option is unknown or can't be used, or there is no such state.
            CheckpointError: The checkpoint can't be read.
        """
        given = {key.lower(): value for key, value in options.items()}
        _check(given)
        settings = _settings_in(given.get(SETTINGS, "{}")) | {
            key: value for key, value in given.items() if key.startswith(_OPTIONS_OF_STORES)
        }
        check_settings(settings)
        pointer = given.get("path")
        if pointer is None:
            raise InvalidRequestError("no checkpoint or savepoint; pass one to load(...)")
        stores = Stores.parse(settings, pointer)
        stores.use()
        operator, state, raw = given.get("operator"), given.get("state"), given.get("raw")
        kind, key = given.get("kind"), _key_in(given.get("key"))
        is_named = any(value is not None for value in (operator, state, raw, kind, key))
        view = given.get("view", "elements" if is_named else "states").lower()
        match view:
            case "elements":
                readable = readable_state(
                    pointer,
                    operator,
                    state,
                    raw=raw,  # type: ignore[arg-type]  # checked there
                    kind=kind,
                    key=key,
                )
                return cls(stores=stores, schema=readable.schema, state=readable)
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
        """The columns of the view in Spark types.

        Raises:
            InvalidRequestError: A column has a type that Spark doesn't support.
        """
        return spark_schema_of(self.schema)


class StatePartition(InputPartition):
    """The part of a view that one task reads.

    Attributes:
        part: A part of the state; None for a small table, which is in the view.
    """

    def __init__(self, part: StatePart | None) -> None:
        super().__init__(None)
        self.part = part


class StateReader(DataSourceReader):
    """Reads the rows of a view.

    Args:
        view: The view, which the driver has looked up for all tasks.
        schema: The columns that Spark expects, which must be the view's.

    Raises:
        InvalidRequestError: The columns differ.
    """

    def __init__(self, view: StateView, schema: StructType) -> None:
        if schema != view.spark_schema:
            message = (
                "the columns must be those of the state; leave schema(...) out, and cast afterwards"
            )
            raise InvalidRequestError(message)
        self._view = view
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each subtask, or several if its state is large."""
        state = self._view.state
        return [StatePartition(part) for part in (state.split() if state is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition, verifying each byte."""
        self._view.stores.use()
        part = getattr(partition, "part", None)
        batches: Iterator[pa.RecordBatch] = iter(())
        if self._view.table is not None:
            batches = iter(self._view.table.to_batches())
        elif self._view.state is not None and part is not None:
            batches = self._view.state.batches([part])
        for batch in batches:
            yield for_spark(batch, self._schema)


def _check(keys: Iterable[str]) -> None:
    for key in keys:
        if key not in _OPTIONS and not key.startswith(_OPTIONS_OF_STORES):
            nearest = difflib.get_close_matches(key, _OPTIONS, n=1, cutoff=0.0)[0]
            message = f"no option {key!r}; did you mean {nearest!r}?"
            raise InvalidRequestError(message)


def _key_in(text: str | None) -> dict[str, Any] | None:
    """Decode the option key: a value for each of the key's columns, by name."""
    if text is None:
        return None
    try:
        return json_decoder(dict[str, Any]).decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        message = (
            f"option key must be a JSON object with the values of the key's columns, got {text!r}"
        )
        raise InvalidRequestError(message) from None


def _settings_in(text: str) -> dict[str, str]:
    try:
        return json_decoder(dict[str, str]).decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):  # not the text: it may hold a secret
        message = "option settings must be a JSON object with Spark settings"
        raise InvalidRequestError(message) from None
