"""Local copies of segments that are completed between batches."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from contracts.columnar_tables import ROWS, TablesJob, identities, value_spec
from contracts.patience import wait_until

from holdfast.backends.keyed import Completion, MissingCopy
from holdfast.backends.keyed.segments import FetchPolicy
from holdfast.backends.keyed.segments.partial_segment import PartialSegment
from holdfast.locations.adapters import FileStateHandle
from holdfast.testing import Faults

ALL = 1 << 40


@pytest.fixture
def completion() -> Iterator[Completion]:
    completion = Completion()
    yield completion
    completion.pause()


@pytest.fixture
def copies(faults: Faults, tmp_path: Path) -> list[MissingCopy]:
    """Three segments of different sizes, of more than 600 KB, and a host without copies."""
    job = TablesJob(faults.directory, tmp_path / "warm")
    tables = job.restore()
    table = tables.table(value_spec(pa.binary()))
    random = np.random.default_rng(1)
    for step in (1, 2, 3):
        numbers = range(0, ROWS, step)
        texts = [random.bytes(200) for _ in numbers]
        table.write(identities(numbers), [pa.array(texts)])
        handle = job.complete(tables)
    cold = tmp_path / "cold"
    streams = sorted(handle.segments.items(), key=lambda item: item[1].size)
    return [
        MissingCopy(name, stream, str(cold / name))
        for name, stream in streams
        if isinstance(stream, FileStateHandle)
    ]


def complete_paths(copies: list[MissingCopy]) -> list[bool]:
    return [Path(copy.path).exists() for copy in copies]


def test_copies_are_completed_with_the_bytes_of_storage(
    completion: Completion, copies: list[MissingCopy]
) -> None:
    completion.resume(1, copies, ALL)
    wait_until(lambda: all(complete_paths(copies)), "a copy stays partial")
    for copy in copies:
        copy.handle.check(Path(copy.path).read_bytes())


def test_paused_completion_starts_no_request_and_continues_later(
    completion: Completion, copies: list[MissingCopy], faults: Faults
) -> None:
    faults.before("open", completion.pause, nth=2)
    completion.resume(1, copies, ALL)
    wait_until(lambda: faults.calls.count("open") >= 2, "nothing was fetched")
    assert complete_paths(copies)[1:] == [False, False]
    completion.resume(1, [], ALL)
    wait_until(lambda: all(complete_paths(copies)), "a copy stays partial")


def test_copies_without_room_stay_partial(
    completion: Completion, copies: list[MissingCopy]
) -> None:
    completion.resume(1, copies, copies[0].handle.size + 100_000)
    wait_until(lambda: complete_paths(copies)[0], "the smallest copy stays partial")
    completion.resume(2, copies[:1], ALL)  # the others are forgotten
    assert complete_paths(copies)[1:] == [False, False]


def test_deleted_segment_does_not_stop_the_others(
    completion: Completion, copies: list[MissingCopy]
) -> None:
    copies[0].handle.discard_state()
    completion.resume(1, copies, ALL)
    wait_until(lambda: complete_paths(copies) == [False, True, True], "a copy stays partial")


def test_copy_locked_by_another_worker_stays_partial(
    completion: Completion, copies: list[MissingCopy]
) -> None:
    first = copies[0]
    other = PartialSegment(first.name, first.handle, 1 << 16, first.path, FetchPolicy())
    assert other.lock()
    completion.resume(1, copies, ALL)
    wait_until(lambda: complete_paths(copies) == [False, True, True], "a copy stays partial")
    with suppress(OSError):
        other.complete()
    assert all(complete_paths(copies))
