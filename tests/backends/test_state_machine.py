"""Any sequence of operations, compared with plain lists."""

import tempfile
import uuid
from typing import Any

import pyarrow as pa
from contracts.elements import list_state
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from holdfast.backends import AsyncSnapshot, OperatorStateBackend
from holdfast.locations import (
    CheckpointStorage,
    MemoryCheckpointStorage,
    OperatorStateHandle,
    checkpoint_storage,
    file_system_for,
)

Model = dict[str, list[Any]]

TYPES = {
    "longs": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "strings": (pa.string(), st.text(max_size=5)),
    "lists": (pa.list_(pa.int8()), st.lists(st.integers(-128, 127), max_size=3)),
    "kinds": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
}
values = st.sampled_from(sorted(TYPES)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(TYPES[name][1], min_size=1, max_size=5))
)


class OperatorStateMachine(RuleBasedStateMachine):
    captured: Bundle[tuple[AsyncSnapshot[Any], Model]] = Bundle("captured")
    stored: Bundle[tuple[OperatorStateHandle | None, Model]] = Bundle("stored")

    def storage(self) -> CheckpointStorage:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.backend = OperatorStateBackend()
        self.model: Model = {}
        self.checkpoint_id = 0
        self.access = self.storage().create_checkpoint_storage("job")
        self.access.initialize_base_locations_for_checkpoint()

    def state(self, name: str) -> Any:
        self.model.setdefault(name, [])
        return list_state(self.backend, name, TYPES[name][0])

    @rule(added=values)
    def add(self, added: tuple[str, list[Any]]) -> None:
        name, elements = added
        for element in elements:
            self.state(name).add(element)
        self.model[name] += elements

    @rule(added=values, as_array=st.booleans(), skip=st.integers(0, 2))
    def add_all(self, added: tuple[str, list[Any]], skip: int, *, as_array: bool) -> None:
        name, elements = added
        array = pa.array(elements, TYPES[name][0])[skip:]
        self.state(name).add_all(array if as_array else elements[skip:])
        self.model[name] = self.model[name] + elements[skip:]

    @rule(added=values)
    def update(self, added: tuple[str, list[Any]]) -> None:
        name, elements = added
        self.state(name).update(elements)
        self.model[name] = list(elements)

    @rule(name=st.sampled_from(sorted(TYPES)))
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.model[name] = []

    @rule(target=captured)
    def capture(self) -> tuple[AsyncSnapshot[Any], Model]:
        self.checkpoint_id += 1
        location = self.access.initialize_location_for_checkpoint(self.checkpoint_id)
        expected = {name: list(elements) for name, elements in self.model.items()}
        return self.backend.snapshot(location), expected

    @rule(target=stored, pending=consumes(captured))
    def run(
        self, pending: tuple[AsyncSnapshot[Any], Model]
    ) -> tuple[OperatorStateHandle | None, Model]:
        snapshot, expected = pending
        return snapshot.run().job_manager_owned, expected

    @rule(first=stored, second=st.none() | stored)
    def restore(
        self,
        first: tuple[OperatorStateHandle | None, Model],
        second: tuple[OperatorStateHandle | None, Model] | None,
    ) -> None:
        parts = [first, second] if second else [first]
        self.backend = OperatorStateBackend.restore(handle for handle, _ in parts if handle)
        self.model = {}
        for _, expected in parts:
            for name, elements in expected.items():
                self.model[name] = self.model.get(name, []) + elements

    @invariant()
    def the_states_are_those_of_the_model(self) -> None:
        if not hasattr(self, "backend"):
            return
        assert self.backend.registered_state_names() == self.model.keys()
        for name, expected in self.model.items():
            state = list_state(self.backend, name, TYPES[name][0])
            assert len(state) == len(expected)
            assert state.get() == expected


class OnLocalDisk(OperatorStateMachine):
    def storage(self) -> CheckpointStorage:
        self.directory = tempfile.TemporaryDirectory()
        return checkpoint_storage(f"file://{self.directory.name}")

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()


class InMemoryFiles(OperatorStateMachine):
    def storage(self) -> CheckpointStorage:
        self.uri = f"memory:///{uuid.uuid4().hex}"
        return checkpoint_storage(self.uri)

    def teardown(self) -> None:
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
