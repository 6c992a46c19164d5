"""Any sequence of operations on several subtasks, compared with plain lists and dicts."""

import tempfile
import uuid
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from contracts.elements import (
    Circle,
    Color,
    Plain,
    Point,
    Square,
    broadcast_state,
    list_state,
    union_state,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from holdfast.backends import AsyncSnapshot, OperatorStateBackend, Pickled
from holdfast.backends.assignment import redistribute
from holdfast.backends.snapshot import Compression
from holdfast.locations import CheckpointStorage, MemoryCheckpointStorage, checkpoint_storage
from holdfast.locations.adapters import file_system_for
from holdfast.locations.handles import OperatorStateHandle

Kind = Literal["list", "union"]

points = st.builds(Point, st.integers(-(2**63), 2**63 - 1))
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "longs": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "strings": (str, st.text(max_size=5)),
    "lists": (pa.list_(pa.int8()), st.lists(st.integers(-128, 127), max_size=3)),
    "kinds": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
    "points": (Point, points),
    "shapes": (
        Circle | Square,
        st.builds(Circle, st.floats(allow_nan=False))
        | st.builds(Square, st.integers(0, 9), st.sampled_from(Color)),
    ),
    "pickled": (Pickled(), st.builds(Plain, st.integers())),
}
ARROW = ("longs", "lists", "kinds")
MAPS: dict[str, tuple[tuple[Any, Any], st.SearchStrategy[dict[Any, Any]]]] = {
    "numbers": ((int, int), st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=3)),
    "places": ((str, Point), st.dictionaries(st.sampled_from("abc"), points, max_size=3)),
    "names": ((Point, str), st.dictionaries(points, st.text(max_size=3), max_size=3)),
}
kinds: st.SearchStrategy[Kind] = st.sampled_from(("list", "union"))
names = st.sampled_from(sorted(TYPES))
maps = st.sampled_from(sorted(MAPS))
elements = names.flatmap(
    lambda name: st.tuples(st.just(name), st.lists(TYPES[name][1], min_size=1, max_size=5))
)
entries = maps.flatmap(lambda name: st.tuples(st.just(name), MAPS[name][1]))
subtasks = st.integers(0, 10)  # modulo the parallelism
compressions: st.SearchStrategy[Compression | None] = st.sampled_from((None, "zstd", "lz4"))


@dataclass
class Model:
    """A model of a subtask; lists by kind and name.

    Attributes:
        lists: The elements of each requested state.
        carried: The stored elements of a union that it hasn't requested; None if it stores none.
        maps: By name.
    """

    lists: dict[tuple[Kind, str], list[Any]] = field(default_factory=dict)
    carried: dict[tuple[Kind, str], list[Any] | None] = field(default_factory=dict)
    maps: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def restore(self) -> "Model":
        """Return the model after a restore from a snapshot."""
        lists = self.lists | self.carried
        return Model(
            {key: list(values) for key, values in lists.items() if values is not None},
            maps={name: dict(pairs) for name, pairs in self.maps.items()},
        )


Captured = tuple[list[AsyncSnapshot], list[Model]]
Stored = tuple[list[tuple[OperatorStateHandle, ...]], list[Model]]


class OperatorStateMachine(RuleBasedStateMachine):
    captured: Bundle[Captured] = Bundle("captured")
    stored: Bundle[Stored] = Bundle("stored")

    def storage(self) -> CheckpointStorage:
        raise NotImplementedError

    @initialize(parallelism=st.integers(1, 3))
    def begin(self, parallelism: int) -> None:
        self.backends = [OperatorStateBackend() for _ in range(parallelism)]
        self.models = [Model() for _ in range(parallelism)]
        self.checkpoint_id = 0
        self.access = self.storage().create_checkpoint_storage("job")
        self.access.initialize_base_locations_for_checkpoint()

    def state(self, subtask: int, kind: Kind, name: str) -> tuple[Any, list[Any]]:
        subtask %= len(self.backends)
        model = self.models[subtask].lists.setdefault((kind, name), [])
        self.models[subtask].carried.pop((kind, name), None)
        return _list(self.backends[subtask], kind, name), model

    def map(self, subtask: int, name: str) -> tuple[Any, dict[Any, Any]]:
        subtask %= len(self.backends)
        model = self.models[subtask].maps.setdefault(name, {})
        return _map(self.backends[subtask], name), model

    @rule(subtask=subtasks, kind=kinds, added=elements)
    def add(self, subtask: int, kind: Kind, added: tuple[str, list[Any]]) -> None:
        state, model = self.state(subtask, kind, added[0])
        for element in added[1]:
            state.add(element)
        model += added[1]

    @rule(
        subtask=subtasks, kind=kinds, added=elements, as_array=st.booleans(), skip=st.integers(0, 2)
    )
    def add_all(
        self, *, subtask: int, kind: Kind, added: tuple[str, list[Any]], skip: int, as_array: bool
    ) -> None:
        name, values = added
        state, model = self.state(subtask, kind, name)
        if as_array and name in ARROW:
            state.add_all(pa.array(values, TYPES[name][0])[skip:])
        else:
            state.add_all(values[skip:])
        model += values[skip:]

    @rule(subtask=subtasks, kind=kinds, added=elements)
    def update(self, subtask: int, kind: Kind, added: tuple[str, list[Any]]) -> None:
        state, model = self.state(subtask, kind, added[0])
        state.update(added[1])
        model[:] = added[1]

    @rule(subtask=subtasks, kind=kinds, name=names)
    def clear(self, subtask: int, kind: Kind, name: str) -> None:
        state, model = self.state(subtask, kind, name)
        state.clear()
        model.clear()

    @rule(subtask=subtasks, added=entries, at_once=st.booleans())
    def put(self, subtask: int, added: tuple[str, dict[Any, Any]], *, at_once: bool) -> None:
        state, model = self.map(subtask, added[0])
        if at_once:
            state.put_all(added[1])
        else:
            for key, value in added[1].items():
                state.put(key, value)
        model |= added[1]

    @rule(subtask=subtasks, name=maps, data=st.data())
    def remove(self, subtask: int, name: str, data: st.DataObject) -> None:
        state, model = self.map(subtask, name)
        if model:
            key = data.draw(st.sampled_from(list(model)))
            state.remove(key)
            del model[key]

    @rule(subtask=subtasks, name=maps)
    def clear_map(self, subtask: int, name: str) -> None:
        state, model = self.map(subtask, name)
        state.clear()
        model.clear()

    @rule(target=captured, compression=compressions)
    def capture(self, compression: Compression | None) -> Captured:
        self.checkpoint_id += 1
        location = self.access.initialize_location_for_checkpoint(self.checkpoint_id)
        snapshots = [
            backend.snapshot(location, compression=compression) for backend in self.backends
        ]
        return snapshots, [model.restore() for model in self.models]

    @rule(target=stored, pending=consumes(captured))
    def run(self, pending: Captured) -> Stored:
        snapshots, models = pending
        return [snapshot.run().state.managed_operator for snapshot in snapshots], models

    @rule(pending=consumes(captured))
    def cancel(self, pending: Captured) -> None:
        for snapshot in pending[0]:
            snapshot.cancel()
            with pytest.raises(CancelledError):
                snapshot.run()

    @rule(checkpoint=stored)
    def restore(self, checkpoint: Stored) -> None:
        handles, self.models = checkpoint[0], [model.restore() for model in checkpoint[1]]
        self.backends = [OperatorStateBackend.restore(of_subtask) for of_subtask in handles]

    @rule(checkpoint=stored, parallelism=st.integers(1, 4))
    def rescale(self, checkpoint: Stored, parallelism: int) -> None:
        handles, before = checkpoint
        parts = redistribute(handles, parallelism)
        self.backends = [OperatorStateBackend.restore(part) for part in parts]
        if parallelism == len(before):
            self.models = [Model(old.restore().lists) for old in before]
        else:
            self.models = _split(before, parts)
        for subtask, model in enumerate(self.models):
            for key in {key for old in before for key in old.lists if key[0] == "union"}:
                model.lists[key] = [
                    element
                    for model_before in before
                    for element in model_before.lists.get(key, ())
                ]
                own = [
                    model_before.lists[key]
                    for model_before in before[subtask::parallelism]
                    if key in model_before.lists
                ]
                model.carried[key] = (
                    [element for values in own for element in values] if own else None
                )
        for name in {name for old in before for name in old.maps}:
            copies = [old.maps[name] for old in before if name in old.maps]
            for subtask, model in enumerate(self.models):
                model.maps[name] = dict(copies[subtask % len(copies)])

    @rule(subtask=subtasks)
    def look(self, subtask: int) -> None:
        subtask %= len(self.backends)
        backend, model = self.backends[subtask], self.models[subtask]
        for (kind, name), expected in model.lists.items():
            state, _ = self.state(subtask, kind, name)
            assert len(state) == len(expected)
            assert state.get() == expected
        for name, expected_entries in model.maps.items():
            entries = _map(backend, name)
            assert len(entries) == len(expected_entries)
            assert dict(entries.entries()) == expected_entries

    @invariant()
    def the_names_are_those_of_the_model(self) -> None:
        # It asks for no state, so that some are carried on as they were restored.
        for backend, model in zip(
            getattr(self, "backends", ()), getattr(self, "models", ()), strict=True
        ):
            expected = {_name(kind, name) for kind, name in model.lists}
            assert backend.registered_state_names() == expected
            assert backend.registered_broadcast_state_names() == model.maps.keys()

    def teardown(self) -> None:
        for subtask in range(len(getattr(self, "backends", ()))):
            self.look(subtask)


def _name(kind: Kind, name: str) -> str:
    return f"{kind} of {name}"


def _list(backend: OperatorStateBackend, kind: Kind, name: str) -> Any:
    get = list_state if kind == "list" else union_state
    return get(backend, _name(kind, name), TYPES[name][0])


def _map(backend: OperatorStateBackend, name: str) -> Any:
    return broadcast_state(backend, name, MAPS[name][0])


def _split(before: list[Model], parts: list[tuple[OperatorStateHandle, ...]]) -> list[Model]:
    """Check that no elements of list states are lost, duplicated or out of order."""
    models = [Model() for _ in parts]
    distributed: Counter[int] = Counter()
    for key in dict.fromkeys(key for model in before for key in model.lists if key[0] == "list"):
        kind, name = key
        elements = [element for model in before for element in model.lists.get(key, ())]
        runs: list[list[Any]] = []
        for subtask, part in enumerate(parts):
            backend = OperatorStateBackend.restore(part)
            if _name(kind, name) in backend.registered_state_names():
                models[subtask].lists[key] = _list(backend, kind, name).get()
                runs.append(models[subtask].lists[key])
                distributed[subtask] += len(runs[-1])
        assert runs  # also the type of an empty state is kept
        # One run for each subtask, beginning at any of them.
        rotations = [runs[first:] + runs[:first] for first in range(len(runs))]
        assert elements in [
            [element for run in rotation for element in run] for rotation in rotations
        ]
    counts = [distributed[subtask] for subtask in range(len(parts))]
    assert max(counts) - min(counts) <= 1
    return models


class OnLocalDisk(OperatorStateMachine):
    def storage(self) -> CheckpointStorage:
        self.directory = tempfile.TemporaryDirectory()
        return checkpoint_storage(f"file://{self.directory.name}")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            self.directory.cleanup()


class InMemoryFiles(OperatorStateMachine):
    def storage(self) -> CheckpointStorage:
        self.uri = f"memory:///{uuid.uuid4().hex}"
        return checkpoint_storage(self.uri)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "uri"):
            file_system_for(self.uri).delete_tree(self.uri)


class InMemory(OperatorStateMachine):
    def storage(self) -> CheckpointStorage:
        return MemoryCheckpointStorage()


TestOnLocalDisk = OnLocalDisk.TestCase
TestInMemoryFiles = InMemoryFiles.TestCase
TestInMemory = InMemory.TestCase
for case in (TestOnLocalDisk, TestInMemoryFiles, TestInMemory):
    case.settings = settings(stateful_step_count=20)
del case
