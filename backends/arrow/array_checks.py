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


def has_required(one: pa.DataType) -> bool:
    """Whether some values inside of the type must not be null."""
    return any(not field.nullable or has_required(field.type) for field in _fields(one))


def are_kept(before: pa.Array, after: pa.Array) -> bool:
    """Whether no number became another one, or infinite, by a cast; rounding a fraction is fine."""
    if not _has_narrow_float(after.type):
        return True
    before, after = _plain(before), _plain(after)
    inner = zip(_inside(before), _inside(after), strict=False)
    if any(not are_kept(one, other) for (_, one), (_, other) in inner):
        return False
    if (
        not _is_narrow_float(after.type)
        or before.type.equals(after.type)
        or pa.types.is_null(before.type)
    ):
        return True
    if pa.types.is_integer(before.type):
        one, other = before.cast(_DOUBLE, safe=False), after.cast(_DOUBLE)
        return not pc.any(pc.not_equal(one, other)).as_py()
    return bool(pc.sum(pc.is_inf(after)) == pc.sum(pc.is_inf(before)))


_DOUBLE = pa.float64()


def _has_narrow_float(one: pa.DataType) -> bool:
    one = _plain_type(one)
    return _is_narrow_float(one) or any(_has_narrow_float(field.type) for field in _fields(one))


def _is_narrow_float(one: pa.DataType) -> bool:
    return bool(pa.types.is_floating(one) and one.bit_width < _DOUBLE.bit_width)


def _fields(one: pa.DataType) -> list[pa.Field]:
    one = _plain_type(one)
    if pa.types.is_map(one):  # keys are never null, Arrow sees to that
        return [one.key_field.with_nullable(True), one.item_field]
    return [one.field(index) for index in range(one.num_fields)]


def _inside(array: pa.Array) -> list[tuple[pa.Field, pa.Array]]:
    """What is inside of the values that are not null, with the field that it is in."""
    array = _plain(array)
    one = array.type
    if not one.num_fields:
        return []
    array = array.drop_null()
    if pa.types.is_struct(one):
        return list(zip(one, array.flatten(), strict=True))
    if pa.types.is_map(one):
        array = pa.concat_arrays([array])  # a slice's items would be those of the whole
        return [(one.key_field, array.keys), (one.item_field, array.items)]
    return [(one.value_field, array.flatten())]


def _plain_type(one: pa.DataType) -> pa.DataType:
    if isinstance(one, pa.BaseExtensionType):
        return _plain_type(one.storage_type)
    return one.value_type if pa.types.is_dictionary(one) else one


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
