"""Conversion of rows of Flink's keyed state to columns of Holdfast's keyed states, as a function would store them. Pure.

keys         a tuple or POJO becomes one column per field; keys are routed by Spark's hash
namespaces   converted like keys
values       unchanged; with a time to live, `changed` has the time of the last use of a value
timers       as timers of the function
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.inspection import (
    KeyedDescriptor,
    StateRows,
    described_table,
    shown_schema,
    timers_table,
)
from holdfast.backends.keyed import TableSpec
from holdfast.errors import InvalidRequestError

_NAMESPACE, _CHANGED = "namespace", "changed"
_MOMENT = pa.timestamp("ms", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTarget:
    """The target state of Flink's rows.

    Attributes:
        name: Name of the state.
        kind: Flink's type, such as `keyed map`.
        key: Names of the key's columns; empty to derive them from its type.
        max_parallelism: Number of key groups.
        has_ttl: Whether Flink's values have the time of their last use.
        ttl_ms: Their time to live in milliseconds; None for no expiry.
        descriptor: The job's descriptor of the state; None to derive it from its type.
        drops_nulls: Whether to drop null values, which Holdfast's states can't contain.
    """

    name: str
    kind: str
    key: tuple[str, ...]
    max_parallelism: int
    has_ttl: bool
    ttl_ms: int | None
    descriptor: KeyedDescriptor | None
    drops_nulls: bool


def keyed_table(rows: pa.Table, target: KeyedTarget) -> tuple[TableSpec, StateRows]:
    """Convert rows to a keyed state; returns its columns and rows.

    Args:
        rows: Flink's rows; maps have one row per entry.
        target: The target state.

    Raises:
        InvalidRequestError: The rows can't be converted.
    """
    if target.kind == "keyed list" and isinstance(target.descriptor, ValueStateDescriptor):
        rows, target = _only_elements(rows, target.name), replace(target, kind="keyed value")
    columns = _columns(rows, target)
    values, changed = columns["value"], columns.get(_CHANGED)
    key = _fields("key", columns["key"], target.key)
    namespace = _fields(_NAMESPACE, columns[_NAMESPACE], ()) if _NAMESPACE in columns else {}
    descriptor = target.descriptor or _descriptor(target, columns, values)
    if descriptor.name != target.name:
        message = f"the descriptor of state {target.name!r} has the name {descriptor.name!r}; both must be the same"
        raise InvalidRequestError(message)
    spec = described_table(descriptor, _schema(key), _schema(namespace), target.max_parallelism)
    if spec.ttl_ms is not None and not target.has_ttl:
        message = (
            f"state {target.name!r} has no time to live in Flink, so the age of its values is unknown; "
            "import it without one"
        )
        raise InvalidRequestError(message)
    arrays = [*key.values(), *namespace.values()]
    if target.kind == "keyed map":
        arrays.append(columns["map_key"])
    arrays.append(values)
    if spec.ttl_ms is not None:
        arrays.append(changed)
    names = shown_schema(spec).names
    if len(names) != len(arrays):
        message = f"state {target.name!r} is {target.kind} in Flink and can't be converted to {descriptor!r}"
        raise InvalidRequestError(message)
    return spec, StateRows(pa.table(arrays, names), descriptor)


def _only_elements(rows: pa.Table, name: str) -> pa.Table:
    """Replace each list by its only element, the form of PyFlink's values. Raises `InvalidRequestError`."""
    lists = rows.column("value").combine_chunks()
    if not pc.all(pc.equal(pc.list_value_length(lists), 1), min_count=0).as_py():
        message = f"state {name!r} has lists of several elements in Flink and can't be converted to a value"
        raise InvalidRequestError(message)
    place = rows.schema.get_field_index("value")
    return rows.set_column(place, "value", lists.flatten())


def _columns(rows: pa.Table, target: KeyedTarget) -> dict[str, pa.Array]:
    """Return the columns by name, values separated from their times of last use, without empty rows."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    if target.kind == "keyed map":
        columns["value"] = columns.pop("map_value")
    values = columns["value"]
    is_there = values.is_valid()
    if values.null_count and not target.drops_nulls:
        message = (
            f"state {target.name!r} has {values.null_count} null values, which states can't contain; "
            "allow_loss=True or --allow-loss drops them"
        )
        raise InvalidRequestError(message)
    if target.kind == "keyed list":  # an empty list is not stored
        is_there = pc.and_kleene(is_there, pc.greater(pc.list_value_length(values), 0))
    columns = {name: column.filter(is_there) for name, column in columns.items()}
    if target.has_ttl and target.kind == "keyed list":
        lists = _lists(columns["value"], keeps_times=target.ttl_ms is not None)
        columns["value"], columns[_CHANGED] = lists
    elif target.has_ttl:
        columns["value"], columns[_CHANGED] = columns["value"].flatten()
    return columns


def timers_rows(
    rows: pa.Table, domain: str, key: tuple[str, ...], max_parallelism: int
) -> tuple[TableSpec, StateRows]:
    """Convert the timers of a function in a time domain, like `keyed_table`."""
    columns = _fields("key", rows.column("key").combine_chunks(), key)
    spec = timers_table(domain, _schema(columns), max_parallelism)
    times = rows.column("timestamp").combine_chunks()
    return spec, StateRows(pa.table([*columns.values(), times], shown_schema(spec).names))


def key_names(type: pa.DataType, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a key's columns.

    Raises:
        InvalidRequestError: The number of names differs from that of the key's columns.
    """
    own = [field.name for field in type] if pa.types.is_struct(type) else ["key"]
    if given and len(given) != len(own):
        message = f"the key has the columns {own}, so it needs {len(own)} names, got {list(given)}"
        raise InvalidRequestError(message)
    return tuple(given or own)


def _fields(subject: str, column: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    """Convert a key or namespace to columns that Spark can hash."""
    if not pa.types.is_struct(column.type):
        return {(names or [subject])[0]: _hashable(subject, column)}
    own = key_names(column.type, names)
    return {
        name: _hashable(f"{subject}, {name!r}", field)
        for name, field in zip(own, column.flatten(), strict=True)
    }


def _hashable(subject: str, column: pa.Array) -> pa.Array:
    """Convert times to microseconds, the unit of Spark; other columns are unchanged."""
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        try:
            return column.cast(pa.timestamp("us", column.type.tz))
        except pa.ArrowInvalid:
            message = f"the {subject} has times with a fraction of a microsecond, which Spark does not support"
            raise InvalidRequestError(message) from None
    return column


def _schema(columns: dict[str, pa.Array]) -> pa.Schema:
    return pa.schema([(name, column.type) for name, column in columns.items()])


def _descriptor(
    target: KeyedTarget, columns: dict[str, pa.Array], values: pa.Array
) -> KeyedDescriptor:
    """Derive a descriptor from the state's type and the types of its columns."""
    name, type = target.name, values.type
    ttl = None
    if target.ttl_ms is not None:
        ttl = StateTtlConfig(timedelta(milliseconds=target.ttl_ms))
    match target.kind:
        case "keyed list":
            element = type.value_type
            if ttl is not None:
                element = element.field("element").type
            return ListStateDescriptor(name, element, ttl=ttl)
        case "keyed map":
            return MapStateDescriptor(name, columns["map_key"].type, type, ttl=ttl)
        case "keyed reducing":
            return ReducingStateDescriptor(name, _unknown, type, ttl=ttl)
        case "keyed aggregating":
            return AggregatingStateDescriptor(name, _Accumulators(type), ttl=ttl)
        case _:
            return ValueStateDescriptor(name, type, ttl=ttl)


def _lists(lists: pa.ListArray, *, keeps_times: bool) -> tuple[pa.Array, pa.Array]:
    """Return lists with or without the times of elements, and the time of last use of each list."""
    bounds = lists.offsets.to_numpy().astype(np.int64)
    bounds = bounds - bounds[0]
    elements, moments = lists.flatten().flatten()
    times = moments.cast(pa.int64())
    newest = np.array([], np.int64)
    if len(lists):
        newest = np.maximum.reduceat(times.to_numpy(), bounds[:-1])
    if keeps_times:
        fields = [pa.field("ts", pa.int64(), nullable=False), pa.field("element", elements.type)]
        elements = pa.StructArray.from_arrays([times, elements], fields=fields)
    whole = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), elements)
    return whole, pa.array(newest, pa.int64()).cast(_MOMENT)


def _unknown(value: Any, _other: Any) -> Any:
    """Replace a function that only the job has; the stored data does not depend on it."""
    return value


class _Accumulators(AggregateFunction):
    """A placeholder for a function whose accumulator type only is known."""

    def __init__(self, type: pa.DataType) -> None:
        self._type = type

    @property
    def accumulator_type(self) -> pa.DataType:
        return self._type

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:  # noqa: ARG002  # an import adds no values
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:  # noqa: ARG002
        return accumulator
