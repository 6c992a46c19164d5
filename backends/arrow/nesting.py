"""The one walker over nested types and arrays of all layouts: it takes them apart and puts them together.

Inside a struct are its fields, inside a map its keys and its items, inside every list its items. All other types have
nothing inside; `plain_type` and `plain_array` reach the values of a dictionary and the storage of an extension.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def is_list(data_type: pa.DataType) -> bool:
    """Return whether the type is one of Arrow's list types."""
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
    )


def is_list_view(data_type: pa.DataType) -> bool:
    """Return whether the type is one of Arrow's list views, which may share items or have them in another order."""
    return bool(types.is_list_view(data_type) or types.is_large_list_view(data_type))


def is_text(data_type: pa.DataType) -> bool:
    """Return whether the type is one of Arrow's string types."""
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    )


def is_bytes(data_type: pa.DataType) -> bool:
    """Return whether the type is one of Arrow's binary types of any length."""
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )


def fields_of(type: pa.DataType) -> list[pa.Field]:
    """Return the fields that are directly inside a type."""
    if not type.num_fields:
        return []
    if types.is_struct(type):
        return list(type)
    if types.is_map(type):
        return [type.key_field, type.item_field]
    return [type.value_field] if is_list(type) or is_list_view(type) else []


def paths_in(type: pa.DataType, path: str) -> list[str]:
    """Return the paths of the fields that are directly inside a type, such as `lines[].price`.

    `path` is the type's own; it is empty for an outermost type.
    """
    if types.is_struct(type):
        return [path_below(path, field.name) for field in type]
    if types.is_map(type):
        return [f"{path}[key]", f"{path}[item]"]
    return [f"{path}[]" for _ in fields_of(type)]


def path_below(path: str, name: str) -> str:
    """Return the path of a field of a struct."""
    return f"{path}.{name}" if path else name


def types_in(type: pa.DataType) -> Iterator[pa.DataType]:
    """Iterate over the type and all types inside it."""
    yield type
    plain = plain_type(type)
    if plain is not type:
        yield from types_in(plain)
    for field in fields_of(type):
        yield from types_in(field.type)


def mapped_type(
    type: pa.DataType, change: Callable[[pa.DataType], pa.DataType], *, may_be_null: bool = False
) -> pa.DataType:
    """Replace each innermost type inside a type by the result of `change`.

    If it `may_be_null`, everything inside becomes nullable, except keys of maps.
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
    """Return the type in which everything inside may be null, except keys of maps."""
    return mapped_type(type, lambda inner: inner, may_be_null=True)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values or of an extension's storage; any other type itself."""
    if isinstance(type, pa.BaseExtensionType):
        return plain_type(type.storage_type)
    return plain_type(type.value_type) if types.is_dictionary(type) else type


def plain_array(array: pa.Array) -> pa.Array:
    """Return the array as one of its `plain_type`."""
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    if not types.is_dictionary(array.type):
        return array
    if not len(array.dictionary):  # indices inside null structs refer to nothing
        return pa.nulls(len(array), plain_type(array.type))
    return plain_array(array.dictionary_decode())


def children_of(array: pa.Array) -> list[pa.Array]:
    """Return the arrays that are directly inside an array, without rows that belong to other slices of it.

    The fields of a struct are as long as the struct. The items of lists that are null are left out.
    """
    type = array.type
    if types.is_struct(type):
        return [array.field(index) for index in range(type.num_fields)]
    if types.is_map(type):
        first, end = _map_offsets(array)[[0, -1]]
        return [values.slice(first, end - first) for values in (array.keys, array.items)]
    return [array.flatten()] if fields_of(type) else []


def with_children(array: pa.Array, children: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """Replace the arrays inside an array; nulls and numbers of items stay.

    Args:
        array: A nested array.
        children: Arrays of the same number and lengths as `children_of` returns; a struct may have more or fewer.
        type: Type of the result: a struct, a map, or a list that isn't a view; a list of fixed size only for such a list.
    """
    mask = array.is_null() if array.null_count else None
    if types.is_struct(type):
        if not children:
            return pa.array([{}] * len(array), type, mask=mask)
        return pa.StructArray.from_arrays(children, fields=list(type), mask=mask)
    if types.is_fixed_size_list(type):
        return _fixed_size_lists(len(array), *children, type=type, mask=mask)
    is_large = types.is_large_list(type)
    offsets = pa.array(offsets_of(array), pa.int64() if is_large else pa.int32())
    if types.is_map(type):
        return map_array(offsets, *children, type=type, mask=mask)
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(offsets, *children, type=type, mask=mask)


def map_array(
    offsets: pa.Array, keys: pa.Array, items: pa.Array, *, type: pa.MapType, mask: pa.Array | None
) -> pa.MapArray:
    """Build an array of maps.

    Args:
        offsets: First entry of each map, and the end of the last map.
        keys: Keys of all maps.
        items: Items of all maps.
        type: Type of the result.
        mask: Whether each map is null. `MapArray.from_arrays` has this argument since pyarrow 17.
    """
    if mask is None:
        return pa.MapArray.from_arrays(offsets, keys, items, type=type)
    if (
        keys.null_count
    ):  # `from_buffers` would end the process, in pyarrow 16 also if no one had counted them
        raise pa.ArrowInvalid("a key of a map must not be null")
    entries = pa.StructArray.from_arrays([keys, items], fields=[type.key_field, type.item_field])
    buffers = [pc.invert(mask).buffers()[1], offsets.buffers()[1]]
    return pa.MapArray.from_buffers(type, len(mask), buffers, children=[entries])


def _fixed_size_lists(
    length: int, items: pa.Array, *, type: pa.FixedSizeListType, mask: pa.Array | None
) -> pa.FixedSizeListArray:
    """Build an array of lists from the items of those that are not null.

    `FixedSizeListArray.from_arrays` has the arguments since pyarrow 17, and wants items of null lists, too.
    """
    if mask is None:
        return pa.Array.from_buffers(type, length, [None], children=[items])
    is_null = mask.to_numpy(zero_copy_only=False).repeat(type.list_size)
    positions = pa.array(np.cumsum(~is_null) - 1, mask=is_null)
    validity = pc.invert(mask).buffers()[1]
    return pa.Array.from_buffers(type, length, [validity], children=[items.take(positions)])


def conform(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Cast an array to a type of the same shape: only the innermost values are cast, without loss.

    Names and nullability of fields become those of the type, also if there are nulls. Use it in place of Arrow's casts,
    which check fields below a null struct, and fail for slices of lists whose items have no type. Raises
    `pa.ArrowException` if a value can't be cast.
    """
    if array.type.equals(type):
        return array
    if plain_type(type) is type:
        array = plain_array(array)
    if not _is_same_shape(array.type, type):
        return array.cast(type)
    children = zip(children_of(array), fields_of(type), strict=True)
    return with_children(array, [conform(child, field.type) for child, field in children], type)


def conform_column(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a type of the same shape, as `conform` casts an array."""
    return pa.chunked_array([conform(chunk, type) for chunk in column.chunks], type)


def _is_same_shape(type: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether `with_children` can make arrays of the wanted type with the children of the other type."""
    if types.is_struct(type) and types.is_struct(wanted):
        return bool(type.num_fields == wanted.num_fields)
    if types.is_map(type) and types.is_map(wanted):
        return True
    if types.is_fixed_size_list(type) and types.is_fixed_size_list(wanted):
        return bool(type.list_size == wanted.list_size)
    is_any_list = is_list(type) or is_list_view(type)
    return is_any_list and bool(types.is_list(wanted) or types.is_large_list(wanted))


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the position in `children_of` the array at which each list or map begins, and the end of the last one."""
    if types.is_map(array.type):
        ends = _map_offsets(array).astype(np.int64)
        ends -= ends[0]
        return ends
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _map_offsets(array: pa.MapArray) -> npt.NDArray[np.int32]:
    """Return the begin of each map and the end of the last one, among the items of all slices."""
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
