"""Read as many bytes as are wanted, however few a stream gives at a time."""

from typing import BinaryIO


def read_up_to(stream: BinaryIO, length: int) -> bytearray:
    """Read that many bytes from where the stream stands; fewer only where it ends before."""
    data = bytearray(length)
    filled = 0
    with memoryview(data) as view:
        while filled < length:
            count = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # all have it
            if not count:
                break
            filled += count
    del data[filled:]
    return data


def read_exactly(stream: BinaryIO, length: int) -> bytearray:
    """Read that many bytes from where the stream stands.

    Raises:
        EOFError: The stream ends before.
    """
    data = read_up_to(stream, length)
    if len(data) < length:
        message = f"stream ended {length - len(data)} bytes early"
        raise EOFError(message)
    return data
