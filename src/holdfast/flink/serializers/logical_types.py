"""Serializers of SQL types, which savepoints contain as Java objects.

Source:
    Flink, org.apache.flink.table.types.logical (flink-table-common 2.3.0).
"""

from collections.abc import Callable
from typing import Any

from holdfast.flink.binary import JavaObject, corrupted_error
from holdfast.flink.serializers import sql
from holdfast.flink.serializers.sql import SqlSerializer

_PACKAGE = "org.apache.flink.table.types.logical."

_SIMPLE = {
    "BooleanType": sql.BOOLEAN,
    "TinyIntType": sql.BYTE,
    "SmallIntType": sql.SHORT,
    "IntType": sql.INT,
    "BigIntType": sql.LONG,
    "FloatType": sql.FLOAT,
    "DoubleType": sql.DOUBLE,
    "CharType": sql.STRING_DATA,
    "VarCharType": sql.STRING_DATA,
    "BinaryType": sql.BINARY,
    "VarBinaryType": sql.BINARY,
    "DateType": sql.DATE,
    "TimeType": sql.TIME,
    "YearMonthIntervalType": sql.INT,
    "DayTimeIntervalType": sql.MILLISECONDS,
    "NullType": sql.VOID,
}


def logical_type(value: Any) -> SqlSerializer | None:
    """Return the serializer of a type, or None for an unknown type.

    Raises:
        CheckpointCorruptedError: The type is not a valid SQL type.
    """
    if not isinstance(value, JavaObject) or not value.java_class.startswith(_PACKAGE):
        return None
    name = value.java_class.removeprefix(_PACKAGE)
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name not in _OTHERS:
        return None
    try:
        return _OTHERS[name](value.fields)
    except (ValueError, KeyError, TypeError) as error:
        message = f"SQL type {name} is not valid: {error}"
        raise corrupted_error(message) from error


def element_type(value: Any) -> SqlSerializer:
    """Return the serializer of fields and elements of a type; unknown types are read as bytes. Raises like `logical_type`."""
    return logical_type(value) or sql.BINARY


def _row(fields: dict[str, Any], name: str) -> SqlSerializer | None:
    """Return the serializer of rows, or None if a field has an unknown type. The fields are in a Java list of any class."""
    types = [logical_type(item.fields["type"]) for item in _items(fields[name])]
    known = [type for type in types if type is not None]
    return sql.row_of(*known) if len(known) == len(types) else None


def _items(value: Any) -> list[JavaObject]:
    """Return the fields in a Java list."""
    while isinstance(value, JavaObject):
        items = [item for item in value.items if isinstance(item, JavaObject)]
        if items:
            return items
        value = value.fields.get("c") or value.fields.get("list") or value.fields.get("a")
    return []


_OTHERS: dict[str, Callable[[dict[str, Any]], SqlSerializer | None]] = {
    "DecimalType": lambda fields: sql.decimal_of(fields["precision"], fields["scale"]),
    "TimestampType": lambda fields: sql.timestamp_of(fields["precision"]),
    "LocalZonedTimestampType": lambda fields: sql.timestamp_of(fields["precision"], "UTC"),
    "ArrayType": lambda fields: sql.array_of(element_type(fields["elementType"])),
    "MultisetType": lambda fields: sql.map_of(element_type(fields["elementType"]), sql.INT),
    "MapType": lambda fields: sql.map_of(
        element_type(fields["keyType"]), element_type(fields["valueType"])
    ),
    "RowType": lambda fields: _row(fields, "fields"),
    "StructuredType": lambda fields: _row(fields, "attributes"),
    "DistinctType": lambda fields: logical_type(fields["sourceType"]),
}
