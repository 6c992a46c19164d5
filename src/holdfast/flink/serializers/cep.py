"""What patterns over events keep (CEP, and MATCH_RECOGNIZE of SQL): partial matches, the events in them, and how those follow each other.

    event id   int number, long timestamp
    node       byte 0 none | 1, event id, text of the pattern's stage
    version    int n, n * int
    edge       node, version
    lockable   int how many matches need it, the value
    matches    int n, n * { text of the stage, node, version, long start [long previous] byte 0 | 1, event id }

Source:
    Flink, flink-cep, NFAStateSerializer, SharedBufferNodeSerializer, Lockable, NodeId, EventId, DeweyNumber (2.3.0).
"""

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.composite import list_of, struct_of
from holdfast.flink.serializers.flink_classes import option_of
from holdfast.flink.serializers.serializer import Serializer

EVENT_ID = struct_of({"id": basic.INT, "timestamp": basic.LONG})
VERSION = list_of(basic.INT)


def node_of(event: Serializer) -> Serializer:
    """`NodeIdSerializer`."""
    return option_of(struct_of({"event": event, "stage": basic.STRING}))


def edge_of(target: Serializer, version: Serializer) -> Serializer:
    """`SharedBufferEdgeSerializer`."""
    return struct_of({"target": target, "version": version})


def lockable_of(element: Serializer) -> Serializer:
    """`LockableTypeSerializer`."""
    return struct_of({"references": basic.INT, "value": element})


def edges_of(edge: Serializer) -> Serializer:
    """`SharedBufferNodeSerializer`."""
    return list_of(lockable_of(edge))


def matches_of(
    version: Serializer, node: Serializer, event: Serializer, *, has_previous: bool
) -> Serializer:
    """`NFAStateSerializer`: the matches that are not complete yet, and those that are."""
    times = {"start": basic.LONG}
    if has_previous:
        times["previous"] = basic.LONG
    match = struct_of(
        {
            "stage": basic.STRING,
            "previous_node": node,
            "version": version,
            **times,
            "start_event": option_of(event),
        }
    )
    return struct_of({"partial": list_of(match), "completed": list_of(match)})
