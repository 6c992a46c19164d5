"""What all handles to state can do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.adapters import FileStateHandle, StreamStateHandle
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
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
def test_a_handle_gives_its_stream_and_goes_on_with_another_one(
    handle_to: Callable[[StreamStateHandle], StateHandle],
) -> None:
    handle = handle_to(FILE)
    assert (handle.streams(), handle.size) == ((FILE,), 10)
    assert handle.with_streams(lambda stream: OTHER) == handle_to(OTHER)
    assert handle == handle_to(FILE)


@each
def test_a_handle_that_leads_beyond_its_stream_says_so(
    handle_to: Callable[[StreamStateHandle], StateHandle],
) -> None:
    assert handle_to(FILE).flaw() is None
    flaw = handle_to(FileStateHandle("file:///a", 9)).flaw()
    assert flaw is not None
    assert flaw.endswith("of a stream of 9")


@each
def test_a_handle_deletes_what_it_leads_to(
    handle_to: Callable[[StreamStateHandle], StateHandle], tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(bytes(10))
    stream = FileStateHandle(f"file://{tmp_path}/state", 10)
    handle_to(stream).discard_state()
    with pytest.raises(CheckpointNotFoundError):
        stream.open_input_stream()
