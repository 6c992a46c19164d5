"""Union list state: whenever the job is restored each subtask gets the elements of all."""

from typing import Any

import pytest
from contracts.elements import VALUES, list_state, restored, snapshot_of, union_state

from holdfast.backends import OperatorStateBackend, redistribute
from holdfast.errors import InvalidRequestError
from holdfast.locations import OperatorStateMode


@pytest.mark.parametrize(("element_type", "values"), VALUES.values(), ids=VALUES)
def test_a_restored_state_is_what_was_stored(element_type: Any, values: list[Any]) -> None:
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
    parts = redistribute([[snapshot_of(one)] for one in backends], parallelism)
    news = [OperatorStateBackend.restore(part) for part in parts]
    for one in news:
        assert union_state(one).get() == [0, 0, 1, -1, 2, -2]
    assert [n for one in news for n in list_state(one).get()] == [0, 1, 2]


def test_a_mode_is_kept_by_what_nobody_asks_for() -> None:
    backend = OperatorStateBackend()
    union_state(backend).add(1)
    list_state(backend).add(1)
    for _ in range(2):
        backend = restored(backend)
        modes = {name: one.mode for name, one in snapshot_of(backend).states.items()}
        assert modes == {"u": OperatorStateMode.UNION, "s": OperatorStateMode.SPLIT_DISTRIBUTE}


def test_the_message_names_both_kinds() -> None:
    backend = OperatorStateBackend()
    union_state(backend, "one")
    list_state(backend, "other")
    with pytest.raises(InvalidRequestError, match=r"'one' is a union list state, .* a list state"):
        list_state(backend, "one")
    with pytest.raises(
        InvalidRequestError, match=r"'other' is a list state, .* a union list state"
    ):
        union_state(backend, "other")
