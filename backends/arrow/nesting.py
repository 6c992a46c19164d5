"""The one walker over nested types and arrays: it takes them apart and puts them together, whatever kinds there are.

Inside of a struct are its fields, inside of a map its keys and its items, inside of a list of any kind its items.
Inside of all other types there is nothing; the values of a dictionary and the storage of an extension are seen by
`plain_type` and `plain_array`.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def is_list(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types."""
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
    )


def is_list_view(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types whose items may be shared, or in another order."""
    return bool(types.is_list_view(data_type) or types.is_large_list_view(data_type))


def is_text(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's string types."""
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    )


def is_bytes(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's binary types of any length."""
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )


def fields_of(type: pa.DataType) -> list[pa.Field]:
    """The fields that are directly inside of a type."""
    if not type.num_fields:
        return []
    if types.is_struct(type):
        return list(type)
    if types.is_map(type):
        return [type.key_field, type.item_field]
    return [type.value_field] if is_list(type) or is_list_view(type) else []


def paths_in(type: pa.DataType, path: str) -> list[str]:
    """The paths of the fields that are directly inside of a type, such as `lines[].price`.

    Args:
        type: The type.
        path: The type's own path; empty for an outermost type.
    """
    if types.is_struct(type):
        return [path_below(path, field.name) for field in type]
    if types.is_map(type):
        return [f"{path}[key]", f"{path}[item]"]
    return [f"{path}[]" for _ in fields_of(type)]


def path_below(path: str, name: str) -> str:
    """The path of a field of a struct."""
    return f"{path}.{name}" if path else name


def types_in(type: pa.DataType) -> Iterator[pa.DataType]:
    """The type, and all types that it is made of."""
    yield type
    plain = plain_type(type)
    if plain is not type:
        yield from types_in(plain)
    for field in fields_of(type):
        yield from types_in(field.type)


def mapped_type(
    type: pa.DataType,
    change: Callable[[pa.DataType], pa.DataType],
    *,
    may_be_null: bool = False,
) -> pa.DataType:
    """The type with each type changed that is inside of it and has nothing inside itself.

    Args:
        type: The type.
        change: Returns the type that replaces a type.
        may_be_null: Whether all that is inside may be null, but for keys of maps.
    """
    if not fields_of(type):
        return change(type)
    fields = []
    for field in fields_of(type):
        changed = field.with_type(mapped_type(field.type, change, may_be_null=may_be_null))
        fields.append(changed.with_nullable(True) if may_be_null else changed)
    if types.is_struct(type):
        return pa.struct(fields)
    if types.is_map(type):
        keys, items = fields
        return pa.map_(keys.with_nullable(False), items, keys_sorted=type.keys_sorted)
    make = next(make for is_kind, make in _LISTS if is_kind(type))
    return make(type, *fields)


def nullable_type(type: pa.DataType) -> pa.DataType:
    """The type in which everything inside may be null, except keys of maps."""
    return mapped_type(type, lambda inner: inner, may_be_null=True)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Type of the values of a dictionary or of an extension; any other type itself."""
    if isinstance(type, pa.BaseExtensionType):
        return plain_type(type.storage_type)
    return plain_type(type.value_type) if types.is_dictionary(type) else type


def plain_array(array: pa.Array) -> pa.Array:
    """The array as one of its `plain_type`."""
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    if not types.is_dictionary(array.type):
        return array
    if not len(array.dictionary):  # indices inside of what is missing lead nowhere
        return pa.nulls(len(array), plain_type(array.type))
    return plain_array(array.dictionary_decode())


def children_of(array: pa.Array) -> list[pa.Array]:
    """The arrays that are directly inside of an array, without rows that belong to other slices of it.

    The fields of a struct are as long as the struct. The items of a list leave out those of lists that are null.
    """
    type = array.type
    if types.is_struct(type):
        return [array.field(index) for index in range(type.num_fields)]
    if types.is_map(type):
        first, end = _map_offsets(array)[[0, -1]]
        return [values.slice(first, end - first) for values in (array.keys, array.items)]
    return [array.flatten()] if fields_of(type) else []


def with_children(array: pa.Array, children: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """The array with other arrays inside: null where it is null, and with as many items.

    Args:
        array: A nested array.
        children: As many arrays as `children_of` returns, of the same lengths; for a struct there may be more or fewer.
        type: Type of the result: a struct, a map, or a list or large list.
    """
    mask = array.is_null() if array.null_count else None
    if types.is_struct(type):
        if not children:
            return pa.array([{}] * len(array), type, mask=mask)
        return pa.StructArray.from_arrays(children, fields=list(type), mask=mask)
    is_large = types.is_large_list(type)
    offsets = pa.array(offsets_of(array), pa.int64() if is_large else pa.int32())
    if types.is_map(type):
        return pa.MapArray.from_arrays(offsets, *children, type=type, mask=mask)
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(offsets, *children, type=type, mask=mask)


def conformed(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The array as another type of the same shape: only the innermost values are cast, without loss.

    Names of fields, and which fields may be null, are those of the type, whether a null is there or not. Use it in place of
    Arrow's casts, which look at fields below a null struct, and fail for slices of lists whose items have no type.

    Raises:
        pa.ArrowException: A value can't be cast.
    """
    if array.type.equals(type):
        return array
    if plain_type(type) is type:
        array = plain_array(array)
    if not _is_same_shape(array.type, type):
        return array.cast(type)
    children = zip(children_of(array), fields_of(type), strict=True)
    return with_children(array, [conformed(child, field.type) for child, field in children], type)


def conformed_column(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """The column as another type of the same shape, as `conformed` makes it of an array."""
    return pa.chunked_array([conformed(chunk, type) for chunk in column.chunks], type)


def _is_same_shape(type: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `with_children` makes arrays of the wanted type of what is inside of arrays of the other type."""
    if types.is_struct(type) and types.is_struct(wanted):
        return bool(type.num_fields == wanted.num_fields)
    if types.is_map(type) and types.is_map(wanted):
        return True
    is_any_list = is_list(type) or is_list_view(type)
    return is_any_list and bool(types.is_list(wanted) or types.is_large_list(wanted))


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Where each list or map begins in `children_of` the array, and where the last one ends."""
    if types.is_map(array.type):
        ends = _map_offsets(array).astype(np.int64)
        ends -= ends[0]
        return ends
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _map_offsets(array: pa.MapArray) -> npt.NDArray[np.int32]:
    """Where each map begins and the last one ends, among those of all slices."""
    if not len(array):  # it may lack the only offset
        return np.zeros(1, np.int32)
    offsets: npt.NDArray[np.int32] = array.offsets.to_numpy()
    return offsets


_LISTS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.Field], pa.DataType]], ...
] = (
    (types.is_list, lambda _, item: pa.list_(item)),
    (types.is_large_list, lambda _, item: pa.large_list(item)),
    (types.is_fixed_size_list, lambda whole, item: pa.list_(item, whole.list_size)),
    (types.is_list_view, lambda _, item: pa.list_view(item)),
    (types.is_large_list_view, lambda _, item: pa.large_list_view(item)),
)
