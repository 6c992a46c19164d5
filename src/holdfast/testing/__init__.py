"""Tests for adapters that others write, and stores that fail on demand. Needs `holdfast[testing]`.

Suites, written once and run on every store; subclass a suite in a test file, and provide what its
docstring asks for:

- `FileSystemContract`: what every `FileSystem` must do.
- `ExclusiveFileSystemContract`: the same, and what an `ExclusiveFileSystem` adds.
- `CheckpointStorageContract`: what every `CheckpointStorage` must do.
- `StateTablesContract`, `KeyedStatesContract`: what every backend of keyed state must do, and states over it.

Stores for tests of code that uses a file system, each with a scheme of its own while its block lasts:

- `faulty_file_system`: fails, loses answers, cuts off, fills up or stands still when told to.
- `counting_file_system`: counts calls and bytes.

Before a real server: `http_faults`, a proxy that fails, delays or changes chosen requests. Against races:
`at_every_step`, which lets another thread act at each line of a call.
`ManualClock` moves only when a test advances it, for all code that is given a clock.

For users of keyed streams: `ProcessorTester`, which tests PySpark's `StatefulProcessor` classes over our state.

Importing it needs pytest; `ProcessorTester` needs PySpark.
"""

from typing import TYPE_CHECKING, Any

from holdfast.testing.contracts import (
    CheckpointStorageContract,
    ExclusiveFileSystemContract,
    FileSystemContract,
    KeyedStatesContract,
    StateTablesContract,
)
from holdfast.testing.counting import Counts, counting_file_system
from holdfast.testing.faults import ANY_CALL, Action, Faults, Nth
from holdfast.testing.faulty import faulty_file_system
from holdfast.testing.http import (
    S3_OPERATIONS,
    HttpFaults,
    HttpRequest,
    http_faults,
    s3_operation,
    s3_operation_of,
)
from holdfast.testing.interleaving import Interleaved, at_every_step
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.values import metadata_of

if TYPE_CHECKING:
    from holdfast.spark.processors import ProcessorTester

__all__ = [
    "ANY_CALL",
    "S3_OPERATIONS",
    "Action",
    "CheckpointStorageContract",
    "Counts",
    "ExclusiveFileSystemContract",
    "Faults",
    "FileSystemContract",
    "HttpFaults",
    "HttpRequest",
    "Interleaved",
    "KeyedStatesContract",
    "ManualClock",
    "Nth",
    "ProcessorTester",
    "StateTablesContract",
    "at_every_step",
    "counting_file_system",
    "faulty_file_system",
    "http_faults",
    "metadata_of",
    "s3_operation",
    "s3_operation_of",
]


def __getattr__(name: str) -> Any:
    """Import names that need PySpark only on access: tests of stores do without."""
    if name == "ProcessorTester":
        from holdfast.spark.processors import ProcessorTester  # noqa: PLC0415

        return ProcessorTester
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
