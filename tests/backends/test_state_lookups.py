"""Look-ups by key in keyed state of a running job's checkpoints."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import list_state
from contracts.files import files_below
from contracts.written_keyed_states import (
    KEYED_CONTENT,
    KEYED_NAMES,
    KEYS_OF_TYPES,
    keyed_checkpoint,
    write_keys,
)

import holdfast
from holdfast import open_state, read_state
from holdfast.backends.keyed import BlockCache
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import find_checkpoint
from holdfast.locations.adapters import file_system_for
from holdfast.locations.handles import files_of
from holdfast.testing import Faults, ManualClock


def leases(pointer: str) -> int:
    job, _, number = pointer.rpartition("/chk-")
    return sum(f"/_lease-{number}-" in file for file in files_below(f"{job}/_epoch"))


def same_rows(first: pa.Table, second: pa.Table) -> bool:
    return sorted(map(repr, first.to_pylist())) == sorted(map(repr, second.to_pylist()))


@pytest.mark.parametrize("name", KEYED_CONTENT)
def test_looked_up_rows_equal_those_of_a_read(memory_directory: str, name: str) -> None:
    pointer = keyed_checkpoint(memory_directory)
    state = name
    if name == "timers":
        state = next(row for row in holdfast.states(pointer)["state"].to_pylist() if "timer" in row)
    with open_state(pointer, "op", state) as lookup:
        for user in KEYED_NAMES:
            answer = lookup.get({"user": user})
            expected = read_state(pointer, "op", state, key={"user": user})
            assert answer.rows.num_rows
            assert same_rows(answer.rows, expected)
            assert answer.rows.schema == lookup.schema
        assert lookup.get("zoe").rows.num_rows == 0
        assert same_rows(lookup.get_many(KEYED_NAMES).rows, read_state(pointer, "op", state))
        twice = lookup.get_many([*KEYED_NAMES, *KEYED_NAMES]).rows
        assert same_rows(twice, read_state(pointer, "op", state))
        assert lookup.get_many([]).rows.num_rows == 0


@pytest.mark.parametrize("kind", KEYS_OF_TYPES)
def test_keys_of_every_type_are_found(memory_directory: str, kind: str) -> None:
    schema, keys = KEYS_OF_TYPES[kind]
    pointer = write_keys(memory_directory, schema, keys)
    with open_state(pointer, state="value") as lookup:
        for number, key in enumerate(keys):
            answer = lookup.get(dict(zip(schema.names, key, strict=True)))
            assert answer.rows["value"].to_pylist() == [number]


def test_answer_names_its_checkpoint(memory_directory: str) -> None:
    pointer = write_keys(memory_directory, *KEYS_OF_TYPES["string"], checkpoint_id=7)
    with open_state(f"{memory_directory}/job", state="value") as lookup:
        answer = lookup.get("a")
    assert (answer.checkpoint_id, answer.completed_ms, answer.pointer) == (7, 7000, pointer)


def test_lookup_follows_the_newest_checkpoint(memory_directory: str) -> None:
    clock = ManualClock()
    schema = KEYS_OF_TYPES["string"][0]
    first = write_keys(memory_directory, schema, [("a",)])
    job = f"{memory_directory}/job"
    with open_state(job, state="value", follow_s=5.0, clock=clock) as lookup:
        second = write_keys(memory_directory, schema, [("b",), ("a",)], checkpoint_id=2)
        clock.advance(4.9)
        assert lookup.get("a").checkpoint_id == 1
        clock.advance(0.1)
        answer = lookup.get("a")
        assert (answer.checkpoint_id, answer.rows["value"].to_pylist()) == (2, [1])
        assert (leases(first), leases(second)) == (0, 1)
        clock.advance(5.0)
        assert lookup.get("a").checkpoint_id == 2
        assert leases(second) == 1
    assert leases(second) == 0


def test_lookup_without_follow_stays_until_it_is_refreshed(memory_directory: str) -> None:
    schema = KEYS_OF_TYPES["string"][0]
    write_keys(memory_directory, schema, [("a",)])
    with open_state(f"{memory_directory}/job", state="value") as lookup:
        assert not lookup.refresh()
        write_keys(memory_directory, schema, [("b",), ("a",)], checkpoint_id=2)
        assert lookup.get("a").checkpoint_id == 1
        assert lookup.refresh()
        assert lookup.checkpoint_id == 2
        assert lookup.get("b").rows["value"].to_pylist() == [0]


@pytest.mark.parametrize("follow_s", [None, 60.0])
def test_deleted_checkpoint_is_an_error_or_replaced(
    memory_directory: str, follow_s: float | None
) -> None:
    schema = KEYS_OF_TYPES["string"][0]
    first = write_keys(memory_directory, schema, [("a",)])
    with open_state(f"{memory_directory}/job", state="value", follow_s=follow_s) as lookup:
        write_keys(memory_directory, schema, [("b",), ("a",)], checkpoint_id=2)
        shared = f"{memory_directory}/job/shared"
        newer = find_checkpoint(f"{memory_directory}/job/chk-2").metadata
        needed = {file.uri for file in files_of(newer.streams())}
        file_system_for(first).delete_tree(first)
        file_system_for(shared).delete(file for file in files_below(shared) if file not in needed)
        if follow_s is None:
            with pytest.raises(CheckpointNotFoundError, match="HF-DELETED"):
                lookup.get("a")
        else:
            assert lookup.get("a").checkpoint_id == 2


def test_lease_lasts_until_the_lookup_is_closed_or_dropped(memory_directory: str) -> None:
    pointer = write_keys(memory_directory, *KEYS_OF_TYPES["string"])
    lookup = open_state(pointer, state="value")
    assert leases(pointer) == 1
    lookup.close()
    lookup.close()
    assert leases(pointer) == 0
    lookup = open_state(pointer, state="value")
    assert leases(pointer) == 1
    del lookup
    gc.collect()
    assert leases(pointer) == 0


def test_repeated_lookup_makes_no_request(faults: Faults) -> None:
    pointer = write_keys(faults.directory, *KEYS_OF_TYPES["string"])
    with open_state(pointer, state="value") as lookup:
        lookup.get("a")
        faults.calls.clear()
        assert lookup.get("a").rows.num_rows == 1
        assert faults.calls == []


def test_threads_look_up_at_the_same_time(memory_directory: str) -> None:
    keys = [(f"user-{number}",) for number in range(2000)]
    pointer = write_keys(memory_directory, KEYS_OF_TYPES["string"][0], keys)
    with open_state(pointer, state="value", max_cached_bytes=1) as lookup:

        def number_of(number: int) -> Any:
            return lookup.get(f"user-{number}").rows["value"].to_pylist()

        wanted = list(range(0, 2000, 23))
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(number_of, wanted)) == [[number] for number in wanted]


def test_state_without_keys_is_refused(memory_directory: str) -> None:
    checkpoint = Checkpoint(memory_directory)
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1))
    pointer = checkpoint.complete()
    with pytest.raises(InvalidRequestError, match="has no keys"):
        open_state(pointer)
    assert leases(pointer) == 0


def test_key_of_another_type_is_refused(memory_directory: str) -> None:
    pointer = write_keys(memory_directory, *KEYS_OF_TYPES["int8"])
    with open_state(pointer, state="value") as lookup:
        with pytest.raises(InvalidRequestError, match="key column 'k'"):
            lookup.get(1000)
        with pytest.raises(InvalidRequestError, match="has the key columns"):
            lookup.get({"other": 1})


def test_full_cache_drops_the_oldest_block() -> None:
    cache = BlockCache(max_bytes=30)
    for number in range(3):
        cache.put("s", number, pa.py_buffer(bytes([number]) * 10))
    assert cache.get("s", [0]) is not None
    cache.put("s", 3, pa.py_buffer(b"3" * 10))
    assert [cache.get("s", [number]) is not None for number in range(4)] == [
        True,
        False,
        True,
        True,
    ]
    assert cache.get("s", range(4)) is None
