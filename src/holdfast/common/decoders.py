"""Decoders of MessagePack and JSON, made by a single thread at a time.

A decoder that is made for a class has msgspec work out what its fields are, and keep that with the
class. If another thread uses the class at this moment, it reads half-made data, and the process ends with a
segmentation fault (msgspec 0.22.0). Many threads may use a decoder once it is made.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_making = threading.Lock()


def message_pack_decoder(
    type: type[_T],
    *,
    strict: bool = True,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
) -> msgspec.msgpack.Decoder[_T]:
    """A decoder that makes a value of the type from MessagePack.

    Args:
        type: The type.
        strict: Whether values must be of the type that they stand for: no text as a number.
        ext_hook: Makes values of extensions, by their number and bytes.
    """
    with _making:
        return msgspec.msgpack.Decoder(type, strict=strict, ext_hook=ext_hook)


def json_decoder(type: type[_T]) -> msgspec.json.Decoder[_T]:
    """A decoder that makes a value of the type from JSON."""
    with _making:
        return msgspec.json.Decoder(type)
