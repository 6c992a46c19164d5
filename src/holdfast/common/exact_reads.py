"""Reads of an exact number of bytes, however few a stream gives at a time."""

from typing import BinaryIO


def fill(stream: BinaryIO, view: memoryview) -> int:
    """Read until a buffer of bytes is full or the stream ends; returns how many were read."""
    filled = 0
    while filled < len(view):
        count = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # all have it
        if not count:
            break
        filled += count
    return filled


def read_exactly(stream: BinaryIO, length: int) -> bytearray:
    """Read that many bytes from where the stream stands.

    Raises:
        EOFError: The stream ends before.
    """
    data = bytearray(length)
    with memoryview(data) as view:
        read_into(stream, view)
    return data


def read_into(stream: BinaryIO, view: memoryview) -> None:
    """Fill a buffer of bytes from where the stream stands.

    Raises:
        EOFError: The stream ends before.
    """
    filled = fill(stream, view)
    if filled < len(view):
        message = f"stream ended {len(view) - filled} bytes early"
        raise EOFError(message)
