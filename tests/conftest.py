"""Shared by all tests: hypothesis profiles, and directories on file systems."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from older_pyarrow import collect_ignore, pytest_collection_modifyitems
from xdist_scheduler import (
    pytest_collection,
    pytest_collection_finish,
    pytest_configure,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

from holdfast.locations.adapters import file_system_for
from holdfast.testing import Faults, faulty_file_system

pytest.register_assert_rewrite("contracts.keyed")

for name, examples in (("quick", 20), ("dev", 50), ("ci", 500), ("nightly", 20_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        # Function-scoped fixtures are directories, which examples may share.
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

__all__ = [
    "collect_ignore",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]


@pytest.fixture
def local_directory(tmp_path: Path) -> str:
    """URI of an empty directory on disk."""
    return f"file://{tmp_path}"


@pytest.fixture
def memory_directory() -> Iterator[str]:
    """URI of an empty directory in memory, emptied afterwards."""
    directory = f"memory:///{uuid.uuid4().hex}"
    file_system = file_system_for(directory)
    file_system.prepare_directory(directory)
    yield directory
    file_system.delete_tree(directory)


@pytest.fixture
def faults(memory_directory: str) -> Iterator[Faults]:
    """A directory in memory whose file system fails on demand."""
    with faulty_file_system(memory_directory) as faults:
        yield faults
