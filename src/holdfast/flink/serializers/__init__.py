"""Serializers: snapshots of Flink's serializers, and readers of their values.

`snapshots` reads descriptions and knows the classes; `basic`, `composite`, `kryo` and `sql` make readers of values,
each a `Serializer`; `python_types` does so for types that users name, and `writing`
is the inverse. Start with `serializer`.
"""

from holdfast.flink.serializers.basic import LONG
from holdfast.flink.serializers.composite import list_of, map_of, sorted_times, struct_of
from holdfast.flink.serializers.kryo import TOPIC_PARTITION
from holdfast.flink.serializers.python_types import in_bytes, python_type, several_in_bytes
from holdfast.flink.serializers.serializer import (
    Packed,
    Rows,
    Serializer,
    not_readable,
    null_key,
    only_as_bytes,
    reading,
    unreadable,
)
from holdfast.flink.serializers.snapshots import UnknownSnapshotError, read_snapshot
from holdfast.flink.serializers.writing import (
    NO_NAMESPACE,
    WINDOW_OF_TIME,
    WrittenType,
    encode_items,
    list_snapshot,
    list_without_count,
    map_snapshot,
    nullable_value,
    plain_type,
    timer_snapshot,
    timer_time,
    tuple_of_columns,
    utf,
    with_last_access,
    written_type,
)

__all__ = [
    "LONG",
    "NO_NAMESPACE",
    "TOPIC_PARTITION",
    "WINDOW_OF_TIME",
    "Packed",
    "Rows",
    "Serializer",
    "UnknownSnapshotError",
    "WrittenType",
    "encode_items",
    "in_bytes",
    "list_of",
    "list_snapshot",
    "list_without_count",
    "map_of",
    "map_snapshot",
    "not_readable",
    "null_key",
    "nullable_value",
    "only_as_bytes",
    "plain_type",
    "python_type",
    "read_snapshot",
    "reading",
    "several_in_bytes",
    "sorted_times",
    "struct_of",
    "timer_snapshot",
    "timer_time",
    "tuple_of_columns",
    "unreadable",
    "utf",
    "with_last_access",
    "written_type",
]
