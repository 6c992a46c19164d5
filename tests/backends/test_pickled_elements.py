"""Elements that are pickled, and pickles that are not loaded."""

from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import Point, broadcast_state, list_state, restore_from, snapshot_of

from holdfast.backends import OperatorStateBackend, Pickled
from holdfast.errors import CheckpointCorruptedError, ResourceExhaustedError, StateMigrationError


class Bomb:
    """Leaves a mark where its pickle is loaded."""

    def __reduce__(self) -> Any:
        return _explode, ()


LOADED: list[str] = []


def _explode() -> None:
    LOADED.append("loaded")


class Greedy:
    """Needs more memory to be loaded than there is."""

    def __reduce__(self) -> Any:
        return _fill_memory, ()


def _fill_memory() -> None:
    raise MemoryError


class TestPickle:
    def test_element_larger_than_memory_is_not_damage(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Pickled()).add(Greedy())
        with pytest.raises(ResourceExhaustedError):
            list_state(restore_from(backend), "s", Pickled()).get()

    def test_pickle_is_only_loaded_on_request(self) -> None:
        LOADED.clear()
        backend = OperatorStateBackend()
        list_state(backend, "s", Pickled()).add(Bomb())
        list_state(backend, "other").add(1)
        broadcast_state(backend, "b", (int, Pickled()), {1: Bomb()})
        for _ in range(3):
            backend = restore_from(backend)
            assert backend.registered_state_names() == {"s", "other"}
            assert backend.registered_broadcast_state_names() == {"b"}
            for wanted in (int, bytes, pa.large_binary(), Point, Any):
                with pytest.raises(StateMigrationError, match="'s'"):
                    list_state(backend, "s", wanted)
                with pytest.raises(StateMigrationError, match="'b'"):
                    broadcast_state(backend, "b", (int, wanted))
        assert LOADED == []
        list_state(backend, "s", Pickled()).get()
        assert LOADED == ["loaded"]

    def test_requested_pickle_is_loaded_on_first_access(self) -> None:
        LOADED.clear()
        backend = OperatorStateBackend()
        list_state(backend, "s", Pickled()).add(Bomb())
        backend = restore_from(backend)
        state = list_state(backend, "s", Pickled())
        assert len(state) == 1
        snapshot_of(backend)
        assert LOADED == []

    def test_missing_class_is_an_error_only_on_read(self) -> None:
        backend = OperatorStateBackend()
        globals()["Gone"] = type("Gone", (), {"__module__": __name__, "__qualname__": "Gone"})
        list_state(backend, "s", Pickled()).add(globals()["Gone"]())
        list_state(backend, "other").add(1)
        del globals()["Gone"]
        for _ in range(3):
            backend = restore_from(backend)
        assert list_state(backend, "other").get() == [1]
        with pytest.raises(CheckpointCorruptedError, match="Gone"):
            list_state(backend, "s", Pickled()).get()
