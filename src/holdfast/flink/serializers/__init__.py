"""Serializers: from what a savepoint says of a serializer to what reads its values.

`snapshots` reads descriptions and knows the classes; `basic` and `composite` make what reads values, each a
`Serializer`. Start with `serializer`.
"""

from holdfast.flink.serializers.basic import LONG
from holdfast.flink.serializers.composite import list_of, map_of
from holdfast.flink.serializers.serializer import (
    Read,
    Rows,
    Serializer,
    not_readable,
    reading,
    unreadable,
)
from holdfast.flink.serializers.snapshots import UnknownSnapshotError, read_snapshot

__all__ = [
    "LONG",
    "Read",
    "Rows",
    "Serializer",
    "UnknownSnapshotError",
    "list_of",
    "map_of",
    "not_readable",
    "read_snapshot",
    "reading",
    "unreadable",
]
