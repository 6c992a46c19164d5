"""Checks that a state is asked for with types that go with its stored types, and with earlier requests. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from holdfast.backends.keyed.table import TableSpec, plain_schema
from holdfast.backends.keys import check_hashed
from holdfast.backends.serializers import Serializer
from holdfast.errors import InvalidRequestError, StateMigrationError


@dataclass(frozen=True, slots=True)
class StateDefault:
    """The default of a state that was asked for: the same as another one if both are stored alike, as NaN is.

    Attributes:
        value: The default.
        stored: The default as a state of its type stores it.
    """

    value: Any = dataclasses.field(compare=False)
    stored: bytes

    @classmethod
    def of(cls, value: Any, column: pa.Array) -> "StateDefault":
        """The default, of a column that has nothing else."""
        return cls(value, pa.record_batch([column], ["default"]).serialize().to_pybytes())

    def __str__(self) -> str:
        return f"default {self.value!r}"


@dataclass(frozen=True, slots=True)
class StateFunction:
    """The function of a state that was asked for.

    A function in Python is the same as another one of the same code: each run of a `def` or `lambda` makes a new
    object. What is no such function is told apart by its type and name.
    """

    identity: tuple[Any, ...]
    name: str = dataclasses.field(compare=False)

    @classmethod
    def of(cls, function: Any) -> "StateFunction":
        """What tells the function apart from others."""
        while isinstance(function, partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__)
        code = getattr(function, "__code__", None)
        if code is None:
            return cls((type(function), name), name)
        return cls((code,), f"{name} of line {code.co_firstlineno}")

    def __str__(self) -> str:
        return f"function {self.name}"


def shown(schema: pa.Schema) -> str:
    """Columns in words."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "of no column"


def check_hashable(what: str, schema: pa.Schema) -> None:
    """Refuse columns that can't be hashed. Raises `InvalidRequestError`."""
    for field in schema:
        try:
            check_hashed(field.type)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{what}, {field.name!r}: {error.args[0]}") from None


def check_key(stored: TableSpec, key: pa.Schema) -> None:
    """Refuse a state that was stored with another key. Raises `StateMigrationError`."""
    if plain_schema(stored.key) != plain_schema(key):
        message = (
            f"state {stored.name!r} was stored with the key {shown(stored.key)}, but the key is "
            f"{shown(key)} now; keys can't be migrated: take the key that it was stored with, or "
            "begin with a new operator uid"
        )
        raise StateMigrationError(message)


def check_kind(stored: TableSpec, spec: TableSpec, renamed: Mapping[str, str]) -> None:
    """Refuse what a stored state can't become. Raises `StateMigrationError`.

    Args:
        stored: The state as it is stored.
        spec: The state as it is asked for.
        renamed: The stored names of renamed fields, by their present names.
    """
    before: str = stored.kind
    now: str = spec.kind
    if before == now:
        parts = [(plain_schema(each.namespace), each.sub_key) for each in (stored, spec)]
        if parts[0] == parts[1] and are_folds_kept(stored, spec, renamed):
            check_times(stored, spec)
            return
        before, now = (
            f"{known.kind} state with namespaces {shown(known.namespace)}, map keys "
            f"{shown(known.sub_key)} and folds {list(known.folds)}"
            for known in (stored, spec)
        )
    if before != now:
        message = (
            f"state {spec.name!r} was stored as a {before}, but is asked for as a {now}; take "
            "another name for the new state, or another uid for the operator"
        )
        raise StateMigrationError(message)


def are_folds_kept(
    stored: TableSpec, spec: TableSpec, renamed: Mapping[str, str] = MappingProxyType({})
) -> bool:
    """Whether the operands of each stored column fold as before; a struct may have other columns, or another order.

    Args:
        stored: The state as it is stored.
        spec: The state as it is asked for.
        renamed: The stored names of renamed columns, by their present names.
    """
    if not (stored.is_struct and spec.is_struct and stored.folds and spec.folds):
        return stored.folds == spec.folds
    before = dict(zip(stored.values.names, stored.folds, strict=True))
    return all(
        before.get(name, before.get(renamed.get(name, name), fold)) == fold
        for name, fold in zip(spec.values.names, spec.folds, strict=True)
    )


def check_times(stored: TableSpec, spec: TableSpec) -> None:
    """Refuse a time to live for rows that were stored without times. Raises `StateMigrationError`."""
    if stored.ttl_ms is None and spec.ttl_ms is not None:
        message = (
            f"state {spec.name!r} was stored without a time to live, so the age of its rows is unknown; "
            "take another name for a state with one, or another uid for the operator"
        )
        raise StateMigrationError(message)


def check_same(name: str, before: Sequence[Any], asked: Sequence[Any]) -> None:
    """Refuse a state that was asked for as something else before. Raises `StateMigrationError`."""
    if before != asked:
        message = (
            f"state {name!r} was asked for as {_described(before)} before, and as {_described(asked)} "
            "now; give one of them another name"
        )
        raise StateMigrationError(message)


def _described(asked: Sequence[Any]) -> str:
    """A state that was asked for, in words."""
    words = []
    for part in asked:
        if isinstance(part, pa.Schema):
            words += [f"namespaces {shown(part)}"] if len(part) else []
        elif part is not None:
            words.append(part.name if isinstance(part, Serializer) else str(part))
    return ", ".join(words)
