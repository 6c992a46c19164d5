"""Keyed states of all types, written by a backend, and their content in a restored backend."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from contracts.progress import progress_after_batch

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.backends.keyed import HeapStateTables, KeyedStateBackend, Keys
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import resolve_pointer

USER = pa.schema([("user", pa.string())])
KEYED_NAMES: list[str | None] = ["ann", "bob", "eve", None]
_GROUPS = 8
_PERSON = pa.struct([("age", pa.int32())])

_KEY_GROUPS = 16

KEYS_OF_TYPES: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
    "string": (pa.schema([("k", pa.string())]), [("a",), ("b",), ("",), (None,), ("é",)]),
    "int8": (pa.schema([("k", pa.int8())]), [(-128,), (0,), (127,), (None,)]),
    "float32": (
        pa.schema([("k", pa.float32())]),
        [(0.5,), (0.0,), (float("nan"),), (float("inf"),), (None,)],
    ),
    "float64": (
        pa.schema([("k", pa.float64())]),
        [(0.1,), (0.0,), (float("nan"),), (-1e300,), (None,)],
    ),
    "decimal": (
        pa.schema([("k", pa.decimal128(20, 2))]),
        [(Decimal("1.50"),), (Decimal("-0.01"),), (None,)],
    ),
    "timestamp": (
        pa.schema([("k", pa.timestamp("us", "UTC"))]),
        [
            (dt.datetime(2026, 1, 1, 12, 0, 0, 1, dt.UTC),),
            (dt.datetime(1960, 1, 1, tzinfo=dt.UTC),),
        ],
    ),
    "local time": (
        pa.schema([("k", pa.timestamp("us"))]),
        [(dt.datetime(2026, 1, 1, 12),), (None,)],  # noqa: DTZ001  # a time without a zone
    ),
    "date": (pa.schema([("k", pa.date32())]), [(dt.date(2026, 1, 1),), (None,)]),
    "bool": (pa.schema([("k", pa.bool_())]), [(True,), (False,), (None,)]),
    "binary": (pa.schema([("k", pa.binary())]), [(b"\x00\xff",), (b"",), (None,)]),
    "several": (
        pa.schema([("k", pa.string()), ("n", pa.int32())]),
        [("a", 1), ("a", 2), ("b", 1), (None, 1), ("a", None), (None, None)],
    ),
}


KEYED_CONTENT: dict[str, dict[Any, Any]] = {
    "totals": dict(zip(KEYED_NAMES, [1, 2, 3, 4], strict=True)),
    "people": {name: {"age": 30} for name in KEYED_NAMES},
    "lists": {name: [5, 6] for name in KEYED_NAMES},
    "pages": {name: [("/a", 1), ("/b", 2)] for name in KEYED_NAMES},
    "timers": {name: [30_000, 60_000] for name in KEYED_NAMES},
}


def keyed_checkpoint(directory: str, parallelism: int = 2) -> str:
    """Complete a checkpoint of an operator `op` with `KEYED_CONTENT`; returns its pointer."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    names = pa.array(KEYED_NAMES)
    group_of = Keys.of([names], _GROUPS)
    subtasks = {}
    for index in range(parallelism):
        groups = key_group_range(_GROUPS, parallelism, index)
        backend = KeyedStateBackend(HeapStateTables(groups), USER, _GROUPS, groups)
        mine = [group in groups for group in group_of.key_groups[group_of.codes].tolist()]
        _fill(backend, backend.keys([names.filter(pa.array(mine))]))
        subtasks[index] = backend.snapshot(1, location).run().state
    return complete_checkpoint(
        location,
        CheckpointMetadata(
            job_id="job",
            checkpoint_id=1,
            created_ms=0,
            duration_ms=0.0,
            writer="test",
            operators={"op": StoredOperator(parallelism, _GROUPS, subtasks, key=("user",))},
            coordinator_states=progress_after_batch(0),
        ),
    ).location.external_pointer


def restored_keyed(pointer: str) -> KeyedStateBackend:
    """Return a backend with all key groups of the operator `op`."""
    subtasks = load_checkpoint(resolve_pointer(pointer)).metadata.operators["op"].subtasks
    handles = [
        handle
        for state in subtasks.values()
        for handle in state.managed_keyed
        if isinstance(handle, SegmentsStateHandle)
    ]
    tables = HeapStateTables(KeyGroupRange(0, _GROUPS - 1), handles)
    return KeyedStateBackend(tables, USER, _GROUPS)


def keyed_content(pointer: str) -> dict[str, dict[Any, Any]]:
    """Return the content of a restored backend by state and name."""
    backend = restored_keyed(pointer)
    keys = backend.keys([pa.array(KEYED_NAMES)])
    names = keys.columns[0].to_pylist()

    def by_name(values: pa.Array) -> dict[Any, Any]:
        return dict(zip(names, values.to_pylist(), strict=True))

    totals = backend.get_state(ValueStateDescriptor("totals", pa.int64()))
    people = backend.get_state(ValueStateDescriptor("people", _PERSON))
    lists = backend.get_list_state(ListStateDescriptor("lists", pa.int64()))
    entries = backend.get_map_state(_PAGES).columns.items(keys)
    pages: dict[Any, Any] = {name: [] for name in names}
    for index, page, value in zip(
        entries.indices.tolist(),
        entries.map_keys.to_pylist(),
        entries.values.to_pylist(),
        strict=True,
    ):
        pages[names[index]].append((page, value))
    timers: dict[Any, Any] = {name: [] for name in names}
    fired = backend.event_time_timers().columns.fire(1 << 40)
    for name, time in zip(fired.key[0].to_pylist(), fired.times_ms.tolist(), strict=True):
        timers[name].append(time)
    return {
        "totals": by_name(totals.columns.get(keys)),
        "people": by_name(people.columns.get(keys)),
        "lists": {name: value or [] for name, value in by_name(lists.columns.get(keys)).items()},
        "pages": {name: sorted(values) for name, values in pages.items()},
        "timers": timers,
    }


_PAGES = MapStateDescriptor("pages", pa.string(), pa.int64())


def _fill(backend: KeyedStateBackend, keys: Keys) -> None:
    names = keys.columns[0].to_pylist()
    totals = pa.array([KEYED_CONTENT["totals"][name] for name in names], pa.int64())
    backend.get_state(ValueStateDescriptor("totals", pa.int64())).columns.put(keys, totals)
    people = pa.array([{"age": 30}] * len(keys), _PERSON)
    backend.get_state(ValueStateDescriptor("people", _PERSON)).columns.put(keys, people)
    lists = backend.get_list_state(ListStateDescriptor("lists", pa.int64()))
    pages = backend.get_map_state(_PAGES)
    for element, (page, value) in zip((5, 6), (("/a", 1), ("/b", 2)), strict=True):
        lists.columns.append(keys, pa.array([element] * len(keys), pa.int64()))
        pages.columns.put(
            keys, pa.array([page] * len(keys)), pa.array([value] * len(keys), pa.int64())
        )
    for time in (60_000, 30_000):
        backend.event_time_timers().columns.register(keys, [time] * len(keys))


def write_keys(
    directory: str, schema: pa.Schema, keys: list[tuple[Any, ...]], *, checkpoint_id: int = 1
) -> str:
    """Complete a checkpoint with a value and a list for each key, its number, in two subtasks; returns its pointer."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    columns = [
        pa.array([key[place] for key in keys], field.type) for place, field in enumerate(schema)
    ]
    numbers = pa.array(range(len(keys)), pa.int64())
    all_keys = Keys.of(columns, _KEY_GROUPS)
    groups_of_rows = all_keys.key_groups[all_keys.codes]
    subtasks = {}
    for index in range(2):
        groups = key_group_range(_KEY_GROUPS, 2, index)
        backend = KeyedStateBackend(HeapStateTables(groups), schema, _KEY_GROUPS, groups)
        mine = pa.array([group in groups for group in groups_of_rows.tolist()])
        own = backend.keys([column.filter(mine) for column in columns])
        values = numbers.filter(mine)
        of_keys = values.take(pa.array(own.codes.argsort()))
        backend.get_state(ValueStateDescriptor("value", pa.int64())).columns.put(own, of_keys)
        lists = backend.get_list_state(ListStateDescriptor("list", pa.int64()))
        lists.columns.append(own, values)
        subtasks[index] = backend.snapshot(checkpoint_id, location).run().state
    operator = StoredOperator(2, _KEY_GROUPS, subtasks, key=tuple(schema.names))
    metadata = CheckpointMetadata(
        job_id="job",
        checkpoint_id=checkpoint_id,
        created_ms=1000 * checkpoint_id,
        duration_ms=0.0,
        writer="test",
        operators={"op": operator},
    )
    return complete_checkpoint(location, metadata).location.external_pointer
