"""The methods of all handles to state."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.adapters import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    PlaceholderStreamStateHandle,
    RawOperatorStateHandle,
    SegmentsStateHandle,
    StateHandle,
    StatePartitions,
)

FILE = FileStateHandle("file:///a", 10)
OTHER = FileStateHandle("file:///b", 20)
HANDLES: dict[str, Callable[[StreamStateHandle], StateHandle]] = {
    "operator state": lambda stream: OperatorStateHandle(
        {"s": StatePartitions(OperatorStateMode.UNION, 2, 8, 0, 1)}, stream
    ),
    "raw operator state": lambda stream: RawOperatorStateHandle(((0, 3), (3, 7)), stream),
    "keyed state": lambda stream: KeyGroupsStateHandle((4, 6), ((5, 5), None, (0, 5)), stream),
}
each = pytest.mark.parametrize("handle_to", HANDLES.values(), ids=HANDLES)


@each
def test_handle_returns_its_stream_and_accepts_another_one(
    handle_to: Callable[[StreamStateHandle], StateHandle],
) -> None:
    handle = handle_to(FILE)
    assert (handle.streams(), handle.size) == ((FILE,), 10)
    assert handle.with_streams(lambda stream: OTHER) == handle_to(OTHER)
    assert handle == handle_to(FILE)


@each
def test_handle_exceeding_its_stream_is_inconsistent(
    handle_to: Callable[[StreamStateHandle], StateHandle],
) -> None:
    assert handle_to(FILE).find_inconsistency() is None
    inconsistency = handle_to(FileStateHandle("file:///a", 9)).find_inconsistency()
    assert inconsistency is not None
    assert inconsistency.endswith("of a stream of 9")


@each
def test_handle_deletes_its_bytes(
    handle_to: Callable[[StreamStateHandle], StateHandle], tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(bytes(10))
    stream = FileStateHandle(f"file://{tmp_path}/state", 10)
    handle_to(stream).discard_state()
    with pytest.raises(CheckpointNotFoundError):
        stream.open_input_stream()


A, B = "a" * 32, "b" * 32
MANIFEST = ByteStreamStateHandle(b"manifest")


class TestSegments:
    """State in many files; other checkpoints may refer to some of them."""

    def test_every_stream_is_given_changed_and_counted(self) -> None:
        handle = SegmentsStateHandle((4, 6), {A: FILE, B: OTHER}, MANIFEST)
        assert (handle.streams(), handle.size) == ((MANIFEST, FILE, OTHER), 38)
        assert handle.shared_streams() == {A: FILE, B: OTHER}
        changed = handle.with_streams(lambda stream: OTHER if stream == FILE else stream)
        assert changed == SegmentsStateHandle((4, 6), {A: OTHER, B: OTHER}, MANIFEST)

    def test_placeholder_has_the_size_of_its_stream(self) -> None:
        placeholder = PlaceholderStreamStateHandle(A, 10)
        handle = SegmentsStateHandle((4, 6), {A: placeholder}, MANIFEST)
        assert (handle.size, handle.find_inconsistency()) == (18, None)

    def test_placeholder_can_not_be_opened(self) -> None:
        with pytest.raises(InvalidRequestError, match=f"shared stream '{A}' has no bytes"):
            PlaceholderStreamStateHandle(A, 10).open_input_stream()

    def test_only_written_bytes_of_a_report_are_deleted(self, tmp_path: Path) -> None:
        old, new, manifest = (
            FileStateHandle(f"file://{tmp_path}/{name}", 10) for name in ("old", "new", "manifest")
        )
        for name in ("old", "new", "manifest"):
            (tmp_path / name).write_bytes(bytes(10))
        reported = SegmentsStateHandle(
            (4, 6), {A: PlaceholderStreamStateHandle(A, old.size), B: new}, manifest
        )
        reported.discard_state()
        assert [path.name for path in tmp_path.iterdir()] == ["old"]

    @pytest.mark.parametrize(
        ("segments", "inconsistency"),
        [
            ({"../escape": FILE}, "a segment of the name '../escape'"),
            ({A.upper(): FILE}, f"a segment of the name '{A.upper()}'"),
            ({A[1:]: FILE}, f"a segment of the name '{A[1:]}'"),
            (
                {A: PlaceholderStreamStateHandle(B, 10)},
                f"a placeholder of segment '{B}' in the place of '{A}'",
            ),
        ],
    )
    def test_invalid_segment_name_is_inconsistent(
        self, segments: dict[str, StreamStateHandle], inconsistency: str
    ) -> None:
        assert SegmentsStateHandle((4, 6), segments, MANIFEST).find_inconsistency() == inconsistency

    def test_range_ending_before_it_begins_is_inconsistent(self) -> None:
        assert SegmentsStateHandle((4, 3), {}, MANIFEST).find_inconsistency() == "key groups 4 to 3"

    def test_part_of_the_range_leads_to_the_same_streams(self) -> None:
        handle = SegmentsStateHandle((4, 6), {A: FILE}, MANIFEST)
        assert handle.intersection(0, 4) == SegmentsStateHandle((4, 4), {A: FILE}, MANIFEST)
        assert handle.intersection(7, 9) is None
