"""The suites, one module each; `holdfast.testing` exports them."""

import pytest

# Before any import of them, so that failing asserts show their values to third parties too.
# The package itself can't be registered, because it is already being imported.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "exclusive_file_systems",
            "file_systems",
            "races",
            "storages",
            "writes",
        )
    )
)

from holdfast.testing.contracts.exclusive_file_systems import ExclusiveFileSystemContract  # noqa: E402
from holdfast.testing.contracts.file_systems import FileSystemContract  # noqa: E402
from holdfast.testing.contracts.keyed import (  # noqa: E402
    KeyedCheckpoints,
    KeyedStatesContract,
    StateTablesContract,
    parts_of,
)
from holdfast.testing.contracts.storages import CheckpointStorageContract  # noqa: E402
from holdfast.testing.contracts.writing import Write, both_writes  # noqa: E402

__all__ = [
    "CheckpointStorageContract",
    "ExclusiveFileSystemContract",
    "FileSystemContract",
    "KeyedCheckpoints",
    "KeyedStatesContract",
    "StateTablesContract",
    "Write",
    "both_writes",
    "parts_of",
]
