"""Compatibility checks of a requested state with its stored types and with earlier requests. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from holdfast.backends.keyed.table import TableSpec, plain_schema
from holdfast.backends.keys import check_key_type
from holdfast.backends.serializers import Serializer
from holdfast.errors import InvalidRequestError, StateMigrationError


@dataclass(frozen=True, slots=True)
class StateDefault:
    """The default of a requested state. Defaults are equal if the bytes that its type stores are, as those of NaN."""

    value: Any = dataclasses.field(compare=False)
    stored: bytes

    @classmethod
    def of(cls, value: Any, column: pa.Array) -> "StateDefault":
        """Return the default in the only row of a column."""
        return cls(value, pa.record_batch([column], ["default"]).serialize().to_pybytes())

    def __str__(self) -> str:
        return f"default {self.value!r}"


@dataclass(frozen=True, slots=True)
class StateFunction:
    """The function of a requested state.

    Python functions are equal if their code is: each run of a `def` or `lambda` makes a new object. Other callables
    are compared by type and name.
    """

    identity: tuple[Any, ...]
    name: str = dataclasses.field(compare=False)

    @classmethod
    def of(cls, function: Any) -> "StateFunction":
        while isinstance(function, partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__)
        code = getattr(function, "__code__", None)
        if code is None:
            return cls((type(function), name), name)
        return cls((code,), f"{name} of line {code.co_firstlineno}")

    def __str__(self) -> str:
        return f"function {self.name}"


def describe_columns(schema: pa.Schema) -> str:
    """List columns with their types, for messages."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def check_hashable(label: str, schema: pa.Schema) -> None:
    """Reject columns that can't be hashed. Raises `InvalidRequestError`."""
    for field in schema:
        try:
            check_key_type(field.type)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{label}, {field.name!r}: {error.args[0]}") from None


def check_key(stored: TableSpec, key: pa.Schema) -> None:
    """Reject a state that was stored with another key. Raises `StateMigrationError`."""
    if plain_schema(stored.key) != plain_schema(key):
        message = (
            f"state {stored.name!r} was stored with key {describe_columns(stored.key)}, but the operator's key "
            f"is {describe_columns(key)}; keys can't be migrated: use the stored key, or a new operator uid"
        )
        raise StateMigrationError(message)


def check_kind(stored: TableSpec, spec: TableSpec, renamed: Mapping[str, str]) -> None:
    """Reject a requested state that the stored one can't become. Raises `StateMigrationError`.

    `renamed` has the stored names of renamed fields, by their present names.
    """
    before: str = stored.kind
    now: str = spec.kind
    if before == now:
        parts = [(plain_schema(each.namespace), each.sub_key) for each in (stored, spec)]
        if parts[0] == parts[1] and has_same_folds(stored, spec, renamed):
            check_ttl(stored, spec)
            return
        before, now = (
            f"{known.kind} state with namespaces {describe_columns(known.namespace)}, map keys "
            f"{describe_columns(known.sub_key)} and folds {list(known.folds)}"
            for known in (stored, spec)
        )
    if before != now:
        message = (
            f"state {spec.name!r} was stored as a {before}, but is requested as a {now}; use another name for the "
            "new state, or another uid for the operator"
        )
        raise StateMigrationError(message)


def has_same_folds(
    stored: TableSpec, spec: TableSpec, renamed: Mapping[str, str] = MappingProxyType({})
) -> bool:
    """Return whether each stored column keeps its fold; a struct may gain columns, or change their order."""
    if not (stored.is_struct and spec.is_struct and stored.folds and spec.folds):
        return stored.folds == spec.folds
    before = dict(zip(stored.values.names, stored.folds, strict=True))
    return all(
        before.get(name, before.get(renamed.get(name, name), fold)) == fold
        for name, fold in zip(spec.values.names, spec.folds, strict=True)
    )


def check_ttl(stored: TableSpec, spec: TableSpec) -> None:
    """Reject a time to live for rows that were stored without times. Raises `StateMigrationError`."""
    if stored.ttl_ms is None and spec.ttl_ms is not None:
        message = (
            f"state {spec.name!r} was stored without a time to live, so the age of its rows is unknown; "
            "use another name for a state with a time to live, or another uid for the operator"
        )
        raise StateMigrationError(message)


def check_settings_unchanged(name: str, before: Sequence[Any], requested: Sequence[Any]) -> None:
    """Reject a second request of a state with other settings. Raises `StateMigrationError`."""
    if before != requested:
        message = (
            f"state {name!r} was first requested as {_describe(before)}, and now as {_describe(requested)}; "
            "rename one of them"
        )
        raise StateMigrationError(message)


def check_same_spec(known: TableSpec, spec: TableSpec) -> None:
    """Reject a second request of a table with another specification. Raises `InvalidRequestError`."""
    if not known.equals(spec):
        message = (
            f"state {spec.name!r} was already requested as {known}, and can't be {spec} as well"
        )
        raise InvalidRequestError(message)


def _describe(settings: Sequence[Any]) -> str:
    words = []
    for part in settings:
        if isinstance(part, pa.Schema):
            words += [f"namespaces {describe_columns(part)}"] if len(part) else []
        elif part is not None:
            words.append(part.name if isinstance(part, Serializer) else str(part))
    return ", ".join(words)
