"""List, union and broadcast states of random types at changing parallelism, compared with a model.

After each step the states are redistributed, and restored twice: one copy is only read and compared, the other is
changed by the next step, except for some states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa
from contracts.elements import memory_factory

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend
from holdfast.backends.assignment import redistribute
from holdfast.backends.snapshot import Compression
from proof.values.checking import Comparisons, with_smaller_parts, without_parts
from proof.values.drawing import Drawer
from proof.values.plain import from_arrow, frozen, short_name, to_arrow
from proof.values.states import plain_value, python_object


@dataclass(frozen=True, slots=True)
class OperatorStateKind:
    """A state.

    Attributes:
        mode: list, union or broadcast.
        type: The type of its elements or values.
        key: The type of a broadcast state's keys.
    """

    mode: str
    type: pa.DataType
    key: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a state.

    Attributes:
        state: The number of the state.
        operation: add, update, keep or clear for lists; put, remove or clear for broadcast states.
        argument: Elements, or an entry. `keep` leaves each subtask its share of the elements.
        form: Whether elements are added one by one (0), as Python objects (1), or as Arrow data (2).
    """

    state: int
    operation: str
    argument: Any = None
    form: int = 0


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """A run of all subtasks up to a checkpoint.

    Attributes:
        asked: The numbers of the states that the operator requests.
        changes: The changes of each subtask. Those of broadcast states are in each.
        is_changed_later: Whether states change after they were captured, before they are written.
        is_compressed: Whether the checkpoint is compressed.
    """

    asked: tuple[int, ...]
    changes: tuple[tuple[StateChange, ...], ...]
    is_changed_later: bool = False
    is_compressed: bool = False


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """An operator with states, and its steps."""

    kinds: tuple[OperatorStateKind, ...]
    steps: tuple[OperatorStep, ...]


def draw_case(random: Random) -> OperatorCase:
    """Draw a case."""
    drawer = Drawer(random)
    kinds = tuple(_draw_kind(drawer) for _ in range(random.randint(1, 4)))
    steps = []
    for _ in range(random.randint(1, 6)):
        asked = tuple(number for number in range(len(kinds)) if drawer.chance(0.7))
        parallelism = random.randint(1, 5)
        for_all = [
            change
            for number in asked
            if kinds[number].mode == "broadcast"
            for change in _draw_changes(drawer, number, kinds[number])
        ]
        changes = []
        for _ in range(parallelism):
            lists = [number for number in asked if kinds[number].mode != "broadcast"]
            own = [
                change
                for number in lists
                for change in _draw_changes(drawer, number, kinds[number])
            ]
            changes.append((*for_all, *own))
        steps.append(OperatorStep(asked, tuple(changes), drawer.chance(0.3), drawer.chance(0.2)))
    return OperatorCase(kinds, tuple(steps))


def _draw_kind(drawer: Drawer) -> OperatorStateKind:
    mode = drawer.random.choice(["list", "list", "union", "broadcast"])
    kind = drawer.arrow_type()
    while pa.types.is_null(kind):  # no element may be null
        kind = drawer.arrow_type()
    return OperatorStateKind(mode, kind, drawer.key_type() if mode == "broadcast" else None)


def _draw_changes(drawer: Drawer, number: int, kind: OperatorStateKind) -> list[StateChange]:
    random = drawer.random
    changes = []
    if kind.mode == "union" and drawer.chance(0.8):  # or each subtask stores all elements
        changes.append(StateChange(number, "keep"))
    for _ in range(random.randint(0, 3)):
        form = random.randint(0, 2)
        if kind.mode == "broadcast":
            operation = random.choice(["put", "put", "put", "remove", "clear"])
            key = drawer.value(kind.key, null=0)
            while key != key:  # noqa: PLR0124  # NaN can't be a key
                key = drawer.value(kind.key, null=0)
            argument: Any = key, drawer.value(kind.type, null=0)
        else:
            operation = random.choice(["add", "add", "add", "update", "clear"])
            count = random.choice([0, 1, 2, 5])
            argument = [drawer.value(kind.type, null=0) for _ in range(count)]
        changes.append(StateChange(number, operation, argument, form))
    return changes


Entries = dict[Any, tuple[Any, Any]]


def run_case(case: OperatorCase) -> Comparisons:
    """Run all steps, and compare the states that each subtask has at the beginning of each."""
    compared = Comparisons()
    runner = _Runner(case, compared)
    try:
        for number, step in enumerate(case.steps):
            runner.run(f"step {number}", step)
        runner.restore("the end", 2)
    except Exception as error:  # noqa: BLE001  # each error is a finding
        compared.add_error("operator states", error)
    return compared


class _Runner:
    def __init__(self, case: OperatorCase, compared: Comparisons) -> None:
        self._case, self._compared = case, compared
        self._handles: list[tuple[Any, ...]] = []
        self._lists: dict[int, list[list[Any]]] = {}  # of each subtask of the last checkpoint
        self._is_in_order: dict[int, bool] = {}
        self._entries: dict[int, Entries] = {}

    def run(self, place: str, step: OperatorStep) -> None:
        parallelism = len(step.changes)
        backends, lists = self.restore(place, parallelism)
        self._handles = []
        for number in lists:
            is_asked = number in step.asked
            self._is_in_order[number] = is_asked or self._case.kinds[number].mode == "list"
            if self._case.kinds[number].mode == "union" and not is_asked:
                # One subtask keeps each element; any of them may.
                lists[number] = [lists[number][0], *[[] for _ in range(parallelism - 1)]]
        self._lists = lists
        for subtask, (backend, changes) in enumerate(zip(backends, step.changes, strict=True)):
            states = {
                number: _state_of(backend, number, self._case.kinds[number])
                for number in step.asked
            }
            for change in changes:
                self._change(states[change.state], change, subtask, parallelism)
            compression: Compression | None = "zstd" if step.is_compressed else None
            snapshot = backend.snapshot(memory_factory(), compression=compression)
            if step.is_changed_later:
                for number, state in states.items():
                    _change_later(state, self._case.kinds[number])
            self._handles.append(snapshot.run().state.managed_operator)
        for change in step.changes[0]:
            if self._case.kinds[change.state].mode == "broadcast":
                _change_entries(self._entries.setdefault(change.state, {}), change)

    def restore(
        self, place: str, parallelism: int
    ) -> tuple[list[OperatorStateBackend], dict[int, list[list[Any]]]]:
        """Restore at a parallelism, and compare. Return the subtasks, and the lists that each has."""
        if not self._handles:
            lists: dict[int, list[list[Any]]] = {
                number: [[] for _ in range(parallelism)]
                for number, kind in enumerate(self._case.kinds)
                if kind.mode != "broadcast"
            }
            return [OperatorStateBackend() for _ in range(parallelism)], lists
        place = f"{place}, {len(self._handles)} to {parallelism} subtasks"
        parts = redistribute(self._handles, parallelism)
        readers = [OperatorStateBackend.restore(part) for part in parts]
        lists = {}
        for number, kind in enumerate(self._case.kinds):
            states = [_state_of(reader, number, kind) for reader in readers]
            if kind.mode == "broadcast":
                self._compare_entries(place, number, states)
                continue
            lists[number] = [from_arrow(state.to_arrow()) for state in states]
            objects = [[plain_value(each, kind.type) for each in state.get()] for state in states]
            self._check(
                frozen(objects) == frozen(lists[number]),
                number,
                "objects are not the Arrow data",
                f"{place}: {objects}, not {lists[number]}",
            )
            if kind.mode == "list":
                self._compare_split(place, number, lists[number])
            else:
                self._compare_union(place, number, lists[number])
        sizes = [
            sum(len(lists[number][subtask]) for number in lists if self._is_split(number))
            for subtask in range(parallelism)
        ]
        if parallelism != len(self._handles):
            self._compared.check(
                max(sizes) - min(sizes) <= 1, "list states are not spread evenly", place, sizes
            )
        return [OperatorStateBackend.restore(part) for part in parts], lists

    def _is_split(self, number: int) -> bool:
        return self._case.kinds[number].mode == "list"

    def _check(self, holds: object, number: int, label: str, shown: str) -> None:
        kind = self._case.kinds[number]
        self._compared.check(holds, f"{kind.mode} state of {short_name(kind.type)}: {label}", shown)

    def _compare_split(self, place: str, number: int, lists: list[list[Any]]) -> None:
        """Check that elements stay at the same parallelism; otherwise each subtask has a range of all elements in order."""
        stored = self._lists[number]
        if len(stored) == len(lists):
            is_right = frozen(stored) == frozen(lists)
        else:
            every = frozen([value for each in stored for value in each])
            orders = [lists[first:] + lists[:first] for first in range(len(lists))]
            sizes = [len(each) for each in lists]
            is_right = max(sizes) - min(sizes) <= 1 and any(
                frozen([value for each in order for value in each]) == every for order in orders
            )
        self._check(is_right, number, "other elements", f"{place}: {lists} of {stored}")

    def _compare_union(self, place: str, number: int, lists: list[list[Any]]) -> None:
        """Check that each subtask has all elements, in the order of the subtasks that stored them."""
        every = [value for each in self._lists[number] for value in each]
        is_right = len({repr(frozen(each)) for each in lists}) == 1
        if self._is_in_order[number]:
            is_right = is_right and frozen(lists[0]) == frozen(every)
        else:
            is_right = is_right and _sorted_texts(lists[0]) == _sorted_texts(every)
        self._check(is_right, number, "other elements", f"{place}: {lists}, not {every}")

    def _compare_entries(self, place: str, number: int, states: Sequence[Any]) -> None:
        """Check that each subtask has all entries, in the order in which their keys were put."""
        kind = self._case.kinds[number]
        right = frozen(list(self._entries.get(number, {}).values()))
        for subtask, state in enumerate(states):
            entries = [
                (plain_value(key, kind.key), plain_value(state.get(key), kind.type))
                for key in state
            ]
            self._check(
                frozen(entries) == right,
                number,
                "other entries",
                f"{place}: subtask {subtask} has {entries}, not {right}",
            )

    def _change(self, state: Any, change: StateChange, subtask: int, parallelism: int) -> None:
        """Change a state, and the model of a list."""
        kind = self._case.kinds[change.state]
        if kind.mode == "broadcast":
            _change_broadcast(state, kind, change)
            return
        of_subtask = self._lists[change.state]
        elements = change.argument or []
        if change.operation == "keep":
            elements = of_subtask[subtask][subtask::parallelism]
        if change.operation in {"keep", "update"}:
            of_subtask[subtask] = list(elements)
            state.update(_elements(elements, kind.type, change.form))
        elif change.operation == "clear":
            of_subtask[subtask] = []
            state.clear()
        else:
            of_subtask[subtask] = of_subtask[subtask] + elements
            if change.form:
                state.add_all(_elements(elements, kind.type, change.form))
            else:
                for each in elements:
                    state.add(python_object(each, kind.type))


def _state_of(backend: OperatorStateBackend, number: int, kind: OperatorStateKind) -> Any:
    name = f"s{number}"
    if kind.mode == "broadcast":
        return backend.get_broadcast_state(MapStateDescriptor(name, kind.key, kind.type))
    descriptor = ListStateDescriptor(name, kind.type)
    if kind.mode == "list":
        return backend.get_list_state(descriptor)
    return backend.get_union_list_state(descriptor)


def _change_later(state: Any, kind: OperatorStateKind) -> None:
    """Change a state in place, without an effect on its snapshot."""
    if kind.mode == "broadcast":
        for key in list(state):
            state.remove(key)
    else:
        state.add_all(state.get()[:1])


def _elements(values: Sequence[Any], kind: pa.DataType, form: int) -> Any:
    if form == 2:
        return to_arrow(values, kind)
    return [python_object(each, kind) for each in values]


def _change_broadcast(state: Any, kind: OperatorStateKind, change: StateChange) -> None:
    if change.operation == "clear":
        state.clear()
        return
    key = python_object(change.argument[0], kind.key)
    if change.operation == "remove":
        state.remove(key)
    elif change.form:
        state.put_all({key: python_object(change.argument[1], kind.type)})
    else:
        state.put(key, python_object(change.argument[1], kind.type))


def _change_entries(entries: Entries, change: StateChange) -> None:
    if change.operation == "clear":
        entries.clear()
        return
    key, value = change.argument
    if change.operation == "remove":
        entries.pop(frozen(key), None)
    else:
        entries[frozen(key)] = key, value


def _sorted_texts(values: Sequence[Any]) -> list[str]:
    return sorted(repr(frozen(each)) for each in values)


def smaller_cases(case: OperatorCase) -> Iterator[OperatorCase]:
    """Yield cases with fewer parts."""
    yield from without_parts(case, "steps")
    yield from with_smaller_parts(case, "steps", _smaller_steps)


def _smaller_steps(step: OperatorStep) -> Iterator[OperatorStep]:
    yield from (less for less in without_parts(step, "changes") if less.changes)
    for number in step.asked:
        changes = tuple(
            tuple(change for change in each if change.state != number) for each in step.changes
        )
        asked = tuple(each for each in step.asked if each != number)
        yield replace(step, asked=asked, changes=changes)
    yield replace(step, is_changed_later=False, is_compressed=False)
