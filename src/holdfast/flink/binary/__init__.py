"""Bytes as Java and Flink write them: numbers and strings, serialized Java objects, Snappy, masked checksums.

`data_input` reads values and compares every count with the remaining bytes; `corrupted_error` makes its errors.
"""

from holdfast.flink.binary.data_input import DataInput, corrupted_error, modified_utf8
from holdfast.flink.binary.java_objects import JavaObject, read_java_object
from holdfast.flink.binary.snappy import decompress_block, decompress_streams, masked_crc32c

__all__ = [
    "DataInput",
    "JavaObject",
    "corrupted_error",
    "decompress_block",
    "decompress_streams",
    "masked_crc32c",
    "modified_utf8",
    "read_java_object",
]
