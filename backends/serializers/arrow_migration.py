"""Migrations of columns from one Arrow type to another one that can hold all of its values.

Only the types decide, before any data is read: a migration that depends on the values would work today and fail
tomorrow.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import (
    cast,
    children_of,
    fields_of,
    is_bytes,
    is_list,
    is_text,
    path_below,
    paths_in,
    plain_array,
    with_children,
)

Change = Callable[[pa.Array], pa.Array]
Default = Callable[[int], pa.Array]
"""Makes an array of defaults, given their number."""

_IsKind = Callable[[pa.DataType], bool]

_MANTISSA_BITS = {16: 11, 32: 24, 64: 53}


class IncompatibleTypeError(Exception):
    """Values of a type can't become values of another one; the message has the reason."""


ANY_FIELD = "*"
"""In `Rules.dropped`: any field that the wanted type lacks, unless another one is new in the same struct."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Further migrations that are allowed from one type to another.

    Attributes:
        defaults: Values of fields that are not in the stored type, by path, such as `lines[].price`.
        renamed: The stored names of fields, by the path of each field in the wanted type.
        dropped: Paths of stored fields whose values may be lost, or `ANY_FIELD`; None for keys of maps, which keep all.
        by_value: Whether integers may become floats that hold the stored values, but not all values.
        from_rows: Whether the stored type is that of a user's rows. Their fields are nullable whether there are nulls or
            not, and the caller checks the values.
    """

    defaults: Mapping[str, Default] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Collection[str] | None = ()
    by_value: bool = False
    from_rows: bool = False

    @property
    def changes_names(self) -> bool:
        """Return whether a name may mean other values in the wanted type than in the stored one."""
        return bool(self.renamed or self.dropped)

    def allows_nulls(self, stored: pa.Field, wanted: pa.Field) -> bool:
        """Return whether the nulls of the stored field are allowed in the wanted field."""
        return wanted.nullable or not stored.nullable or self.from_rows


_STRICT = Rules()


def change_of(
    stored: pa.DataType, wanted: pa.DataType, rules: Rules = _STRICT, at: str = ""
) -> Change:
    """Return the function that converts arrays of the stored type to arrays of the wanted type.

    Raises `IncompatibleTypeError` if some values of the stored type are not values of the wanted type. The function raises
    `IncompatibleValueError` if a stored value can't be converted. `at` is the path in the outermost type, for errors.
    """
    if stored.equals(wanted):
        return lambda array: array
    if types.is_struct(stored) and types.is_struct(wanted):
        return _struct_change(stored, wanted, rules, at)
    if (types.is_map(stored) and types.is_map(wanted)) or _is_list_widening(stored, wanted):
        return _inner_change(stored, wanted, rules, at)
    if not _holds_all(stored, wanted):
        if rules.from_rows or (
            rules.by_value and types.is_integer(stored) and types.is_floating(wanted)
        ):
            return lambda array: cast(array, wanted)
        message = f"{at or 'it'} was {stored}, and {wanted} can't hold every {stored}"
        raise IncompatibleTypeError(message)
    # Arrow casts fewer dictionaries than plain values.
    return lambda array: (plain_array(array) if types.is_dictionary(stored) else array).cast(wanted)


def _struct_change(stored: pa.StructType, wanted: pa.StructType, rules: Rules, at: str) -> Change:
    for struct in (stored, wanted):
        names = [field.name for field in struct]
        if len(set(names)) < len(names):
            raise IncompatibleTypeError(f"{at or 'it'} has two fields with the same name")
    sources = {
        each.name: _stored_name(stored, each.name, path, rules)
        for each, path in zip(wanted, paths_in(wanted, at), strict=True)
    }
    gone = [each.name for each in stored if each.name not in sources.values()]
    new = [name for name, source in sources.items() if stored.get_field_index(source) < 0]
    _check_dropped(gone, new, rules, at)
    changes: list[Callable[[pa.StructArray], pa.Array]] = []
    for each, path in zip(wanted, paths_in(wanted, at), strict=True):
        index = stored.get_field_index(sources[each.name])
        if index < 0:
            if rules.from_rows and path not in rules.defaults:
                raise IncompatibleTypeError(f"rows have no field {path!r}")
            changes.append(_addition(each, rules, path))
            continue
        before = stored.field(index)
        if not rules.allows_nulls(before, each):
            raise IncompatibleTypeError(f"{path} was nullable, and now must not be null")
        changes.append(_field_change(index, change_of(before.type, each.type, rules, path)))

    return lambda array: with_children(array, [change(array) for change in changes], wanted)


def _stored_name(stored: pa.StructType, name: str, path: str, rules: Rules) -> str:
    """Return the stored name of a wanted field; its own name if it is new."""
    before = rules.renamed.get(path, name)
    if before == name or stored.get_field_index(before) < 0:  # the rename is done
        return name
    if stored.get_field_index(name) >= 0:
        message = f"{path} is declared as the renamed {before!r}, and both are stored"
        raise IncompatibleTypeError(message)
    return before


def gone_message(gone: list[str], new: list[str], dropped: Collection[str] | None) -> str:
    """Return the reason why stored fields that are gone can't be left out, and the way out."""
    change = f"fields {gone} are gone and {new} are new" if new else f"fields {gone} are gone"
    if dropped is None:
        return f"{change}; keys of a map keep all of their fields under their names"
    if ANY_FIELD in dropped:
        return f"{change}; add {new} in a separate run, copy the values, and remove {gone} later"
    if not new:
        return f"{change}; declare the state with dropped={gone} to lose their values"
    before = gone[0].rpartition(".")[2]
    return (
        f"{change}; declare the state with renamed={{{new[0]!r}: {before!r}}} if the same values have a new name, "
        f"or with dropped={gone} to lose the stored values"
    )


def _check_dropped(gone: list[str], new: list[str], rules: Rules, at: str) -> None:
    """Refuse to lose the values of fields that are not declared as dropped. Raises `IncompatibleTypeError`."""
    dropped = rules.dropped or ()
    lost = [path for name in gone if (path := path_below(at, name)) not in dropped]
    if not lost or (ANY_FIELD in dropped and not new):
        return
    if rules.from_rows:
        raise IncompatibleTypeError(f"rows have fields {lost}, which the type does not have")
    raise IncompatibleTypeError(
        gone_message(lost, [path_below(at, name) for name in new], rules.dropped)
    )


def _field_change(index: int, change: Change) -> Callable[[pa.StructArray], pa.Array]:
    return lambda array: change(array.field(index))


def _addition(added: pa.Field, rules: Rules, path: str) -> Callable[[pa.StructArray], pa.Array]:
    default = rules.defaults.get(path)
    if default is not None:
        return lambda array: default(len(array))
    if not added.nullable:
        raise IncompatibleTypeError(f"{path} is new; let it be nullable, or give it a default")
    return lambda array: pa.nulls(len(array), added.type)


def _is_list_widening(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether both are lists, and the wanted type can hold the items of every stored list."""
    if not (is_list(stored) and is_list(wanted)) or types.is_fixed_size_list(wanted):
        return False
    return types.is_large_list(wanted) or not types.is_large_list(stored)


def _inner_change(stored: pa.DataType, wanted: pa.DataType, rules: Rules, at: str) -> Change:
    changes = []
    for before, now, path in zip(
        fields_of(stored), fields_of(wanted), paths_in(wanted, at), strict=True
    ):
        if not rules.allows_nulls(before, now):
            raise IncompatibleTypeError(f"{path} was nullable, and now must not be null")
        changes.append(change_of(before.type, now.type, rules, path))
    return lambda array: with_children(
        array,
        [change(inner) for change, inner in zip(changes, children_of(array), strict=True)],
        wanted,
    )


def _holds_all(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of a simple type is also a value of the other type."""
    if types.is_dictionary(stored):
        stored = stored.value_type
    return (
        stored.equals(wanted)
        or types.is_null(stored)
        or any(
            is_kind(stored) and is_wanted(wanted) and holds(stored, wanted)
            for is_kind, is_wanted, holds in _WIDENINGS
        )
    )


def _holds_integers(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_signed_integer(stored):
        return bool(types.is_signed_integer(wanted) and wanted.bit_width > stored.bit_width)
    return bool(wanted.bit_width > stored.bit_width)


def _is_exact_in(stored: pa.DataType, wanted: pa.DataType) -> bool:
    bits = stored.bit_width - types.is_signed_integer(stored)
    return bool(bits <= _MANTISSA_BITS[wanted.bit_width])


def _holds_decimals(stored: pa.DataType, wanted: pa.DataType) -> bool:
    whole = wanted.precision - wanted.scale >= stored.precision - stored.scale
    return bool(whole and wanted.scale >= stored.scale)


def _is_as_long(stored: pa.DataType, wanted: pa.DataType) -> bool:
    is_large = (types.is_large_string, types.is_large_binary)
    return any(is_it(wanted) for is_it in is_large) or not any(is_it(stored) for is_it in is_large)


_WIDENINGS: tuple[tuple[_IsKind, _IsKind, Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (types.is_integer, types.is_integer, _holds_integers),
    (types.is_integer, types.is_floating, _is_exact_in),
    (types.is_floating, types.is_floating, lambda a, b: bool(b.bit_width > a.bit_width)),
    (types.is_decimal, types.is_decimal, _holds_decimals),
    (is_text, is_text, _is_as_long),
    (is_bytes, is_bytes, _is_as_long),
)
