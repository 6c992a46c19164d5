"""Element types and values of list states, and a place to write them to."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.backends import ListState, ListStateDescriptor, OperatorStateBackend
from holdfast.locations import (
    CheckpointStreamFactory,
    MemoryCheckpointStorage,
    OperatorStateHandle,
)

UTC = dt.UTC

VALUES: dict[str, tuple[Any, list[Any]]] = {
    "longs": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "doubles": (pa.float64(), [0.0, -1.5, float("inf")]),
    "booleans": (pa.bool_(), [True, False, True]),
    "strings": (pa.string(), ["", "a", "", "größe", "x" * 1000]),
    "only empty strings": (pa.string(), ["", "", ""]),
    "large strings": (pa.large_string(), ["", "a"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "decimals": (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-9999999.99")]),
    "dates": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "timestamps": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, 1, 2, 3, 4, UTC)],
    ),
    "naive timestamps": (
        pa.timestamp("ms"),
        [dt.datetime.fromisoformat("2024-01-01T01:02:03.004")],
    ),
    "categories": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    "lists": (pa.list_(pa.int64()), [[], [1, 2], [None, 3]]),
    "maps": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], []]),
    "structs": (
        pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]),
        [{"id": 1, "tags": ["a", None, ""]}, {"id": None, "tags": None}],
    ),
    "structs in lists": (
        pa.list_(pa.struct([("a", pa.string())])),
        [[{"a": "x"}, None], [], [{"a": None}]],
    ),
    "structs with categories": (
        pa.struct([("kind", pa.dictionary(pa.int32(), pa.string()))]),
        [{"kind": "a"}, {"kind": "b"}],
    ),
}


def backend_with(**states: tuple[Any, Any]) -> OperatorStateBackend:
    """A backend with list states of these types and elements."""
    backend = OperatorStateBackend()
    for name, (element_type, values) in states.items():
        list_state(backend, name, element_type).add_all(values)
    return backend


def list_state(
    backend: OperatorStateBackend, name: str = "s", element_type: Any = None
) -> ListState:
    """A state of a backend; of longs unless told."""
    return backend.get_list_state(ListStateDescriptor(name, element_type or pa.int64()))


def memory_factory() -> CheckpointStreamFactory:
    """Streams that keep what they get in their handles."""
    storage = MemoryCheckpointStorage(100 << 20).create_checkpoint_storage("job")
    return storage.initialize_location_for_checkpoint(1)


def snapshot_of(
    backend: OperatorStateBackend, factory: Callable[[], CheckpointStreamFactory] = memory_factory
) -> OperatorStateHandle:
    """Take a snapshot of a backend that has states."""
    handle = backend.snapshot(factory()).run().job_manager_owned
    assert handle is not None
    return handle
