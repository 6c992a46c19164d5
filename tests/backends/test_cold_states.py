"""The suite of keyed states over tables whose segments are all in storage, and are fetched block by block."""

import tempfile
from collections.abc import Iterator, Sequence

import pytest
from contracts.keyed.keyed_states import KeyedStatesContract
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import ColumnarStateTables, StateTables
from holdfast.backends.keyed.segments import FetchPolicy
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle

WRITER = "holdfast.backends.keyed.segments.segment_writer"


class ColdStatesContract(KeyedStatesContract):
    fetch_policy: FetchPolicy

    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        directory = self.directory()
        return ColumnarStateTables(
            key_groups, handles, directory=directory, fetch_policy=self.fetch_policy
        )

    def directory(self) -> str | None:
        return None


class TestColdStatesInMemory(ColdStatesContract):
    fetch_policy = FetchPolicy(
        small_bytes=0, max_tail_bytes=64, gap_bytes=0, whole_share=2, max_requests=8
    )

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(f"{WRITER}.BLOCK_BYTES", 64)
            patch.setattr(f"{WRITER}.MIN_ROWS", 1)  # so that all sections have side tables
            yield


class TestColdStatesOnDisk(ColdStatesContract):
    fetch_policy = FetchPolicy(small_bytes=0, whole_share=2, max_requests=1)

    def directory(self) -> str:
        return tempfile.mkdtemp(dir=QUICK_DISK)
