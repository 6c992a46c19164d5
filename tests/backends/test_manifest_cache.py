"""The cache of manifests by their bytes never changes a result."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.keyed.segments import read_manifest
from holdfast.backends.keyed.segments.manifest import (
    END,
    Manifest,
    Run,
    Slice,
    StoredSpec,
    TableManifest,
    encode_manifest,
)
from holdfast.backends.keyed.table import TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.common import crc32c
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import ByteStreamStateHandle, SegmentsStateHandle, StreamStateHandle

GROUPS = KeyGroupRange(0, 127)
SPEC = StoredSpec.of(
    TableSpec(
        "counts", "value", pa.schema([("key", pa.int64())]), pa.schema([("value", pa.int64())])
    )
)
EMPTY = ByteStreamStateHandle(b"")


def handle_of(content: bytes, segments: frozenset[str]) -> SegmentsStateHandle:
    streams: dict[str, StreamStateHandle] = dict.fromkeys(segments, EMPTY)
    return SegmentsStateHandle((0, 127), streams, ByteStreamStateHandle(content))


def clear_cache() -> None:
    """Write a manifest that evicts all others."""
    encode_manifest(manifest_of([[("x" * (2 << 20), 0, 1)]]))


def manifest_of(
    runs: list[list[tuple[str, int, int]]],
    *,
    rows: int = 1,
    row_bytes: float = 32.0,
    cursor: int = 0,
    credit: float = 0.0,
) -> Manifest:
    """Make a manifest of runs of slices: segment, first sort key, and end."""
    made = tuple(
        Run(
            level,
            tuple(Slice(name, 0, first, end, rows, row_bytes, 0) for name, first, end in run),
        )
        for level, run in enumerate(runs)
    )
    return Manifest({"counts": TableManifest((SPEC,), made, cursor, credit, row_bytes)})


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    edges = draw(st.lists(st.integers(0, (128 << 48) - 1), min_size=2, max_size=6, unique=True))
    edges.sort()
    names = st.text("abcdef0123456789", min_size=1, max_size=32)
    return [(draw(names), first, end) for first, end in zip(edges[::2], edges[1::2], strict=False)]


@given(
    st.lists(runs(), max_size=5),
    st.integers(0, 1 << 40),
    st.floats(0, 1e6),
    st.integers(0, END),
    st.floats(0, 1e12),
)
def test_cached_manifest_equals_the_decoded_one(
    slices: list[list[tuple[str, int, int]]],
    rows: int,
    row_bytes: float,
    cursor: int,
    credit: float,
) -> None:
    manifest = manifest_of(slices, rows=rows, row_bytes=row_bytes, cursor=cursor, credit=credit)
    content = encode_manifest(manifest)
    handle = handle_of(content, manifest.segments)
    known = read_manifest([handle], GROUPS)
    clear_cache()
    assert read_manifest([handle], GROUPS) == known == manifest
    assert read_manifest([handle], GROUPS).segments == manifest.segments
    assert encode_manifest(known) == content


def test_changed_bytes_of_a_cached_manifest_are_corrupt() -> None:
    content = encode_manifest(manifest_of([[("a", 0, END)]]))
    read_manifest([handle_of(content, frozenset("a"))], GROUPS)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(CheckpointCorruptedError):
            read_manifest([handle_of(bytes(changed), frozenset("a"))], GROUPS)


def test_cached_manifest_is_checked_against_its_handle() -> None:
    content = encode_manifest(manifest_of([[("a", 0, END)]]))
    with pytest.raises(CheckpointCorruptedError, match=r"\['a'\], which its handle doesn't have"):
        read_manifest([handle_of(content, frozenset("b"))], GROUPS)


def test_cached_manifest_is_restricted_to_the_requested_key_groups() -> None:
    content = encode_manifest(manifest_of([[("a", 0, 128 << 48)]]))
    handle = handle_of(content, frozenset("a"))
    for groups in (KeyGroupRange(0, 31), GROUPS, KeyGroupRange(32, 127)):
        (table,) = read_manifest([handle], groups).tables.values()
        ((piece,),) = (run.slices for run in table.runs)
        first, end = groups.start_key_group << 48, (groups.end_key_group + 1) << 48
        assert (piece.first, piece.end) == (first, end)


def test_rejected_manifest_is_not_cached() -> None:
    content = bytearray(encode_manifest(manifest_of([[("a", 0, END)]])))
    at = content.index(struct.pack(">Q", END))
    content[at : at + 8] = struct.pack(">Q", END + 1)
    struct.pack_into(">I", content, len(content) - 4, crc32c(content[:-4]))
    for _ in range(2):
        with pytest.raises(CheckpointCorruptedError, match="has a slice from 0"):
            read_manifest([handle_of(bytes(content), frozenset("a"))], GROUPS)
