"""The specification of a table as a manifest stores it."""

from dataclasses import fields
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.compatibility import check_ttl, has_same_folds
from holdfast.backends.keyed.table import Fold, Migration, StateKind, TableSpec, plain_schema
from holdfast.common import MAX_INT64
from holdfast.errors import StateMigrationError


class StoredSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `TableSpec` with its schemas as Arrow stores them: the bytes of an IPC schema message each."""

    name: str
    kind: StateKind
    key: bytes
    values: bytes
    namespace: bytes = b""
    sub_key: bytes = b""
    folds: tuple[Fold, ...] = ()
    ttl_ms: int | None = None
    is_struct: bool = False

    @classmethod
    def of(cls, spec: TableSpec) -> "StoredSpec":
        """The stored form of a specification."""
        parts: dict[str, Any] = {}
        for field in fields(spec):
            part = getattr(spec, field.name)
            parts[field.name] = _bytes_of(part) if isinstance(part, pa.Schema) else part
        return cls(**parts)

    def spec(self) -> TableSpec:
        """The spec. Raises `pa.ArrowException`, `ValueError` or `OSError` if it can't be right."""
        return _spec(self)


@lru_cache(maxsize=256)
def _spec(stored: StoredSpec) -> TableSpec:
    if stored.ttl_ms is not None and not 0 < stored.ttl_ms <= MAX_INT64:
        message = f"rows of table {stored.name!r} live for {stored.ttl_ms} ms"
        raise ValueError(message)
    parts = {
        name: _schema(part) if isinstance(part, bytes) else part
        for name, part in msgspec.structs.asdict(stored).items()
    }
    spec = TableSpec(**parts)
    names = [field.name for field in spec.stored_fields]
    if len(set(names)) < len(names) or not len(spec.key):
        message = f"table {stored.name!r} has columns {names}"
        raise ValueError(message)
    if spec.folds and len(spec.folds) != len(spec.values):
        message = f"table {stored.name!r} has {len(spec.folds)} folds for {len(spec.values)} values"
        raise ValueError(message)
    return spec


def _bytes_of(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes() if len(schema) else b""


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data)) if data else pa.schema([])


def migration_of(
    stored: TableSpec, spec: TableSpec, migration: Migration | None
) -> Migration | None:
    """The function that migrates stored values to the table's present types; None if they have these already.

    Args:
        stored: The table's specification when it was stored.
        spec: The table's present specification.
        migration: Migrates stored values; None if there is no way.

    Raises:
        StateMigrationError: The table is of another kind, has other keys, folds otherwise, or its rows have
            no times; or its values differ, and there is no migration.
    """
    for what, before, now in (
        ("kind", stored.kind, spec.kind),
        ("keys", plain_schema(stored.key), plain_schema(spec.key)),
        ("namespaces", plain_schema(stored.namespace), plain_schema(spec.namespace)),
        ("sub keys", _bytes_of(stored.sub_key), _bytes_of(spec.sub_key)),
        ("folds", has_same_folds(stored, spec), True),
    ):
        if before != now:
            message = (
                f"state {spec.name!r} was stored with other {what}: {stored}; asked for: {spec}"
            )
            raise StateMigrationError(message)
    check_ttl(stored, spec)
    are_same = stored.folds == spec.folds and stored.is_struct == spec.is_struct
    if are_same and _bytes_of(stored.values) == _bytes_of(spec.values):
        return None
    if migration is None:
        message = f"state {spec.name!r} was stored with values {stored.values}, and is asked for with {spec.values}"
        raise StateMigrationError(message)
    return migration
