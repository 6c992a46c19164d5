"""Rows of Flink's keyed state in the columns of our keyed states: what a function would have stored itself. Pure.

keys         a tuple or POJO becomes a column a field; Spark's hash deals them anew
namespaces   likewise
values       as they are; of a state with a time to live `changed` says when a value was last used
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
    """The state that rows of Flink become.

    Attributes:
        name: The state's name.
        kind: Flink's, such as `keyed map`.
        key: Names of the key's columns; none for those that follow from its type.
        max_parallelism: Number of key groups.
        has_ttl: Whether Flink's values say when they were last used.
        ttl_ms: How long they live, in milliseconds; None for ever.
        descriptor: What the job names the state by; None for what follows from its type.
        drops_nulls: Whether values that are null are left out, which no state of ours can have.
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
    """What a keyed state holds, and its rows.

    Args:
        rows: As they are read; maps have a row for each entry.
        target: What they become.

    Raises:
        InvalidRequestError: They can't become that.
    """
    if target.kind == "keyed list" and isinstance(target.descriptor, ValueStateDescriptor):
        rows, target = _only_elements(rows, target.name), replace(target, kind="keyed value")
    columns = _columns(rows, target)
    values, changed = columns["value"], columns.get(_CHANGED)
    key = _fields("key", columns["key"], target.key)
    namespace = _fields(_NAMESPACE, columns[_NAMESPACE], ()) if _NAMESPACE in columns else {}
    descriptor = target.descriptor or _descriptor(target, columns, values)
    if descriptor.name != target.name:
        message = (
            f"the descriptor of state {target.name!r} names {descriptor.name!r}; give both one name"
        )
        raise InvalidRequestError(message)
    spec = described_table(descriptor, _schema(key), _schema(namespace), target.max_parallelism)
    if spec.ttl_ms is not None and not target.has_ttl:
        message = (
            f"state {target.name!r} has no time to live in Flink, so that nobody knows how old its values are; "
            "import it without"
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
        message = (
            f"state {target.name!r} is {target.kind} in Flink, and can't become {descriptor!r}"
        )
        raise InvalidRequestError(message)
    return spec, StateRows(pa.table(arrays, names), descriptor)


def _only_elements(rows: pa.Table, name: str) -> pa.Table:
    """Rows with the only element of each list, as which PyFlink has values. Raises `InvalidRequestError`."""
    lists = rows.column("value").combine_chunks()
    if not pc.all(pc.equal(pc.list_value_length(lists), 1), min_count=0).as_py():
        message = f"state {name!r} has lists of several elements in Flink, and can't become a value"
        raise InvalidRequestError(message)
    place = rows.schema.get_field_index("value")
    return rows.set_column(place, "value", lists.flatten())


def _columns(rows: pa.Table, target: KeyedTarget) -> dict[str, pa.Array]:
    """The columns by their names, with values and when they were last used apart; rows of nothing are left out."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    if target.kind == "keyed map":
        columns["value"] = columns.pop("map_value")
    values = columns["value"]
    is_there = values.is_valid()
    if values.null_count and not target.drops_nulls:
        message = (
            f"state {target.name!r} has {values.null_count} values that are null, which states here don't have; "
            "allow_loss=True or --allow-loss leaves them out"
        )
        raise InvalidRequestError(message)
    if target.kind == "keyed list":  # where an empty list is none
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
    """Likewise for the timers of a function, of a domain of time."""
    columns = _fields("key", rows.column("key").combine_chunks(), key)
    spec = timers_table(domain, _schema(columns), max_parallelism)
    times = rows.column("timestamp").combine_chunks()
    return spec, StateRows(pa.table([*columns.values(), times], shown_schema(spec).names))


def key_names(type: pa.DataType, given: Sequence[str]) -> tuple[str, ...]:
    """The names of a key's columns.

    Raises:
        InvalidRequestError: The key has another number of columns than names are given.
    """
    own = [field.name for field in type] if pa.types.is_struct(type) else ["key"]
    if given and len(given) != len(own):
        message = f"the key has columns {own}, and is to have {list(given)}; give as many names"
        raise InvalidRequestError(message)
    return tuple(given or own)


def _fields(what: str, column: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    """A key or namespace as columns that Spark can hash."""
    if not pa.types.is_struct(column.type):
        return {(names or [what])[0]: _hashable(what, column)}
    own = key_names(column.type, names)
    return {
        name: _hashable(f"{what}, {name!r}", field)
        for name, field in zip(own, column.flatten(), strict=True)
    }


def _hashable(what: str, column: pa.Array) -> pa.Array:
    """Times in microseconds, which are Spark's; everything else as it is."""
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        try:
            return column.cast(pa.timestamp("us", column.type.tz))
        except pa.ArrowInvalid:
            message = f"the {what} has times that are no whole microseconds, which Spark has alone"
            raise InvalidRequestError(message) from None
    return column


def _schema(columns: dict[str, pa.Array]) -> pa.Schema:
    return pa.schema([(name, column.type) for name, column in columns.items()])


def _descriptor(
    target: KeyedTarget, columns: dict[str, pa.Array], values: pa.Array
) -> KeyedDescriptor:
    """What follows from the kind and the types."""
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
    """Lists of elements with their times as ours have them, or without; and when each was last used."""
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
    """Stands for a function that only the job knows: what is stored is the same, whichever it is."""
    return value


class _Accumulators(AggregateFunction):
    """Stands for a function of which only the type of its accumulators is known."""

    def __init__(self, type: pa.DataType) -> None:
        self._type = type

    @property
    def accumulator_type(self) -> pa.DataType:
        return self._type

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:  # noqa: ARG002  # nobody adds to what is imported
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:  # noqa: ARG002
        return accumulator
