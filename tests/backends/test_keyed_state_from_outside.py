"""Keyed state of a checkpoint from outside of a job: lookups of a key, older types, checks, and rewriting."""

import datetime as dt
import json
import math
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from contracts.progress import progress_after_batch

import holdfast
from holdfast.backends import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RestoreOutcome,
    StateTtlConfig,
    ValueStateDescriptor,
    check_restore,
)
from holdfast.backends.inspection import StateCheck, stored_states
from holdfast.backends.keyed import (
    BackendName,
    ColumnarStateTables,
    HeapStateTables,
    KeyedStateBackend,
    Keys,
    open_tables,
    readable_handles,
)
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.cli.command_line import main
from holdfast.errors import InvalidRequestError
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import counting_file_system

USER = pa.schema([("user", pa.string())])
GROUPS = 8
VISIT = pa.struct([("page", pa.string()), ("at", pa.int64())])
NAMES = ["ann", "bob", "eve", None]

Fill = Callable[[KeyedStateBackend, Keys], None]


def write_checkpoints(
    directory: str,
    *fills: Fill,
    names: list[Any] = NAMES,
    parallelism: int = 2,
    key: pa.Schema = USER,
    backend_name: BackendName = "columnar",
) -> str:
    """Complete a checkpoint for each function that fills states, each resuming from the last. Returns the last pointer."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    column = pa.array(names, key.types[0])
    states: dict[int, StoredSubtask] = {}
    pointer = ""
    for number, fill in enumerate(fills, 1):
        location = access.initialize_location_for_checkpoint(number)
        for index in range(parallelism):
            groups = key_group_range(GROUPS, parallelism, index)
            handles = states.get(index, StoredSubtask()).managed_keyed
            tables = open_tables(groups, handles, backend=backend_name, may_refer=False)  # type: ignore[arg-type]
            backend = KeyedStateBackend(tables, key, GROUPS, groups)
            backend.advance_time(1000)
            keys = Keys.of([column], GROUPS)
            mine = [group in groups for group in keys.key_groups[keys.codes].tolist()]
            fill(backend, backend.keys([column.filter(pa.array(mine))]))
            states[index] = backend.snapshot(number, location).run().state
            backend.close()
        operator = StoredOperator(parallelism, GROUPS, dict(states), key=tuple(key.names))
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=number,
            created_ms=0,
            duration_ms=0.0,
            writer="test",
            operators={"op": operator},
            coordinator_states=progress_after_batch(0),
        )
        pointer = complete_checkpoint(location, metadata).location.external_pointer
    return pointer


KEYS: list[tuple[pa.DataType, Any]] = [
    (pa.string(), "a=b c"),
    (pa.large_string(), "ä"),
    (pa.binary(), b"\x00\xff="),
    (pa.large_binary(), b""),
    (pa.bool_(), True),
    (pa.int64(), -(2**63)),
    (pa.float32(), 1.1),
    (pa.float64(), math.inf),
    (pa.float64(), math.nan),
    (pa.decimal128(38, 18), Decimal("-1E-18")),
    (pa.decimal128(9, 2), Decimal("1.20")),
    (pa.date32(), dt.date(2024, 2, 29)),
    (pa.date32(), 10**8),
    (pa.timestamp("us"), -1),
    (pa.timestamp("us", "Europe/Berlin"), 1),
    (pa.timestamp("us"), 2**60),
    (pa.duration("us"), -1_500_000),
    (pa.duration("us"), 5),
    (pa.list_(pa.binary()), [b"\xff", None]),
    (pa.list_(pa.list_(pa.date32())), [[dt.date(2024, 2, 29)], [], None]),
    (pa.struct([("n", pa.int64()), ("took", pa.duration("us"))]), (7, 1)),
    (pa.struct([("bytes", pa.binary()), ("none", pa.string())]), (b"\xff", None)),
    (pa.struct([("a", pa.int64()), ("a", pa.list_(pa.decimal128(9, 2)))]), (1, [Decimal("1.20")])),
]
"""A value of each type that a key can have."""


def lengths(backend: KeyedStateBackend, keys: Keys) -> None:
    """The length of each name."""
    values = [len(str(name or "")) for name in keys.columns[0].to_pylist()]
    backend.get_state(ValueStateDescriptor("lengths", pa.int32())).columns.put(keys, values)


def visits(backend: KeyedStateBackend, keys: Keys) -> None:
    """Two visits of each name, some without a page."""
    state = backend.get_list_state(ListStateDescriptor("visits", VISIT))
    numbers = range(len(keys))
    for _ in range(2):
        pages = [None if n % 3 else f"/{n}" for n in numbers]
        visits = [pa.array(pages, pa.string()), pa.array(numbers, pa.int64())]
        state.columns.append(keys, pa.StructArray.from_arrays(visits, fields=list(VISIT)))


def pages(backend: KeyedStateBackend, keys: Keys) -> None:
    """Two entries for each name."""
    state = backend.get_map_state(MapStateDescriptor("pages", str, int))
    for page in ("/a", "/b"):
        state.columns.put(keys, [page] * len(keys), [1] * len(keys))


def timers(backend: KeyedStateBackend, keys: Keys) -> None:
    """Two timers for each name."""
    for time in (60_000, 30_000):
        backend.event_time_timers().columns.register(keys, [time] * len(keys))


class TestOneKey:
    @pytest.mark.parametrize("name", NAMES)
    def test_value_of_a_key_is_read_by_its_columns(
        self, local_directory: str, name: str | None
    ) -> None:
        pointer = write_checkpoints(local_directory, lengths)
        rows = holdfast.read_state(pointer, "op", "lengths", key={"user": name})
        assert rows.drop_columns(["subtask"]).to_pylist() == [
            {"user": name, "value": len(name or "")}
        ]
        assert holdfast.read_state(pointer, key={"user": "unknown"}).num_rows == 0

    def test_key_of_one_column_may_be_given_as_its_value(self, local_directory: str) -> None:
        pointer = write_checkpoints(
            local_directory, lengths, names=[7, 8], key=pa.schema([("n", pa.int64())])
        )
        assert holdfast.read_state(pointer, key=7)["n"].to_pylist() == [7]

    def test_all_entries_and_timers_of_a_key_are_read(self, local_directory: str) -> None:
        def pages_and_timers(backend: KeyedStateBackend, keys: Keys) -> None:
            pages(backend, keys)
            timers(backend, keys)

        pointer = write_checkpoints(local_directory, pages_and_timers)
        rows = holdfast.read_state(pointer, "op", "pages", key="eve").to_pylist()
        assert sorted((row["user"], row["key"]) for row in rows) == [("eve", "/a"), ("eve", "/b")]
        rows = holdfast.read_state(pointer, "op", "_timers/event/timers", key="bob").to_pylist()
        assert sorted((row["user"], row["time"]) for row in rows) == [
            ("bob", 30_000),
            ("bob", 60_000),
        ]

    @pytest.mark.parametrize("fill", [lengths, visits], ids=["numbers", "lists of structs"])
    def test_no_more_of_a_large_state_is_read_than_leads_to_the_key(
        self, local_directory: str, fill: Fill
    ) -> None:
        names: list[str | None] = [f"user-{number}" for number in range(300_000)]
        if fill is visits:  # a column with a null is stored as Arrow has it
            names[0] = None
        with counting_file_system(local_directory) as counts:
            pointer = write_checkpoints(counts.directory, fill, names=names, parallelism=1)
            counts.clear()
            (row,) = holdfast.read_state(pointer, "op", key="user-299999").to_pylist()
            one_key = counts.bytes_read
            counts.clear()
            rows = holdfast.read_state(pointer, "op")
            assert rows.num_rows == len(names)
            at = pc.index(rows["user"], "user-299999").as_py()
            assert rows["value"][at].as_py() == row["value"]
        assert one_key < counts.bytes_read / 8

    def test_another_key_than_the_states_is_refused(self, local_directory: str) -> None:
        pointer = write_checkpoints(
            local_directory, lengths, names=[7], key=pa.schema([("n", pa.int64())])
        )
        for key in ({"m": 7}, {"n": "seven"}, {}, 2**70):
            with pytest.raises(InvalidRequestError, match="state 'lengths'"):
                holdfast.read_state(pointer, key=key)

    @pytest.mark.parametrize(("type", "name"), KEYS, ids=str)
    def test_key_is_found_by_its_printed_form(
        self,
        local_directory: str,
        capsys: pytest.CaptureFixture[str],
        type: pa.DataType,
        name: Any,
    ) -> None:
        key = pa.schema([("k", type)])

        def ones(backend: KeyedStateBackend, keys: Keys) -> None:
            state = backend.get_state(ValueStateDescriptor("lengths", pa.int32()))
            state.columns.put(keys, [1] * len(keys.columns[0]))

        pointer = write_checkpoints(local_directory, ones, names=[name, None], key=key)
        cat = ["cat", pointer, "op", "lengths"]
        assert main([*cat, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == 2
        (row,) = [row for row in rows if row["k"] is not None]
        text = row["k"] if isinstance(row["k"], str) else json.dumps(row["k"])
        assert main([*cat, "--json", "--key", f"k={text}"]) == 0
        assert json.loads(capsys.readouterr().out) == row
        options = json.dumps({"k": row["k"]})  # of the data source
        assert holdfast.read_state(pointer, key=json.loads(options)).num_rows == 1

    @pytest.mark.parametrize(
        ("type", "text"),
        [
            (pa.binary(), "no base64!"),
            (pa.duration("us"), "PT1.0000001S"),
            (pa.duration("us"), "90"),
            (pa.list_(pa.int64()), "[1"),
            (pa.struct([("n", pa.int64())]), '{"m": 1}'),
            (pa.struct([("n", pa.int64())]), '{"n": 1, "m": 1}'),
            (pa.int64(), "9" * 30),
        ],
        ids=str,
    )
    def test_invalid_key_text_is_refused_with_its_form(
        self, local_directory: str, type: pa.DataType, text: str
    ) -> None:
        pointer = write_checkpoints(
            local_directory, lengths, names=[None], key=pa.schema([("k", type)])
        )
        with pytest.raises(InvalidRequestError, match=r"key column 'k' .*`holdfast cat` prints"):
            holdfast.read_state(pointer, key={"k": text})

    def test_cat_prints_the_rows_of_a_key(
        self, local_directory: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pointer = write_checkpoints(
            local_directory, lengths, names=[7, 8, None], key=pa.schema([("n", pa.int64())])
        )
        for key, n in (("n=8", 8), ("n", None)):
            assert main(["cat", pointer, "op", "lengths", "--key", key, "--json"]) == 0
            (row,) = capsys.readouterr().out.splitlines()
            assert json.loads(row)["n"] == n
        assert main(["cat", pointer, "op", "lengths", "--key", "n=9"]) == 0
        assert "the state has no rows of that key" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["cat", pointer, "op", "lengths", "--key", "=8"])
        assert "must be NAME=VALUE, or NAME for null" in capsys.readouterr().err


class TestOlderTypes:
    def test_values_of_an_older_type_are_read_as_the_new_type(self, local_directory: str) -> None:
        def longer(backend: KeyedStateBackend, keys: Keys) -> None:
            state = backend.get_state(ValueStateDescriptor("lengths", pa.int64()))
            ann = [name == "ann" for name in keys.columns[0].to_pylist()]
            if any(ann):
                state.columns.put(backend.keys([pa.array(["ann"])]), [2**40])

        rows = holdfast.read_state(write_checkpoints(local_directory, lengths, longer))
        assert rows.schema.field("value").type == pa.int64()
        values = {row["user"]: row["value"] for row in rows.to_pylist()}
        assert values == {"ann": 2**40, "bob": 3, "eve": 3, None: 0}

    def test_field_missing_in_older_structs_is_null(self, local_directory: str) -> None:
        def state(fields: list[tuple[str, pa.DataType]], value: dict[str, Any], only: str) -> Fill:
            def fill(backend: KeyedStateBackend, keys: Keys) -> None:
                columns = backend.get_state(
                    ValueStateDescriptor("points", pa.struct(fields))
                ).columns
                if only in keys.columns[0].to_pylist():
                    columns.put(backend.keys([pa.array([only])]), [value])

            return fill

        x, y = ("x", pa.int32()), ("y", pa.int32())
        pointer = write_checkpoints(
            local_directory,
            state([x], {"x": 1}, "ann"),
            state([x, y], {"x": 2, "y": 3}, "bob"),
        )
        rows = holdfast.read_state(pointer).to_pylist()
        assert {row["user"]: row["value"] for row in rows} == {
            "ann": {"x": 1, "y": None},
            "bob": {"x": 2, "y": 3},
        }


class TestCheck:
    @staticmethod
    def outcomes(pointer: str, *descriptors: Any) -> list[StateCheck]:
        return check_restore(pointer, {"op": list(descriptors)})

    @pytest.mark.parametrize(
        ("descriptor", "outcome"),
        [
            (ValueStateDescriptor("lengths", pa.int32()), RestoreOutcome.RESTORED),
            (ValueStateDescriptor("lengths", pa.int64()), RestoreOutcome.MIGRATED),
            (ValueStateDescriptor("lengths", pa.string()), RestoreOutcome.INCOMPATIBLE),
            (ReducingStateDescriptor("lengths", "sum", pa.int32()), RestoreOutcome.INCOMPATIBLE),
            (
                ValueStateDescriptor(
                    "lengths", pa.int32(), ttl=StateTtlConfig(timedelta(seconds=1))
                ),
                RestoreOutcome.INCOMPATIBLE,
            ),
        ],
    )
    def test_check_of_keyed_state_matches_the_restore(
        self, local_directory: str, descriptor: Any, outcome: RestoreOutcome
    ) -> None:
        (checked,) = self.outcomes(write_checkpoints(local_directory, lengths), descriptor)
        assert (checked.state, checked.outcome, checked.stored) == (
            "lengths",
            outcome,
            "string to int32",
        )
        assert bool(checked.reason) == (outcome is RestoreOutcome.INCOMPATIBLE)

    def test_keyed_state_not_stored_is_new(self, local_directory: str) -> None:
        checked = self.outcomes(
            write_checkpoints(local_directory, lengths), ValueStateDescriptor("more", pa.int32())
        )
        assert [(each.state, each.outcome) for each in checked] == [
            ("lengths", RestoreOutcome.RESTORED),
            ("more", RestoreOutcome.NEW),
        ]

    def test_map_descriptor_without_operator_state_is_a_keyed_map(
        self, local_directory: str
    ) -> None:
        pointer = write_checkpoints(local_directory, pages)
        (checked,) = self.outcomes(pointer, MapStateDescriptor("pages", str, int))
        assert checked.outcome is RestoreOutcome.RESTORED
        (checked,) = self.outcomes(pointer, MapStateDescriptor("pages", int, int))
        assert checked.outcome is RestoreOutcome.INCOMPATIBLE
        checked_list = self.outcomes(pointer, ListStateDescriptor("pages", int))
        assert [each.outcome for each in checked_list] == [
            RestoreOutcome.RESTORED,
            RestoreOutcome.NEW,
        ]


def test_rocksdb_states_are_shown_read_and_verified(
    local_directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointers = [
        write_checkpoints(f"{local_directory}/{name}", lengths, visits, pages, backend_name=name)
        for name in ("columnar", "rocksdb")
    ]
    columns = ["state", "kind", "subtasks", "type"]
    shown = [holdfast.states(pointer).select(columns).to_pylist() for pointer in pointers]
    assert shown[0] == shown[1] != []
    for state in shown[0]:
        of_columns, of_rocksdb = (
            sorted(map(repr, holdfast.read_state(pointer, "op", state["state"]).to_pylist()))
            for pointer in pointers
        )
        assert of_rocksdb == of_columns
    assert main(["verify", pointers[1]]) == 0
    assert main(["copy", pointers[1], f"{local_directory}/copied"]) == 0
    copied = capsys.readouterr().out.splitlines()[-1]
    assert holdfast.read_state(copied, "op", "lengths").num_rows == len(NAMES)


def test_rows_in_rocksdb_are_read_by_way_of_files_and_never_sent(local_directory: str) -> None:
    names = [f"user-{number}" for number in range(60_000)]
    pointer = write_checkpoints(
        local_directory, lengths, names=names, parallelism=1, backend_name="rocksdb"
    )
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    handles = metadata.operators["op"].subtasks[0].managed_keyed
    directory = f"{local_directory}/read".removeprefix("file://")
    (readable,) = readable_handles(handles, directory)  # type: ignore[arg-type]
    (segment,) = readable.segments.values()
    assert isinstance(segment, FileStateHandle)
    assert segment.uri.startswith(f"file://{directory}/")
    del segment, readable
    assert os.listdir(directory) == []  # the handle was garbage-collected
    (state,) = stored_states(metadata)
    (part,) = state.parts
    sent = pickle.dumps(part)
    assert len(sent) < 10_000
    received = pickle.loads(sent)  # what was dumped here
    users = [
        name
        for batch in received.batches(received.stored_schema())
        for name in batch.column("user").to_pylist()
    ]
    assert sorted(users) == sorted(names)


@pytest.mark.parametrize("tables", [ColumnarStateTables, HeapStateTables])
def test_backend_resumes_from_rows_read_by_ranges(
    local_directory: str, tables: type[ColumnarStateTables] | type[HeapStateTables]
) -> None:
    names = [f"user-{number}" for number in range(20_000)]
    pointer = write_checkpoints(local_directory, lengths, lengths, names=names, parallelism=3)
    rows = holdfast.read_state(pointer, "op", "lengths")
    assert sorted(rows["user"].to_pylist()) == sorted(names)
    subtasks = load_checkpoint(resolve_pointer(pointer)).metadata.operators["op"].subtasks
    handles = [handle for state in subtasks.values() for handle in state.managed_keyed]
    backend = KeyedStateBackend(tables(KeyGroupRange(0, 7), handles), USER, GROUPS)  # type: ignore[arg-type]
    keys = backend.keys([pa.array(names)])
    values = backend.get_state(ValueStateDescriptor("lengths", pa.int32())).columns.get(keys)
    assert values.to_pylist() == [len(name) for name in keys.columns[0].to_pylist()]
