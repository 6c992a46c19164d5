"""Metadata with a right checksum and impossible numbers: each reader reports it, in little memory."""

import contextlib
import io
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import list_state
from contracts.metadata import seal
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends import OperatorStateBackend
from holdfast.backends.assignment import OperatorSettings, assign
from holdfast.backends.inspection import iter_state, states
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import (
    KeyedStateCheckpointOutputStream,
    OperatorStateCheckpointOutputStream,
    raw_key_groups,
    raw_operator_partitions,
)
from holdfast.cli.command_line import main
from holdfast.errors import CheckpointCorruptedError, CheckpointError
from holdfast.locations import (
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    find_checkpoints,
    job_histories,
    load_checkpoint,
    sweep,
    verify_files,
)
from holdfast.locations.adapters import CheckpointedStateScope
from holdfast.locations.storages import resolve_pointer
from holdfast.spark_progress import SPARK_FILES, SparkFile, SparkFiles

WRONG = (0, -1, 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1)
MAX_BYTES = 32 << 20

USUAL_MEMORY = pa.default_memory_pool()
ARROWS_MEMORY = pa.proxy_memory_pool(USUAL_MEMORY)  # outlives the files in it

Path_ = tuple[object, ...]


def write_checkpoint(directory: Path) -> Path:
    """Write a checkpoint with every type of state and number; returns its `_metadata`."""
    checkpoint = Checkpoint(f"file://{directory}")

    def stream() -> Any:
        return checkpoint.location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        )

    checkpoint.add(
        "op",
        lambda backend, _: list_state(backend, "s", pa.int64()).add_all(range(100)),
        parallelism=2,
    )
    raw = OperatorStateCheckpointOutputStream(stream())
    keyed = KeyedStateCheckpointOutputStream(stream(), KeyGroupRange(0, 2))
    for number in range(3):
        raw.start_new_partition()
        raw.write(bytes(10 * number))
        keyed.start_new_key_group(number)
        keyed.write(bytes(10 * number))
    handles = raw.close_and_get_handle(), keyed.close_and_get_handle()
    assert handles[0] is not None
    assert handles[1] is not None
    state = checkpoint.operators["op"].subtasks[0]
    subtask = StoredSubtask(
        state.managed_operator,
        SubtaskStatistics(1, 2, 3, 4.0, 5.0, 6.0, 7.0),
        (handles[0],),
        raw_keyed=(handles[1],),
    )
    subtasks = checkpoint.operators["op"].subtasks | {0: subtask}
    checkpoint.operators["op"] = StoredOperator(2, 3, subtasks)
    pointer = checkpoint.complete()
    file = directory / "job" / "chk-1" / "_metadata"
    body = body_of(file)
    files = SparkFiles(
        is_committed=True, settings={}, files=(SparkFile("offsets/0", handles[0].stream),)
    )
    body["coordinator_states"][SPARK_FILES] = msgspec.msgpack.decode(files.encode(pointer))
    file.write_bytes(encode_body(body))
    return file


def body_of(file: Path) -> Any:
    """The content of a file, with its coordinator states decoded as well."""
    body = msgspec.msgpack.decode(file.read_bytes()[20:-4])
    states = body["coordinator_states"]
    body["coordinator_states"] = {
        name: msgspec.msgpack.decode(state) for name, state in states.items()
    }
    return body


def encode_body(body: Any) -> bytes:
    states = {
        name: msgspec.msgpack.encode(state) for name, state in body["coordinator_states"].items()
    }
    return seal(msgspec.msgpack.encode(body | {"coordinator_states": states}))


def numbers_in(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each number, and of each key that is a number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, int):
                yield (*path, ("key", key))
            yield from numbers_in(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_in(inner, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def replace_number(value: Any, path: Path_, number: int) -> Any:
    """Return a copy with another number there."""
    if not path:
        return number
    first, *rest = path
    if isinstance(first, tuple):
        return {number if key == first[1] else key: inner for key, inner in value.items()}
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = replace_number(value[first], tuple(rest), number)
    return copy


def restore(pointer: str, parallelism: int) -> None:
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    for operator in assign(metadata, {"op": OperatorSettings(parallelism)}).values():
        for subtask in operator.subtasks:
            OperatorStateBackend.restore(subtask.managed_operator)
            for raw in raw_operator_partitions(subtask.raw_operator):
                raw.read()
            for keyed in raw_key_groups(subtask.raw_keyed):
                keyed.read()


def command(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)


READERS: dict[str, Callable[[str], object]] = {
    "restore": lambda pointer: restore(pointer, 2),
    "restore at another parallelism": lambda pointer: restore(pointer, 3),
    "states": states,
    "read a state": lambda pointer: list(iter_state(pointer, "op", "s")),
    "verify": lambda pointer: list(
        verify_files(load_checkpoint(resolve_pointer(pointer)).metadata.streams())
    ),
    "find": find_checkpoints,
    "histories": lambda pointer: job_histories(pointer.removesuffix("/job/chk-1")),
    # A dry run, because two subtasks may become one, and the other one's files are orphans then.
    "sweep": lambda pointer: sweep(
        pointer.removesuffix("/job/chk-1"), "job", grace_s=0, dry_run=True
    ),
    "show": lambda pointer: command("show", pointer),
    "show as JSON": lambda pointer: command("show", pointer, "--json"),
    "verify by command": lambda pointer: command("verify", pointer),
    "cat": lambda pointer: command("cat", pointer, "op", "s"),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def body(file: Path) -> Any:
    return body_of(file)


def read(file: Path, body: Any) -> list[CheckpointError]:
    """Read a body with every command; returns the errors."""
    file.write_bytes(encode_body(body))
    failures = []
    for reader in READERS.values():
        try:
            reader(f"file://{file.parent}")
        except CheckpointError as failure:
            failures.append(failure)
    return failures


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Fail if the block allocates more than the test's own state could need."""
    pa.set_memory_pool(ARROWS_MEMORY)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
        assert (ARROWS_MEMORY.max_memory() or 0) < MAX_BYTES
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(USUAL_MEMORY)


def test_written_checkpoint_is_read_by_every_command(file: Path, body: Any) -> None:
    assert read(file, body) == []
    assert len(list(numbers_in(body))) > 40


@settings(max_examples=settings().max_examples // 2)  # each is read in twelve ways
@given(data=st.data())
def test_impossible_number_is_a_holdfast_error(data: st.DataObject, file: Path, body: Any) -> None:
    paths = list(numbers_in(body))
    for _ in range(data.draw(st.integers(1, 2))):
        path, number = data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(WRONG))
        with contextlib.suppress(KeyError):  # a key that was replaced before
            body = replace_number(body, path, number)
    with little_memory():
        read(file, body)


def test_numbers_too_large_together_are_a_holdfast_error(file: Path, body: Any) -> None:
    path = ("operators", "op", "subtasks", 0, "managed_operator", 0, "states", "s", "count")
    file.write_bytes(encode_body(replace_number(body, path, 2**63 - 1)))
    with pytest.raises(CheckpointCorruptedError, match="add up to more than 64 bits"):
        states(f"file://{file.parent}")


IMPOSSIBLE = [
    (("operators", "op", "parallelism"), 0),
    (("operators", "op", "parallelism"), 4),
    (("operators", "op", "max_parallelism"), 2**31),
    (("operators", "op", "subtasks", ("key", 1)), -1),
    (("operators", "op", "subtasks", ("key", 1)), 2),
    (("checkpoint_id",), -1),
    (("created_ms",), 2**63 - 1),
    (("duration_ms",), -1),
    *[
        (("operators", "op", "subtasks", 0, *path), number)
        for path, number in [
            (("managed_operator", 0, "states", "s", "offset"), 1),
            (("managed_operator", 0, "states", "s", "offset"), -1),
            (("managed_operator", 0, "states", "s", "length"), 2**40),
            (("managed_operator", 0, "states", "s", "count"), -1),
            (("managed_operator", 0, "states", "s", "first"), 2**63 - 1),
            (("managed_operator", 0, "stream", "checksum", "block_bytes"), 0),
            (("managed_operator", 0, "stream", "checksum", "block_bytes"), 2**31),
            (("managed_operator", 0, "stream", "size"), -1),
            (("raw_operator", 0, "partitions", 1, 1), 2**63 - 1),
            (("raw_keyed", 0, "partitions", 1, 0), -1),
            (("raw_keyed", 0, "key_groups", 0), 1),
            (("raw_keyed", 0, "key_groups", 1), 2**31),
            (("statistics", "rows_in"), -1),
        ]
    ],
]


@pytest.mark.parametrize(("path", "number"), IMPOSSIBLE, ids=str)
def test_file_is_named_as_soon_as_it_is_read(
    path: Path_, number: int, file: Path, body: Any
) -> None:
    file.write_bytes(encode_body(replace_number(body, path, number)))
    with pytest.raises(CheckpointCorruptedError) as caught:
        load_checkpoint(resolve_pointer(f"file://{file.parent}"))
    assert caught.value.location == f"file://{file}"
