"""The state of an operator as the initial state of a query with Spark's `transformWithState`.

Tasks of Spark convert its rows to rows of initial state. `MovedProcessor`, in Spark's operator, puts these into the states
that the processor declares.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import reduce
from os import PathLike, fspath
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.backends.inspection import (
    StoredState,
    empty_backend,
    read_state,
    shown_schema,
    states_of,
)
from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator
from holdfast.locations.storages import load_checkpoint, resolve_pointer
from holdfast.spark.compat import StatefulProcessor, require_pyspark_4, settings_of
from holdfast.spark.data_source import scan_state, spark_schema_of
from holdfast.spark.moved_processor import TIMERS, MovedProcessor, encode
from holdfast.spark.processors import (
    NOTES,
    Declaration,
    DeclaredVariables,
    SchemaParser,
    TimeMode,
    open_state,
    open_timers,
    record_declarations,
    time_mode_of,
)
from holdfast.spark.sessions import quote_name
from holdfast.spark.settings import Stores
from holdfast.spark.spark_state import describe
from holdfast.spark_progress import SparkProgress, find_progress, sources_of
from pyspark_holdfast_ticks import is_tick_offset

_COLUMNS = [
    StructField("holdfast_state", StringType()),
    StructField("holdfast_content", BinaryType()),
]
"""The columns after those of the key: the state's name, and a value of it."""

_BROADCAST, _TIMERS = "broadcast", "keyed timers"

_TIME_MODES: dict[TimeMode, str] = {
    "none": "None",
    "processingtime": "ProcessingTime",
    "eventtime": "EventTime",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkInitialState:
    """The initial state of a new query with Spark's `transformWithState`.

    Attributes:
        processor: The processor, for `statefulProcessor`. It fills the states that the user's `init` declares, and
            otherwise does the same as the user's processor.
        rows: The state, for `initialState`: rows grouped by the key. They are read in the query's first batch.
        time_mode: The `timeMode` of Spark's query.
        kept: Descriptions of the exported states, for people, by name.
        lost: Descriptions of losses, for people.
        sources: The offset from which each source has to be read, in the order of the plan: JSON from Spark's log; for
            Kafka the option `startingOffsets`. Empty if the state was not written by a query.
    """

    processor: StatefulProcessor
    rows: GroupedData
    time_mode: str
    kept: Mapping[str, str]
    lost: tuple[str, ...]
    sources: tuple[str, ...]


def spark_initial_state(
    spark: SparkSession,
    pointer: str | PathLike[str],
    processor: StatefulProcessor,
    *,
    operator: str | None = None,
) -> SparkInitialState:
    """Return the state of a processor with `keyed(…)` as the initial state of a query with Spark's `transformWithState`.

        moved = spark_initial_state(spark, savepoint, Counts())
        rows.groupBy("k").transformWithState(
            moved.processor, schema, "Update", moved.time_mode, initialState=moved.rows
        )

    The query needs a new checkpointLocation. After its first batch it can be restarted with the user's
    processor and without initial state; keep the checkpoint until then. This call writes nothing, and reads no state.

    Args:
        spark: The session that the query will run in.
        pointer: URI of a checkpoint or savepoint.
        processor: A processor of the class that wrote the state; it is copied, not changed.
        operator: The operator's uid; may be left out if there is only one.

    Raises:
        InvalidRequestError: There is no such operator, or it has no state of a processor; or the class declares
            a state differently, or not at all.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are corrupt.
    """
    require_pyspark_4("transformWithState", "run the processor by keyed(…).transformWithState")
    if not isinstance(processor, StatefulProcessor):
        message = f"{type(processor).__name__} is not a StatefulProcessor; pass a processor of the class that wrote the state"
        raise InvalidRequestError(message)
    Stores.parse(settings_of(spark), fspath(pointer)).use()
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    uid = _find_uid(metadata, operator)
    state = _ProcessorState.of(pointer, uid, metadata.operators[uid])
    copy: Any = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    declared, _ = record_declarations(copy, state.time_mode, SchemaParser(spark))
    variables = state.declarations(declared)
    rows = state.rows(spark, variables, SYSTEM_CLOCK.now_ms())
    progress = find_progress(metadata)
    kept = {each.name: describe(each) for each in variables}
    if state.timers is not None:
        kept["timers"] = f"timers of {_TIME_MODES[state.time_mode]}"
    sources = sources_of(progress.offsets) if progress else []
    return SparkInitialState(
        processor=MovedProcessor(processor),
        rows=rows.groupBy(*map(quote_name, state.key.names)),
        time_mode=_TIME_MODES[state.time_mode],
        kept=kept,
        lost=tuple(_losses(state, variables, progress)),
        sources=tuple(each for each in sources if not is_tick_offset(each)),
    )


def _losses(
    state: "_ProcessorState", variables: Sequence[Declaration], progress: SparkProgress | None
) -> Iterator[str]:
    """Describe losses, for people."""
    yield (
        "the progress of sources: Spark begins with the offsets of their options, and file sources with all existing "
        "files. Pass the startingOffsets of `sources` to Kafka"
    )
    if living := [each.name for each in variables if each.ttl_ms]:
        yield f"the ages of {living}: their time to live starts again with the first batch"
    if state.time_mode == "eventtime":
        watermark = progress.times[1] if progress else 0
        yield (
            f"the watermark, which was {watermark} ms: it begins at 0, so the first two batches drop no late rows, and "
            "timers fire when it has reached their time again"
        )
    if state.time_mode == "processingtime" and state.timers is not None:
        yield "timers that become due while no query runs: they fire in the first batch"
    yield "the state of sinks, and earlier checkpoints"
    if numbers := [each.name for each in state.key if _is_number(each.type)]:
        yield (
            f"with transformWithStateInPandas, keys whose {numbers} are null: Spark itself mixes up rows and state of "
            "such keys with those of others. transformWithState does not"
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _find_uid(metadata: CheckpointMetadata, operator: str | None) -> str:
    """Return the uid of the requested operator, or of the only one."""
    uids = sorted(metadata.operators)
    if operator is None and len(uids) == 1:
        return uids[0]
    if operator not in metadata.operators:
        problem = (
            "no operator is named" if operator is None else f"there is no operator {operator!r}"
        )
        raise InvalidRequestError(f"{problem}; name one of {uids}")
    return operator


@dataclass(frozen=True, slots=True)
class _ProcessorState:
    """The state of an operator that has run a processor: its variables by name, and its timers if it has any."""

    pointer: str | PathLike[str]
    uid: str
    key: pa.Schema
    max_parallelism: int
    time_mode: TimeMode
    variables: Mapping[str, StoredState]
    timers: StoredState | None

    @classmethod
    def of(cls, pointer: str | PathLike[str], uid: str, operator: StoredOperator) -> Self:
        """Read the descriptions of an operator's states, but no rows. Errors of `spark_initial_state`."""
        every = states_of(uid, operator)
        if not any(state.name == NOTES.name and not state.is_keyed for state in every):
            message = (
                f"operator {uid!r} has not run a processor; it has states {sorted(state.label for state in every)}, and "
                "only those of transformWithState can be moved to Spark"
            )
            raise InvalidRequestError(message)
        notes = read_state(pointer, uid, NOTES.name, kind=_BROADCAST).to_pylist()
        time_mode = time_mode_of({note["key"]: note["value"] for note in notes})
        keyed: dict[str, StoredState] = {}
        for state in every:
            if state.name is None:
                state.readable()  # for its error
            elif state.is_keyed:
                keyed[state.name] = state
        if not keyed:
            message = f"operator {uid!r} has no keyed state to move"
            raise InvalidRequestError(message)
        _, *columns = next(iter(keyed.values())).readable().schema
        types = [field.type for field in columns[: len(operator.key)]]
        key = pa.schema(list(zip(operator.key, types, strict=True)))
        timers = open_timers(empty_backend(key, operator.max_parallelism), time_mode)
        variables = {name: state for name, state in keyed.items() if state.kind != _TIMERS}
        return cls(
            pointer=pointer,
            uid=uid,
            key=key,
            max_parallelism=operator.max_parallelism,
            time_mode=time_mode,
            variables=variables,
            timers=None if timers is None else keyed.get(timers.name),
        )

    def declarations(self, declared: DeclaredVariables) -> list[Declaration]:
        """Return the processor's declarations of the states in the checkpoint.

        Raises:
            InvalidRequestError: The processor doesn't declare a state, or declares it with another kind or type.
        """
        by_name = {each.name: each for each in declared.variables}
        lost = sorted(self.variables.keys() - by_name.keys() - set(declared.deleted))
        if lost:
            message = (
                f"operator {self.uid!r} has states {lost}, which the processor does not declare: it has "
                f"{sorted(by_name)}. Declare them in its init, or delete them there with handle.deleteIfExists(name)"
            )
            raise InvalidRequestError(message)
        chosen = [by_name[name] for name in self.variables if name in by_name]
        for variable in chosen:
            self._check(variable)
        return chosen

    def rows(
        self, spark: SparkSession, declarations: Sequence[Declaration], now_ms: int
    ) -> DataFrame:
        """Return the whole state as a DataFrame of the key and `_COLUMNS`, without values that have expired."""
        states = [
            (self.variables[variable.name], _InitialStateRows(variable, len(self.key), now_ms))
            for variable in declarations
        ]
        if self.timers is not None:
            states.append((self.timers, _InitialStateRows(None, len(self.key), now_ms)))
        frames = [self._frame(spark, state, rows) for state, rows in states]
        return reduce(lambda some, others: some.union(others), frames)

    def _frame(
        self, spark: SparkSession, state: StoredState, rows: "_InitialStateRows"
    ) -> DataFrame:
        frame = scan_state(spark, self.pointer, self.uid, state.name, kind=state.kind)
        # By position, because a column of the state may have the name of a key column. The first is the subtask.
        positions = [f"_{number}" for number in range(len(frame.columns))]
        fields = frame.schema.fields[1 : 1 + len(self.key)]
        key = [
            StructField(name, field.dataType)
            for name, field in zip(self.key.names, fields, strict=True)
        ]
        return (
            frame.toDF(*positions)
            .drop(positions[0])
            .mapInArrow(rows, StructType([*key, *_COLUMNS]))
        )

    def _check(self, variable: Declaration) -> None:
        """Refuse a state that is declared with another kind or type than it is stored with."""
        state = self.variables[variable.name]
        stored = _types(state.readable().schema)[1:]
        # Stored rows have a time column if the state had a time to live, which the class may have changed.
        for ttl_ms in (None, 1):
            backend = empty_backend(self.key, self.max_parallelism)
            open_state(backend, replace(variable, ttl_ms=ttl_ms))
            spec = backend.specs()[variable.name]
            if state.kind == f"keyed {spec.kind}" and stored == _types(shown_schema(spec)):
                return
        message = (
            f"state {variable.name!r} is stored as {state.kind.removeprefix('keyed ')} of "
            f"{' and '.join(stored[len(self.key) :])}, and the processor declares {describe(variable)}. Pass the "
            "processor that wrote it, or first run a batch of the new one with Holdfast, which migrates the state"
        )
        raise InvalidRequestError(message)


def _types(schema: pa.Schema) -> list[str]:
    """Return the Spark types of columns."""
    return [field.dataType.simpleString() for field in spark_schema_of(schema)]


@dataclass(frozen=True)
class _InitialStateRows:
    """Converts rows of a keyed state to rows of initial state.

    Attributes:
        declared: The variable of the rows; None for timers.
        key: Number of the key's columns, which are first, before those of `shown_schema`.
        now_ms: The current time for expired values, milliseconds since 1970.
    """

    declared: Declaration | None
    key: int
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = TIMERS if self.declared is None else self.declared.name
        for batch in batches:
            contents = [
                None if content is None else encode(content) for content in self._contents(batch)
            ]
            names = pa.repeat(pa.scalar(name), len(batch))
            columns = [*batch.columns[: self.key], names, pa.array(contents, pa.binary())]
            added = [
                pa.field(each.name, column.type)
                for each, column in zip(_COLUMNS, columns[self.key :], strict=True)
            ]
            fields = [batch.schema.field(place) for place in range(self.key)]
            rows = pa.record_batch(columns, pa.schema([*fields, *added]))
            yield rows.filter(rows.columns[-1].is_valid())

    def _contents(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Yield the value of each row for the state, or None."""
        columns = [column.to_pylist() for column in batch.columns[self.key :]]
        declared = self.declared
        if declared is None:
            yield from columns[0]
            return
        sub_keys = columns.pop(0) if declared.kind == "map" else []
        values, *others = columns
        changed = _milliseconds(batch.columns[-1]) if others else [None] * len(batch)
        for row, value in enumerate(values):
            if declared.kind == "list":
                yield self._elements(value, has_times=bool(others)) or None
            elif not self._lives(changed[row]):
                yield None
            elif declared.kind == "value":
                yield _for_state(declared.schema, value)
            else:
                assert declared.key_schema is not None
                sub_key = _for_state(declared.key_schema, sub_keys[row])
                yield sub_key, _for_state(declared.schema, value)

    def _elements(self, elements: list[Any], *, has_times: bool) -> list[Any]:
        """Return the elements of a list that have not expired; with times, each is a struct of its time and the element."""
        assert self.declared is not None
        if has_times:
            pairs = (each.values() for each in elements)
            elements = [element for time, element in pairs if self._lives(time)]
        return [_for_state(self.declared.schema, element) for element in elements]

    def _lives(self, changed_ms: int | None) -> bool:
        ttl_ms = None if self.declared is None else self.declared.ttl_ms
        return ttl_ms is None or changed_ms is None or self.now_ms < changed_ms + ttl_ms


def _for_state(kind: DataType, value: Any) -> Any:
    """Convert a value from Arrow, where a struct is a dict and a map is pairs, for a state of Spark."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return tuple(_for_state(field.dataType, value[field.name]) for field in kind)
    if isinstance(kind, ArrayType):
        return [_for_state(kind.elementType, element) for element in value]
    if isinstance(kind, MapType):
        return {
            _for_state(kind.keyType, key): _for_state(kind.valueType, item) for key, item in value
        }
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)  # another worker may have another time zone
    return value


def _milliseconds(column: pa.Array) -> list[int | None]:
    instants = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return list(instants.to_pylist())
