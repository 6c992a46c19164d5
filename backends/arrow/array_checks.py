"""Finds what Arrow lets pass in its own data: nulls where none may be, numbers that no float holds."""

import pyarrow as pa
import pyarrow.compute as pc


def missing_in(array: pa.Array) -> str:
    """The field that has a null inside of these values and must not; empty if there is none."""
    if not has_required(array.type):
        return ""
    for field, values in _inside(array):
        if not field.nullable and values.null_count:
            return str(field.name)
        name = missing_in(values)
        if name:
            return name
    return ""


def has_required(data_type: pa.DataType) -> bool:
    """Whether some values inside of the type must not be null."""
    return any(not field.nullable or has_required(field.type) for field in _fields(data_type))


def are_kept(before: pa.Array, after: pa.Array) -> bool:
    """Whether no number became another one, or infinite, by a cast; rounding a fraction is fine."""
    if not _has_narrow_float(after.type):
        return True
    before, after = _plain(before), _plain(after)
    inner = zip(_inside(before), _inside(after), strict=False)
    if any(not are_kept(earlier, other) for (_, earlier), (_, other) in inner):
        return False
    if (
        not _is_narrow_float(after.type)
        or before.type.equals(after.type)
        or pa.types.is_null(before.type)
    ):
        return True
    if pa.types.is_integer(before.type):
        numbers, other = before.cast(_DOUBLE, safe=False), after.cast(_DOUBLE)
        return not pc.any(pc.not_equal(numbers, other)).as_py()
    return bool(pc.sum(pc.is_inf(after)) == pc.sum(pc.is_inf(before)))


_DOUBLE = pa.float64()


def _has_narrow_float(data_type: pa.DataType) -> bool:
    data_type = _plain_type(data_type)
    return _is_narrow_float(data_type) or any(
        _has_narrow_float(field.type) for field in _fields(data_type)
    )


def _is_narrow_float(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(data_type) and data_type.bit_width < _DOUBLE.bit_width)


def _fields(data_type: pa.DataType) -> list[pa.Field]:
    data_type = _plain_type(data_type)
    if pa.types.is_map(data_type):  # keys are never null, Arrow sees to that
        return [data_type.key_field.with_nullable(True), data_type.item_field]
    return [data_type.field(index) for index in range(data_type.num_fields)]


def _inside(array: pa.Array) -> list[tuple[pa.Field, pa.Array]]:
    """The values inside of those that are not null, each with the field that they are in."""
    array = _plain(array)
    data_type = array.type
    if not data_type.num_fields:
        return []
    array = array.drop_null()
    if pa.types.is_struct(data_type):
        return list(zip(data_type, array.flatten(), strict=True))
    if pa.types.is_map(data_type):
        array = pa.concat_arrays([array])  # a slice's items would be those of the whole
        return [(data_type.key_field, array.keys), (data_type.item_field, array.items)]
    return [(data_type.value_field, array.flatten())]


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    if isinstance(data_type, pa.BaseExtensionType):
        return _plain_type(data_type.storage_type)
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
