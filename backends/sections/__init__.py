"""The stored form of one operator state: a section of a stream, which is an Arrow IPC file.

`section` draws it, writes and reads it; here the bytes of managed operator state are written.
"""

from holdfast.backends.sections.bounded_stream import BoundedInputStream, StateSource, location_of
from holdfast.backends.sections.schemas import are_alike
from holdfast.backends.sections.section import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    Compression,
    blocks_and_rows,
    read_blocks,
    read_schema,
    read_section,
    section_of,
)
from holdfast.backends.sections.written_states import WrittenState, WrittenStates

__all__ = [
    "LIST_COLUMNS",
    "MAP_COLUMNS",
    "BoundedInputStream",
    "Compression",
    "StateSource",
    "WrittenState",
    "WrittenStates",
    "are_alike",
    "blocks_and_rows",
    "location_of",
    "read_blocks",
    "read_schema",
    "read_section",
    "section_of",
]
