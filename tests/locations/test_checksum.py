import io
from itertools import pairwise
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import combine_crc32c, crc32c
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    StorageUnavailableError,
    UnsupportedFormatError,
)
from holdfast.locations.adapters import Checksum, ChecksumBuilder
from holdfast.locations.checksums import BLOCK_BYTES, VerifyingInputStream, checksum_of

CONTENT = bytes(range(25))
BLOCK = 10


def checksum(content: bytes, block_bytes: int, cuts: tuple[int, ...] = ()) -> Checksum:
    """Compute the checksum of content that is written in parts."""
    builder = ChecksumBuilder(block_bytes)
    bounds = [0, *sorted(cuts), len(content)]
    for start, end in pairwise(bounds):
        builder.update(content[start:end])
    return builder.finish()


def open_stored(stored: bytes, expected: Checksum, size: int) -> BinaryIO:
    stream = VerifyingInputStream(io.BytesIO(stored), uri="file:///x", size=size, checksum=expected)
    return cast("BinaryIO", stream)


def test_crc32c_is_castagnoli() -> None:
    # RFC 3720, B.4
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789") == 0xE3069283


@given(first=st.binary(max_size=50), second=st.binary(max_size=50))
def test_checksums_of_two_parts_combine(first: bytes, second: bytes) -> None:
    both = combine_crc32c(crc32c(first), crc32c(second), len(second))
    assert both == crc32c(first + second)


@given(
    content=st.binary(max_size=200),
    block_bytes=st.integers(1, 16),
    blocks=st.integers(1, 5),
    rest=st.binary(max_size=50),
)
def test_checksums_of_small_blocks_make_those_of_larger_ones(
    content: bytes, block_bytes: int, blocks: int, rest: bytes
) -> None:
    builder = ChecksumBuilder(blocks * block_bytes)
    builder.add_blocks(checksum(content, block_bytes), len(content))
    builder.update(rest)
    assert builder.finish() == checksum(content + rest, blocks * block_bytes)


@given(
    content=st.binary(max_size=200),
    block_bytes=st.integers(1, 64),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_checksum_is_the_same_for_any_split_of_the_bytes(
    content: bytes, block_bytes: int, cuts: list[int]
) -> None:
    parts = tuple(min(cut, len(content)) for cut in cuts)
    whole = checksum(content, block_bytes)
    assert checksum(content, block_bytes, parts) == whole
    assert len(whole.blocks) == 4 * -(-len(content) // block_bytes)


def test_blocks_have_a_mebibyte() -> None:
    assert BLOCK_BYTES == 1 << 20
    assert [len(checksum_of(bytes(n)).blocks) for n in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1)] == [
        0,
        4,
        4,
        8,
    ]


@given(data=st.data(), content=st.binary(max_size=200), block_bytes=st.integers(1, 64))
def test_seeks_and_reads_are_those_of_a_file(
    data: st.DataObject, content: bytes, block_bytes: int
) -> None:
    model = io.BytesIO(content)
    stream = open_stored(content, checksum(content, block_bytes), len(content))
    for _ in range(data.draw(st.integers(0, 20))):
        step = data.draw(st.sampled_from(["seek", "from end", "read", "all", "readinto"]))
        if step in ("seek", "from end"):
            offset = data.draw(st.integers(0, len(content)))
            arguments = (offset,) if step == "seek" else (-offset, io.SEEK_END)
            assert stream.seek(*arguments) == model.seek(*arguments)
        elif step == "read":
            # A raw stream may return fewer bytes than requested.
            got = stream.read(data.draw(st.integers(0, 100)))
            assert got == model.read(len(got))
        elif step == "all":
            assert stream.read() == model.read()
        else:
            buffer = bytearray(data.draw(st.integers(1, 100)))
            count = cast("Any", stream).readinto(buffer)
            assert bytes(buffer[:count]) == model.read(count)
            assert count > 0 or model.tell() == len(content)
        assert stream.tell() == model.tell()


@pytest.mark.parametrize("at", range(len(CONTENT)))
def test_flipped_bit_is_found_in_its_block_and_nowhere_else(at: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[at] ^= 1
    stream = open_stored(bytes(damaged), checksum(CONTENT, BLOCK), len(CONTENT))
    for start in (0, 10, 20):
        stream.seek(start + 1)
        if start <= at < start + BLOCK:
            with pytest.raises(CheckpointCorruptedError) as caught:
                stream.read(1)
            assert caught.value.location == "file:///x"
        else:
            assert stream.read(1) == CONTENT[start + 1 : start + 2]


@pytest.mark.parametrize("stored", [CONTENT[:n] for n in range(25)] + [CONTENT + b"\0"])
def test_another_length_is_found_on_opening_and_the_file_is_closed(stored: bytes) -> None:
    raw = io.BytesIO(stored)
    with pytest.raises(CheckpointCorruptedError, match="expected 25"):
        VerifyingInputStream(raw, uri="file:///x", size=25, checksum=checksum(CONTENT, BLOCK))
    assert raw.closed


def test_file_shrinking_during_the_read_is_corrupt() -> None:
    raw = io.BytesIO(CONTENT)
    stream = VerifyingInputStream(raw, uri="", size=25, checksum=checksum(CONTENT, BLOCK))
    raw.truncate(15)
    assert stream.read(5) == CONTENT[:5]
    stream.seek(12)
    with pytest.raises(CheckpointCorruptedError):
        stream.read(1)


def test_handle_with_too_few_checksums_is_corrupt() -> None:
    short = Checksum("crc32c", BLOCK, checksum(CONTENT, BLOCK).blocks[:-4])
    with pytest.raises(CheckpointCorruptedError):
        open_stored(CONTENT, short, len(CONTENT))


def test_unknown_algorithm_needs_a_newer_version() -> None:
    with pytest.raises(UnsupportedFormatError, match="blake9"):
        open_stored(b"", Checksum("blake9", BLOCK, b""), 0)


@pytest.mark.parametrize(("offset", "whence"), [(-1, 0), (26, 0), (-26, 2), (1, 2), (-1, 1)])
def test_seeking_outside_of_the_file_is_refused(offset: int, whence: int) -> None:
    stream = open_stored(CONTENT, checksum(CONTENT, BLOCK), len(CONTENT))
    with pytest.raises(InvalidRequestError):
        stream.seek(offset, whence)
    assert stream.seek(25) == 25
    assert stream.read(1) == b""


def test_closed_stream_can_not_be_read() -> None:
    stream = open_stored(CONTENT, checksum(CONTENT, BLOCK), len(CONTENT))
    stream.read(1)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


class Unreachable(io.BytesIO):
    """A file of a store that fails to report the length."""

    def seek(self, *_: Any) -> int:
        raise StorageUnavailableError("store is away")


def test_file_of_unknown_length_is_closed() -> None:
    raw = Unreachable(CONTENT)
    with pytest.raises(StorageUnavailableError):
        VerifyingInputStream(raw, uri="file:///x", size=25, checksum=checksum(CONTENT, BLOCK))
    assert raw.closed
