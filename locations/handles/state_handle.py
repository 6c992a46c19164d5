"""The protocol of handles to state, whatever kind of state it is and however many streams it has.

    StateHandle          a subtask's state of one kind: its streams, size, flaw, and how to delete it
    └─ KeyedStateHandle  knows its key groups, and can be cut down to some of them

Copying, verifying, sweeping and rescaling ask for nothing else, so that a new kind of state is one class
that has these methods. `InOneStream` is for handles whose state is all in one stream.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from holdfast.common import KeyGroup
from holdfast.locations.handles.stream_handles import StreamStateHandle

StreamChange = Callable[[StreamStateHandle], StreamStateHandle]
"""Replaces the handle of a stream by another handle, such as one to a copy of its bytes."""


class StateHandle(Protocol):
    """One subtask's state of one kind, in any number of streams.

    Source:
        Flink, StateObject.
    """

    @property
    def size(self) -> int:
        """Length of all streams in bytes."""
        ...

    def streams(self) -> tuple[StreamStateHandle, ...]:
        """Every stream that the state is in, always in the same order."""
        ...

    def with_streams(self, change: StreamChange, /) -> Self:
        """A copy in which every stream went through `change`."""
        ...

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """The streams that later checkpoints may refer to, by names that are never used twice."""
        ...

    def discard_state(self) -> None:
        """Delete the bytes that a task has written for this handle, which it has not yet handed over.

        Nothing else may lead to them. What placeholders stand for is left alone.
        """
        ...

    def flaw(self) -> str | None:
        """How the handle's numbers contradict each other or its streams; None if they don't."""
        ...


class KeyedStateHandle(StateHandle, Protocol):
    """Keyed state, managed or raw, of a range of key groups.

    Source:
        Flink, KeyedStateHandle.
    """

    @property
    def key_groups(self) -> tuple[KeyGroup, KeyGroup]:
        """First and last key group of the range; both belong to it."""
        ...

    def intersection(self, first: int, last: int, /) -> Self | None:
        """The part of the state in key groups `first` to `last`; None if the handle has none of them.

        The part leads to the same streams: to discard it is to discard the whole.
        """
        ...


class InOneStream(msgspec.Struct, frozen=True):
    """Methods of a handle whose state is all in its field `stream`."""

    if TYPE_CHECKING:  # each handle has the field at its own place among the stored ones

        @property
        def stream(self) -> StreamStateHandle: ...

    @property
    def size(self) -> int:
        """Length of the stream in bytes."""
        return self.stream.size

    def streams(self) -> tuple[StreamStateHandle, ...]:
        """The only stream."""
        return (self.stream,)

    def with_streams(self, change: StreamChange, /) -> Self:
        """A copy whose stream went through `change`."""
        return msgspec.structs.replace(self, stream=change(self.stream))

    def shared_streams(self) -> Mapping[str, StreamStateHandle]:
        """None: the stream belongs to one checkpoint."""
        return {}

    def discard_state(self) -> None:
        """Delete the bytes of the stream."""
        self.stream.discard_state()


def flaw_of_parts(parts: Iterable[tuple[int, int]], size: int) -> str | None:
    """Which part, given by offset and length, isn't inside of a stream of that size; None if all are."""
    for offset, length in parts:
        if offset + length > size:
            return f"bytes {offset} to {offset + length} of a stream of {size}"
    return None
