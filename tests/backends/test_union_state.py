"""Union list state: whenever the job is restored each subtask gets the elements of all."""

from collections.abc import Iterable
from typing import Any

import pytest
from contracts.elements import (
    VALUES,
    broadcast_state,
    list_state,
    memory_factory,
    restore_from,
    snapshot_of,
    union_state,
)

from holdfast.backends import OperatorStateBackend
from holdfast.backends.assignment import redistribute
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode


@pytest.mark.parametrize(("element_type", "values"), VALUES.values(), ids=VALUES)
def test_restored_state_equals_the_stored_one(element_type: Any, values: list[Any]) -> None:
    backend = OperatorStateBackend()
    state = union_state(backend, "u", element_type)
    state.add_all(values)
    state.add(values[0])
    handle = snapshot_of(backend)
    assert handle.states["u"].mode is OperatorStateMode.UNION
    backend = OperatorStateBackend.restore([handle])
    assert union_state(backend, "u", element_type).get() == [*values, values[0]]
    assert backend.registered_state_names() == {"u"}
    assert backend.registered_broadcast_state_names() == frozenset()


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_every_subtask_gets_all_elements(parallelism: int) -> None:
    backends = [OperatorStateBackend() for _ in range(3)]
    for number, backend in enumerate(backends):
        union_state(backend).add_all([number, -number])
        list_state(backend).add(number)
    parts = redistribute(
        [[snapshot_of(restored_backend)] for restored_backend in backends], parallelism
    )
    news = [OperatorStateBackend.restore(part) for part in parts]
    for subtask_backend in news:
        assert union_state(subtask_backend).get() == [0, 0, 1, -1, 2, -2]
    assert [n for subtask_backend in news for n in list_state(subtask_backend).get()] == [0, 1, 2]


def test_state_not_requested_keeps_its_mode() -> None:
    backend = OperatorStateBackend()
    union_state(backend).add(1)
    list_state(backend).add(1)
    for _ in range(2):
        backend = restore_from(backend)
        modes = {name: state.mode for name, state in snapshot_of(backend).states.items()}
        assert modes == {"u": OperatorStateMode.UNION, "s": OperatorStateMode.SPLIT_DISTRIBUTE}


Stored = list[tuple[OperatorStateHandle, ...]]

PARALLELISMS = {
    "unchanged": [4] * 7,
    "up": [4, 5, 7],
    "down": [3, 2, 1],
    "down and up": [1, 4, 2, 5, 3, 4],
}


def checkpoint(backends: Iterable[OperatorStateBackend]) -> Stored:
    """The stored state of each subtask of a job."""
    return [backend.snapshot(memory_factory()).run().state.managed_operator for backend in backends]


def restart_job(stored: Stored, parallelism: int) -> list[OperatorStateBackend]:
    return [OperatorStateBackend.restore(part) for part in redistribute(stored, parallelism)]


def elements_stored(stored: Stored, name: str) -> int:
    handles = (handle for of_subtask in stored for handle in of_subtask)
    return sum(handle.states[name].count for handle in handles if name in handle.states)


def first_run() -> Stored:
    """Four subtasks, each with an element of 1 KB in a union list, and with other states."""
    backends = [OperatorStateBackend() for _ in range(4)]
    for number, backend in enumerate(backends):
        union_state(backend, "u", str).add(str(number) * 1024)
        union_state(backend, "empty", int)
        list_state(backend, "s").add_all([number, number + 10])
        broadcast_state(backend, entries={1: 2})
    return checkpoint(backends)


ELEMENTS = [digit * 1024 for digit in "0123"]


class TestNotRequested:
    @pytest.mark.parametrize("parallelisms", PARALLELISMS.values(), ids=PARALLELISMS)
    def test_it_is_stored_once_after_any_number_of_restarts(self, parallelisms: list[int]) -> None:
        stored = first_run()
        for parallelism in parallelisms:
            stored = checkpoint(restart_job(stored, parallelism))
            for _ in range(2):  # batches that resume from the stored state
                stored = checkpoint(map(OperatorStateBackend.restore, stored))
            assert elements_stored(stored, "u") == 4
            assert elements_stored(stored, "s") == 8
            assert elements_stored(stored, "b") == parallelism
            assert any("empty" in handle.states for of_subtask in stored for handle in of_subtask)

    @pytest.mark.parametrize("parallelisms", PARALLELISMS.values(), ids=PARALLELISMS)
    def test_request_after_a_later_restart_gets_all_elements(self, parallelisms: list[int]) -> None:
        stored = first_run()
        for parallelism in parallelisms:
            stored = checkpoint(restart_job(stored, parallelism))
        backends = restart_job(stored, 3)
        for backend in backends:
            assert sorted(union_state(backend, "u", str).get()) == ELEMENTS
            assert union_state(backend, "empty", int).get() == []
            assert dict(broadcast_state(backend).entries()) == {1: 2}
        elements = sorted(n for backend in backends for n in list_state(backend).get())
        assert elements == [0, 1, 2, 3, 10, 11, 12, 13]

    def test_unchanged_parallelism_carries_over_own_elements(self) -> None:
        stored = first_run()
        for _ in range(3):
            stored = checkpoint(restart_job(stored, 4))
        backends = map(OperatorStateBackend.restore, stored)
        assert [union_state(backend, "u", str).get() for backend in backends] == [
            [element] for element in ELEMENTS
        ]

    def test_subtask_without_a_part_stores_nothing(self) -> None:
        stored = first_run()[:1]
        assert [len(handles) for handles in checkpoint(restart_job(stored, 2))] == [1, 1]
        only_union = OperatorStateBackend()
        union_state(only_union).add(1)
        stored = checkpoint(restart_job(checkpoint([only_union]), 3))
        assert [len(handles) for handles in stored] == [1, 0, 0]

    def test_elements_of_the_only_requesting_subtask_replace_its_part(self) -> None:
        stored = first_run()
        for restart in range(3):
            backends = restart_job(stored, 4)
            union_state(backends[0], "u", str).update([f"run {restart}"])
            stored = checkpoint(backends)
            elements = union_state(restart_job(stored, 4)[1], "u", str).get()
            assert elements == [f"run {restart}", *ELEMENTS[1:]]


def test_message_names_both_kinds() -> None:
    backend = OperatorStateBackend()
    union_state(backend, "one")
    list_state(backend, "other")
    with pytest.raises(InvalidRequestError, match=r"'one' is a union list state, .* a list state"):
        list_state(backend, "one")
    with pytest.raises(
        InvalidRequestError, match=r"'other' is a list state, .* a union list state"
    ):
        union_state(backend, "other")
