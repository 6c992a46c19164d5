"""Bytes as Java and Flink write them: numbers and texts, objects of Java, Snappy, masked checksums.

`data_input` reads values and compares every count with the bytes that are left; whatever is wrong is raised as `damaged`.
"""

from holdfast.flink.binary.data_input import DataInput, damaged, modified_utf8
from holdfast.flink.binary.java_objects import JavaObject, read_java_object
from holdfast.flink.binary.masked_crc import masked_crc32c
from holdfast.flink.binary.snappy import decompress_block, decompress_streams

__all__ = [
    "DataInput",
    "JavaObject",
    "damaged",
    "decompress_block",
    "decompress_streams",
    "masked_crc32c",
    "modified_utf8",
    "read_java_object",
]
