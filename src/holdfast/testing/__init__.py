"""Test suites for custom adapters, and stores that fail on demand. Needs `holdfast[testing]`.

Suites that run on every store. Subclass one in a test file, and provide the fixtures that its docstring lists:

- `FileSystemContract`: requirements of every `FileSystem`.
- `ExclusiveFileSystemContract`: the same, plus those of an `ExclusiveFileSystem`.
- `CheckpointStorageContract`: requirements of every `CheckpointStorage`.

Stores for tests of code that uses a file system, each with its own scheme while its block lasts:

- `faulty_file_system`: fails, loses answers, truncates files, fills up or blocks on demand.
- `counting_file_system`: counts calls and bytes.

For real servers: `http_faults`, a proxy that fails, delays or changes selected requests. For races:
`at_every_step`, which runs an action of another thread at each line of a call.
`ManualClock` only moves when a test advances it, for all code with a clock argument.
For users of keyed streams: `ProcessorTester`, which tests PySpark's `StatefulProcessor` classes on Holdfast's state.

Importing it needs pytest; `ProcessorTester` needs PySpark.
"""

from typing import TYPE_CHECKING, Any

import pytest

# Before they are imported, so that failing asserts show their values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("file_systems", "exclusive_file_systems", "checkpoint_streams", "storages")
    )
)

from holdfast.testing.counting import Counts, counting_file_system
from holdfast.testing.exclusive_file_systems import ExclusiveFileSystemContract
from holdfast.testing.faults import ANY_CALL, Action, Faults, Nth, faulty_file_system
from holdfast.testing.file_systems import FileSystemContract
from holdfast.testing.http_proxy import http_faults
from holdfast.testing.interleaving import Interleaved, at_every_step
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.request_faults import (
    S3_OPERATIONS,
    HttpFaults,
    HttpRequest,
    s3_operation,
    s3_operation_of,
)
from holdfast.testing.storages import CheckpointStorageContract
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
    "ManualClock",
    "Nth",
    "ProcessorTester",
    "at_every_step",
    "counting_file_system",
    "faulty_file_system",
    "http_faults",
    "metadata_of",
    "s3_operation",
    "s3_operation_of",
]


def __getattr__(name: str) -> Any:
    """Import names that need PySpark on access, because tests of stores do not need it."""
    if name == "ProcessorTester":
        from holdfast.spark.processors import ProcessorTester  # noqa: PLC0415

        return ProcessorTester
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
