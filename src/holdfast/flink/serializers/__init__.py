"""Serializers: from what a savepoint says of a serializer to what reads its values.

`snapshots` reads descriptions and knows the classes; `basic`, `composite`, `kryo` and `sql` make what reads values,
each a `Serializer`; `python_types` does so of types that users name. Start with `serializer`.
"""

from holdfast.flink.serializers.composite import list_of, map_of
from holdfast.flink.serializers.python_types import in_bytes, python_type
from holdfast.flink.serializers.serializer import (
    Rows,
    Serializer,
    not_readable,
    only_as_bytes,
    reading,
    unreadable,
)
from holdfast.flink.serializers.snapshots import UnknownSnapshotError, read_snapshot

__all__ = [
    "Rows",
    "Serializer",
    "UnknownSnapshotError",
    "in_bytes",
    "list_of",
    "map_of",
    "not_readable",
    "only_as_bytes",
    "python_type",
    "read_snapshot",
    "reading",
    "unreadable",
]
