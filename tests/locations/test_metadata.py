import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from contracts.metadata import seal
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import uripath
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask, SubtaskStatistics
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    Checksum,
    FileStateHandle,
    StreamStateHandle,
)
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    SegmentsStateHandle,
    StatePartitions,
)
from holdfast.locations.metadata import READERS, decode_metadata, encode_metadata
from holdfast.testing import metadata_of

DIRECTORY = "file:///data/job/chk-7"
URI = f"{DIRECTORY}/_metadata"
GOLDEN = Path(__file__).parents[1] / "data" / "v1" / "_metadata"
GOLDEN_OF_ALL_KINDS = GOLDEN.with_name("_metadata-of-all-kinds")
GOLDEN_OF_SEGMENTS = GOLDEN.with_name("_metadata-of-segments")
GOLDEN_OF_CLAIMS = GOLDEN.with_name("_metadata-of-claims")


def golden_metadata(file: Path) -> CheckpointMetadata:
    """Read the values of a golden file from the JSON next to it; both are fixed forever."""
    values = file.with_name(f"{file.name}.json").read_bytes()
    return msgspec.json.decode(values, type=CheckpointMetadata)


GOLDEN_METADATA = golden_metadata(GOLDEN)

GOLDEN_FILES = pytest.mark.parametrize(
    ("file", "metadata"),
    [
        (file, golden_metadata(file))
        for file in (GOLDEN, GOLDEN_OF_ALL_KINDS, GOLDEN_OF_SEGMENTS, GOLDEN_OF_CLAIMS)
    ],
    ids=["first", "of all kinds", "of segments", "of claims"],
)

_names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1)
_counts = st.integers(0, 2**63 - 1)
_times = st.floats(0, 1e12)
_streams = st.one_of(
    st.builds(ByteStreamStateHandle, st.binary(max_size=50)),
    st.builds(
        FileStateHandle,
        st.one_of(
            _names.map(lambda name: f"{DIRECTORY}/{name}"), _names.map("s3://b/x/".__add__)
        ).filter(uripath.is_normalized),
        _counts,
        st.none() | st.builds(Checksum, st.just("crc32c"), st.just(1 << 20), st.binary(max_size=8)),
    ),
)


def _extents_in(stream: StreamStateHandle) -> st.SearchStrategy[tuple[int, int]]:
    """Draw the offset and length of a part of a stream."""
    return st.lists(st.integers(0, stream.size), min_size=2, max_size=2).map(
        lambda ends: (min(ends), max(ends) - min(ends))
    )


@st.composite
def _handles(draw: st.DrawFn) -> OperatorStateHandle:
    stream = draw(_streams)
    counts = st.integers(0, 2**62)
    partitions = st.tuples(
        st.sampled_from(OperatorStateMode), _extents_in(stream), counts, counts
    ).map(lambda drawn: StatePartitions(drawn[0], *drawn[1], drawn[2], drawn[3]))
    return OperatorStateHandle(
        draw(st.dictionaries(st.text(max_size=5), partitions, max_size=3)), stream
    )


@st.composite
def _raw_handles(draw: st.DrawFn) -> RawOperatorStateHandle:
    stream = draw(_streams)
    return RawOperatorStateHandle(tuple(draw(st.lists(_extents_in(stream), max_size=3))), stream)


@st.composite
def _key_groups_handles(draw: st.DrawFn) -> KeyGroupsStateHandle:
    stream = draw(_streams)
    partitions = draw(st.lists(st.none() | _extents_in(stream), min_size=1, max_size=3))
    first = draw(st.integers(0, 100))
    return KeyGroupsStateHandle((first, first + len(partitions) - 1), tuple(partitions), stream)


_segments_handles = st.builds(
    SegmentsStateHandle,
    st.tuples(st.integers(0, 50), st.integers(50, 100)),
    st.dictionaries(st.uuids().map(lambda name: name.hex), _streams, max_size=3),
    _streams,
)


_statistics = st.builds(
    SubtaskStatistics,
    _counts,
    _counts,
    _counts,
    _times,
    _times,
    _times,
    _times,
    st.sampled_from(["", "worker", "local", "storage"]),
)
_subtasks = st.builds(
    StoredSubtask,
    st.lists(_handles(), max_size=2).map(tuple),
    st.none() | _statistics,
    st.lists(_raw_handles(), max_size=2).map(tuple),
    st.lists(_key_groups_handles() | _segments_handles, max_size=2).map(tuple),
    st.lists(_key_groups_handles(), max_size=2).map(tuple),
)
_operators = st.builds(
    StoredOperator,
    st.integers(200, 1000),
    st.integers(1000, 32768),
    st.dictionaries(st.integers(0, 199), _subtasks, max_size=3),
)
metadatas = st.builds(
    CheckpointMetadata,
    job_id=st.text(max_size=10),
    checkpoint_id=_counts,
    commit_token=st.text(max_size=10),
    created_ms=st.integers(0, 10**14),
    duration_ms=_times,
    writer=st.text(max_size=10),
    operators=st.dictionaries(st.text(max_size=5), _operators, max_size=3),
    coordinator_states=st.dictionaries(st.text(max_size=5), st.binary(max_size=20), max_size=2),
)


@given(metadatas)
def test_encoded_metadata_is_decoded(metadata: CheckpointMetadata) -> None:
    content = encode_metadata(metadata, DIRECTORY)
    assert decode_metadata(content, DIRECTORY, uri=URI) == metadata
    assert encode_metadata(metadata, DIRECTORY) == content


def test_state_bytes_are_those_of_all_handles() -> None:
    assert GOLDEN_METADATA.state_bytes == 401 + 8 + (1 << 40)
    assert golden_metadata(GOLDEN_OF_ALL_KINDS).state_bytes == 6 + ((1 << 33) + 7 + 1) + 9 + (5 + 1)


class TestDamage:
    CONTENT = encode_metadata(GOLDEN_METADATA, DIRECTORY)

    def test_file_cut_at_any_byte_is_corrupt(self) -> None:
        for length in range(len(self.CONTENT)):
            with pytest.raises(CheckpointCorruptedError) as caught:
                decode_metadata(self.CONTENT[:length], DIRECTORY, uri=URI)
            assert caught.value.location == URI

    @pytest.mark.parametrize("bit", range(8))
    def test_bit_flipped_in_any_byte_is_corrupt(self, bit: int) -> None:
        for at in range(len(self.CONTENT)):
            damaged = bytearray(self.CONTENT)
            damaged[at] ^= 1 << bit
            with pytest.raises(CheckpointCorruptedError):
                decode_metadata(bytes(damaged), DIRECTORY, uri=URI)

    @given(st.binary(max_size=100))
    def test_another_file_is_corrupt(self, content: bytes) -> None:
        for other in (content, b"HOLDFAST" + content, self.CONTENT + content[:1] + b"\0"):
            with pytest.raises(CheckpointCorruptedError):
                decode_metadata(other, DIRECTORY, uri=URI)

    @pytest.mark.parametrize("version", [0, 3, 2**32 - 1])
    @pytest.mark.parametrize("body", [b"", b"\xff of another kind", CONTENT])
    def test_whole_file_of_another_version_needs_an_upgrade(
        self, version: int, body: bytes
    ) -> None:
        with pytest.raises(UnsupportedFormatError, match=str(version)):
            decode_metadata(seal(body, version=version), DIRECTORY, uri=URI)

    @pytest.mark.parametrize(
        ("version", "message"),
        [
            (
                3,
                "written in format version 3; this Holdfast reads versions 1 to 2: upgrade Holdfast",
            ),
            (0, "written in format version 0; this Holdfast reads versions 1 to 2"),
        ],
    )
    def test_error_names_the_readable_versions_and_the_way_out(
        self, version: int, message: str
    ) -> None:
        with pytest.raises(UnsupportedFormatError) as caught:
            decode_metadata(seal(b"", version=version), DIRECTORY, uri=URI)
        assert str(caught.value).startswith(f"{message}: location=")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xc1",
            msgspec.msgpack.encode({}),
            msgspec.msgpack.encode([]),
            msgspec.msgpack.encode({"job_id": 1}),
            b"\x81\xa6job_id\xa1\xff",
            b"\x81\xa1\xff\x00",
            b"\x81\xa1x" + b"\x91" * 100_000,
            b"\x81\xa9operators\xdf\xff\xff\xff\xff",
        ],
    )
    def test_meaningless_body_is_corrupt(self, body: bytes) -> None:
        with pytest.raises(CheckpointCorruptedError):
            decode_metadata(seal(body), DIRECTORY, uri=URI)

    @pytest.mark.parametrize("off", [-1, 1, 4, 1 << 40])
    def test_wrong_length_is_corrupt(self, off: int) -> None:
        body = self.CONTENT[20:-4]
        with pytest.raises(CheckpointCorruptedError):
            decode_metadata(seal(body, length=len(body) + off), DIRECTORY, uri=URI)

    def test_unknown_mode_is_corrupt(self) -> None:
        body = msgspec.msgpack.decode(self.CONTENT[20:-4])
        subtask = body["operators"]["compact"]["subtasks"][0]
        subtask["managed_operator"][0]["states"]["rows"]["mode"] = 3
        with pytest.raises(CheckpointCorruptedError):
            decode_metadata(seal(msgspec.msgpack.encode(body)), DIRECTORY, uri=URI)


class TestLargeMetadata:
    """A map of more than 32 KiB is compressed."""

    METADATA = metadata_of(
        *(FileStateHandle(f"{DIRECTORY}/{subtask}", 8) for subtask in range(400)),
        commit_token="token",
    )
    CONTENT = encode_metadata(METADATA, DIRECTORY)

    def test_golden_file_stays_readable(self) -> None:
        content = (GOLDEN.parents[1] / "v2" / "_metadata").read_bytes()
        assert decode_metadata(content, DIRECTORY, uri=URI) == self.METADATA

    def test_subtasks_take_a_tenth_of_their_bytes(self) -> None:
        assert decode_metadata(self.CONTENT, DIRECTORY, uri=URI) == self.METADATA
        (length,) = struct.unpack(">Q", self.CONTENT[12:20])
        assert len(self.CONTENT) < length / 10

    def test_bytes_are_those_of_the_table(self) -> None:
        body = zlib.decompress(self.CONTENT[20:-4])
        assert seal(self.CONTENT[20:-4], version=2, length=len(body)) == self.CONTENT
        plain = seal(body)
        assert decode_metadata(plain, DIRECTORY, uri=URI) == self.METADATA

    @pytest.mark.parametrize(
        ("cut", "off", "more"),
        [(0, -1, b""), (0, 1, b""), (0, 1 << 62, b""), (1, 0, b""), (0, 0, b"x")],
    )
    def test_other_lengths_are_corrupt(self, cut: int, off: int, more: bytes) -> None:
        (length,) = struct.unpack(">Q", self.CONTENT[12:20])
        body = self.CONTENT[20 : -4 - cut] + more
        with pytest.raises(CheckpointCorruptedError):
            decode_metadata(seal(body, version=2, length=length + off), DIRECTORY, uri=URI)

    @pytest.mark.parametrize("body", [b"", b"no zlib", zlib.compress(b""), zlib.compress(b"\xc1")])
    def test_meaningless_body_is_corrupt(self, body: bytes) -> None:
        for length in (0, 1):
            with pytest.raises(CheckpointCorruptedError):
                decode_metadata(seal(body, version=2, length=length), DIRECTORY, uri=URI)


@GOLDEN_FILES
def test_golden_file_stays_readable_and_is_written_the_same(
    file: Path, metadata: CheckpointMetadata
) -> None:
    content = file.read_bytes()
    assert decode_metadata(content, DIRECTORY, uri=URI) == metadata
    assert encode_metadata(metadata, DIRECTORY) == content


def test_each_version_is_read_by_its_own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_version_3(rest: memoryview) -> CheckpointMetadata:
        assert bytes(rest).endswith(b"of version 3")
        return metadata_of(FileStateHandle("near", 1))

    monkeypatch.setitem(READERS, 3, read_version_3)
    newer = decode_metadata(seal(b"of version 3", version=3), DIRECTORY, uri=URI)
    assert newer.streams() == [FileStateHandle(f"{DIRECTORY}/near", 1)]
    assert decode_metadata(GOLDEN.read_bytes(), DIRECTORY, uri=URI) == GOLDEN_METADATA


@GOLDEN_FILES
def test_bytes_are_those_of_the_table(file: Path, metadata: CheckpointMetadata) -> None:
    content = file.read_bytes()
    assert content == seal(content[20:-4])
    body = msgspec.msgpack.decode(content[20:-4])
    assert body["job_id"] == "golden"
    for uid, operator in metadata.operators.items():
        assert body["operators"][uid]["subtasks"].keys() == operator.subtasks.keys()


def test_subtask_stores_its_types_of_state_and_always_managed_operator() -> None:
    assert msgspec.to_builtins(StoredSubtask()) == {"managed_operator": (), "statistics": None}
    body = msgspec.msgpack.decode(GOLDEN_OF_ALL_KINDS.read_bytes()[20:-4])
    subtasks = body["operators"]["join"]["subtasks"]
    always = {"managed_operator", "statistics"}
    assert subtasks[0].keys() == always | {"raw_operator", "managed_keyed", "raw_keyed"}
    assert subtasks[1].keys() == always | {"raw_keyed"}
    raw, keyed = subtasks[0]["raw_operator"][0], subtasks[0]["managed_keyed"][0]
    assert raw["partitions"] == [[0, 3], [3, 0], [1 << 33, 7]]
    assert keyed["type"] == "key-groups"
    assert keyed["key_groups"] == [0, 2]
    assert keyed["partitions"] == [[4, 5], None, [0, 4]]


def test_unknown_keys_are_skipped() -> None:
    body = msgspec.msgpack.decode(GOLDEN.read_bytes()[20:-4])
    compact = body["operators"]["compact"]
    subtask = compact["subtasks"][0]
    handle = subtask["managed_operator"][0]
    for known in (body, compact, subtask, handle, handle["stream"], handle["states"]["rows"]):
        known["of a later version"] = [{"a": 1}, None]
    content = seal(msgspec.msgpack.encode(body))
    assert decode_metadata(content, DIRECTORY, uri=URI) == GOLDEN_METADATA


def test_only_references_into_the_directory_are_relative() -> None:
    inside = FileStateHandle(f"{DIRECTORY}/name", 1)
    others = [
        FileStateHandle(uri, 1)
        for uri in (
            "file:///data/job/shared/name",
            "file:///data/job/name",
            f"{DIRECTORY}0/name",
            f"{DIRECTORY}/below/name",
            "s3://data/job/chk-7/name",
        )
    ]
    content = encode_metadata(metadata_of(inside, *others), DIRECTORY)
    assert f"{DIRECTORY}/name".encode() not in content
    moved = decode_metadata(content, "s3://bucket/moved", uri=URI)
    assert moved.streams() == [FileStateHandle("s3://bucket/moved/name", 1), *others]


def test_references_of_all_kinds_of_state_move_with_the_directory() -> None:
    def subtask(*uris: str) -> StoredSubtask:
        handles: list[StreamStateHandle] = [FileStateHandle(uri, 1) for uri in uris]
        return StoredSubtask(
            (OperatorStateHandle({}, handles[0]),),
            raw_operator=(RawOperatorStateHandle((), handles[1]),),
            managed_keyed=(KeyGroupsStateHandle((0, 0), (None,), handles[2]),),
            raw_keyed=(KeyGroupsStateHandle((0, 0), (None,), handles[3]),),
        )

    def metadata(directory: str) -> CheckpointMetadata:
        uris = [f"{directory}/{kind}" for kind in "abcd"]
        return msgspec.structs.replace(
            GOLDEN_METADATA, operators={"": StoredOperator(1, 1, {0: subtask(*uris)})}
        )

    content = encode_metadata(metadata(DIRECTORY), DIRECTORY)
    assert DIRECTORY.encode() not in content
    moved = decode_metadata(content, "s3://bucket/moved", uri=URI)
    assert moved == metadata("s3://bucket/moved")
    assert moved.streams() == [FileStateHandle(f"s3://bucket/moved/{kind}", 1) for kind in "abcd"]


def test_nothing_of_the_state_shows_in_a_repr() -> None:
    secret = b"a user's row"
    assert "row" not in repr(metadata_of(ByteStreamStateHandle(secret)).operators)
