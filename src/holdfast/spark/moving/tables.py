"""Rows of Spark's state in the columns of our keyed states: what a processor would have stored itself. Pure."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import conform
from holdfast.backends.inspection import shown_schema
from holdfast.backends.keyed import TableSpec
from holdfast.spark.processors import Declaration, struct_type

_EXPIRY = "ttlExpirationMs"


def rows_of_variable(spec: TableSpec, declared: Declaration, rows: pa.Table) -> pa.Table:
    """The rows of a state variable, in the columns of `shown_schema`.

    Args:
        spec: The columns and types of our state.
        declared: The variable.
        rows: The rows as Spark shows them.
    """
    columns = _key(spec, rows)
    type = struct_type(declared.schema).arrow
    if declared.kind == "map":
        assert declared.key_schema is not None
        columns.append(
            conform(_whole(rows["user_map_key"]), struct_type(declared.key_schema).arrow)
        )
    if declared.kind == "list":
        columns += _lists(spec, _whole(rows["list_value"]), type)
    else:
        values = _whole(rows["value" if declared.kind == "value" else "user_map_value"])
        if spec.ttl_ms is None:
            columns.append(conform(values, type))
        else:
            columns += [conform(_part(values, "value"), type), _changed(values, spec.ttl_ms)]
    return _named(spec, columns)


def rows_of_timers(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """The rows of timers, likewise."""
    return _named(spec, [*_key(spec, rows), _whole(rows["expiration_timestamp_ms"])])


def _named(spec: TableSpec, columns: list[pa.Array]) -> pa.Table:
    return pa.table(columns, shown_schema(spec).names)


def _key(spec: TableSpec, rows: pa.Table) -> list[pa.Array]:
    columns = _whole(rows["key"]).flatten()
    return [conform(column, type) for column, type in zip(columns, spec.key.types, strict=True)]


def _lists(spec: TableSpec, lists: pa.ListArray, type: pa.DataType) -> list[pa.Array]:
    """The column of lists, and when each was changed last where elements have a time to live."""
    stored = spec.values.field(0).type
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    elements, changed = lists.flatten(), []
    if spec.ttl_ms is None:
        elements = conform(elements, type)
    else:
        times = pc.subtract(_part(elements, _EXPIRY), spec.ttl_ms)
        added = conform(_part(elements, "value"), type)
        fields = list(stored.value_type)
        elements = pa.StructArray.from_arrays([times, added], fields=fields)
        moments = times.to_numpy(zero_copy_only=False)
        newest = np.maximum.reduceat(moments, bounds[:-1]) if len(lengths) else moments
        changed = [_moments(pa.array(newest, pa.int64()))]
    return [pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), elements, type=stored), *changed]


def _changed(values: pa.StructArray, ttl_ms: int) -> pa.Array:
    return _moments(pc.subtract(_part(values, _EXPIRY), ttl_ms))


def _moments(milliseconds: pa.Array) -> pa.Array:
    return milliseconds.cast(pa.timestamp("ms", "UTC"))


def _part(values: pa.StructArray, name: str) -> pa.Array:
    return values.flatten()[values.type.get_field_index(name)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
