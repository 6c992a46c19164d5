"""What a driver does with placeholders that a task reports."""

from collections.abc import Mapping

from holdfast.locations.adapters import StreamStateHandle
from holdfast.locations.handles import PlaceholderStreamStateHandle, SegmentsStateHandle


def resolved(
    reported: SegmentsStateHandle, known: Mapping[str, StreamStateHandle]
) -> SegmentsStateHandle:
    """The handle as it is stored, with streams of the last completed checkpoint by their names."""
    return reported.with_streams(
        lambda stream: (
            known[stream.name] if isinstance(stream, PlaceholderStreamStateHandle) else stream
        )
    )
