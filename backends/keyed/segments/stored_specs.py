"""Specifications of tables as manifests store them, and migrations from them."""

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
    """A `TableSpec` with each schema as the bytes of an Arrow IPC schema message."""

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
        """Return the stored form of a specification."""
        values: dict[str, Any] = {}
        for field in fields(spec):
            value = getattr(spec, field.name)
            values[field.name] = _to_bytes(value) if isinstance(value, pa.Schema) else value
        return cls(**values)

    def spec(self) -> TableSpec:
        """Return the specification. Raises `pa.ArrowException`, `ValueError` or `OSError` if it is invalid."""
        return _decode(self)


@lru_cache(maxsize=256)
def _decode(stored: StoredSpec) -> TableSpec:
    if stored.ttl_ms is not None and not 0 < stored.ttl_ms <= MAX_INT64:
        message = f"table {stored.name!r} has a TTL of {stored.ttl_ms} ms"
        raise ValueError(message)
    values = {
        name: _to_schema(value) if isinstance(value, bytes) else value
        for name, value in msgspec.structs.asdict(stored).items()
    }
    spec = TableSpec(**values)
    names = [field.name for field in spec.stored_fields]
    if len(set(names)) < len(names) or not len(spec.key):
        message = f"table {stored.name!r} has columns {names}"
        raise ValueError(message)
    if spec.folds and len(spec.folds) != len(spec.values):
        message = f"table {stored.name!r} has {len(spec.folds)} folds for {len(spec.values)} values"
        raise ValueError(message)
    return spec


def _to_bytes(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes() if len(schema) else b""


def _to_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data)) if data else pa.schema([])


def resolve_migration(
    stored: TableSpec, spec: TableSpec, migration: Migration | None
) -> Migration | None:
    """Return the migration of stored values to the table's present types; None if they have these already.

    Args:
        stored: The table's specification when it was stored.
        spec: The table's present specification.
        migration: Migrates stored values; None if they can't be migrated.

    Raises:
        StateMigrationError: The kind, the keys or the folds differ, or a TTL was added or removed; or the values
            differ, and there is no migration.
    """
    for aspect, before, now in (
        ("kind", stored.kind, spec.kind),
        ("keys", plain_schema(stored.key), plain_schema(spec.key)),
        ("namespaces", plain_schema(stored.namespace), plain_schema(spec.namespace)),
        ("sub keys", _to_bytes(stored.sub_key), _to_bytes(spec.sub_key)),
        ("folds", has_same_folds(stored, spec), True),
    ):
        if before != now:
            message = (
                f"state {spec.name!r} was stored with other {aspect}: {stored}; requested: {spec}"
            )
            raise StateMigrationError(message)
    check_ttl(stored, spec)
    is_stored_alike = stored.folds == spec.folds and stored.is_struct == spec.is_struct
    if is_stored_alike and _to_bytes(stored.values) == _to_bytes(spec.values):
        return None
    if migration is None:
        message = f"state {spec.name!r} was stored with values {stored.values}, but requested with {spec.values}"
        raise StateMigrationError(message)
    return migration
