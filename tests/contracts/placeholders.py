"""Placeholders in the reports of tasks, resolved like a driver does."""

from collections.abc import Mapping

from holdfast.locations.adapters import StreamStateHandle
from holdfast.locations.handles import PlaceholderStreamStateHandle, SegmentsStateHandle


def resolve_placeholders(
    reported: SegmentsStateHandle, known: Mapping[str, StreamStateHandle]
) -> SegmentsStateHandle:
    """Return the handle to store, with streams of the last completed checkpoint by their names."""
    return reported.with_streams(
        lambda stream: (
            known[stream.name] if isinstance(stream, PlaceholderStreamStateHandle) else stream
        )
    )
