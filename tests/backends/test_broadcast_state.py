"""Broadcast state: a map that is the same in every subtask."""

import math
from collections import ChainMap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.elements import (
    Node,
    Point,
    broadcast_state,
    list_state,
    memory_factory,
    restore_from,
    snapshot_of,
)

from holdfast.backends import OperatorStateBackend, Pickled
from holdfast.backends.assignment import redistribute
from holdfast.errors import InvalidRequestError


@dataclass(unsafe_hash=True)
class Mutable:
    """A key that can be looked up, and changed nevertheless."""

    number: int


@dataclass(eq=False)
class Unlike:
    """A key that is found by its identity."""

    number: int


def contents(backend: OperatorStateBackend, types: tuple[Any, Any] = (int, int)) -> dict[Any, Any]:
    return dict(broadcast_state(backend, types=types).entries())


class TestMap:
    def test_entries_are_put_replaced_and_removed(self) -> None:
        state = broadcast_state(OperatorStateBackend(), types=(str, int))
        assert (len(state), list(state), state.get("a"), state.get("a", 5)) == (0, [], None, 5)
        state.put("a", 1)
        state.put("b", 2)
        state.put("a", 3)
        assert dict(state.entries()) == {"a": 3, "b": 2}
        assert list(state) == ["a", "b"]
        assert (state.get("a"), state.contains("a"), "c" in state, len(state)) == (
            3,
            True,
            False,
            2,
        )
        state.put_all({"c": 4, "a": 5})
        state.put_all({})
        state.remove("b")
        state.remove("not there")
        assert dict(state.entries()) == {"a": 5, "c": 4}
        state.clear()
        assert len(state) == 0
        state.put("d", 6)
        assert dict(state.entries()) == {"d": 6}

    def test_any_mapping_may_be_put(self) -> None:
        state = broadcast_state(OperatorStateBackend())
        state.put_all(ChainMap({1: 2}, {1: 3, 4: 5}))
        assert dict(state.entries()) == {1: 2, 4: 5}

    @pytest.mark.parametrize(
        "entries",
        [None, [(1, 2)], 5, iter(())],
        ids=["nothing", "pairs", "a number", "an iterator"],
    )
    def test_nothing_else_may_be(self, entries: Any) -> None:
        state = broadcast_state(OperatorStateBackend(), entries={1: 1})
        with pytest.raises(InvalidRequestError, match="'b'"):
            state.put_all(entries)
        assert dict(state.entries()) == {1: 1}

    def test_immutable_entries_show_changes_and_allow_none(self) -> None:
        state = broadcast_state(OperatorStateBackend(), entries={1: 2})
        view = state.immutable_entries()
        assert dict(view) == {1: 2}
        with pytest.raises(TypeError):
            view[1] = 3  # type: ignore[index]
        state.put(3, 4)
        assert dict(view) == {1: 2, 3: 4}

    def test_entries_keep_their_order(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, entries={n: -n for n in (5, 3, 9, 1)})
        assert list(broadcast_state(restore_from(backend))) == [5, 3, 9, 1]

    @pytest.mark.parametrize(
        ("key", "value"),
        [(None, 1), (1, None), ("1", 1), (1, "1"), (2**63, 1), (1, 2**63), (1.5, 1), ([1], 1)],
        ids=repr,
    )
    def test_refused_broadcast_entry_changes_nothing(self, key: Any, value: Any) -> None:
        backend = OperatorStateBackend()
        state = broadcast_state(backend, entries={1: 2})
        before = snapshot_of(backend)
        with pytest.raises(InvalidRequestError, match="'b'"):
            state.put(key, value)
        if not isinstance(key, list):
            with pytest.raises(InvalidRequestError, match="'b'"):
                state.put_all({1: 5, 6: 7, key: value})
        assert dict(state.entries()) == {1: 2}
        assert snapshot_of(backend).states == before.states

    @pytest.mark.parametrize(
        ("key_type", "key"),
        [(Node, Node(1)), (pa.list_(pa.int64()), [1]), (dict[str, int], {"a": 1})],
    )
    def test_unhashable_broadcast_key_is_refused(self, key_type: Any, key: Any) -> None:
        state = broadcast_state(OperatorStateBackend(), types=(key_type, int))
        with pytest.raises(InvalidRequestError, match="looked up"):
            state.put(key, 1)
        assert len(state) == 0

    @pytest.mark.parametrize("key_type", [Unlike, Pickled(Unlike)])
    def test_broadcast_key_unequal_to_its_copy_is_refused(self, key_type: Any) -> None:
        state = broadcast_state(OperatorStateBackend(), types=(key_type, int))
        with pytest.raises(InvalidRequestError, match="differs from its own copy"):
            state.put(Unlike(1), 1)
        with pytest.raises(InvalidRequestError, match="differs from its own copy"):
            state.put_all({Unlike(1): 1})
        assert len(state) == 0

    @pytest.mark.parametrize("key_type", [float, pa.float32(), Pickled(float), tuple[float, int]])
    def test_nan_as_broadcast_key_is_refused(self, key_type: Any) -> None:
        key = (math.nan, 1) if key_type == tuple[float, int] else math.nan
        state = broadcast_state(OperatorStateBackend(), types=(key_type, int))
        with pytest.raises(InvalidRequestError, match="differs from its own copy"):
            state.put(key, 1)
        with pytest.raises(InvalidRequestError, match="differs from its own copy"):
            state.put_all({key: 1})
        assert len(state) == 0

    def test_numbers_of_numpy_are_numbers(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, types=(int, float)).put(np.int64(1), np.float64(1.5))
        assert contents(restore_from(backend), (int, float)) == {1: 1.5}


class TestSnapshots:
    def test_later_change_does_not_show(self) -> None:
        backend = OperatorStateBackend()
        state = broadcast_state(backend, entries={1: 2})
        first = snapshot_of(backend)
        state.put(1, 3)
        second = snapshot_of(backend)
        state.clear()
        third = snapshot_of(backend)
        restored = [
            contents(OperatorStateBackend.restore([handle])) for handle in (first, second, third)
        ]
        assert restored == [{1: 2}, {1: 3}, {}]

    def test_object_changed_after_it_was_put_changes_nothing(self) -> None:
        backend = OperatorStateBackend()
        state = broadcast_state(backend, types=(int, Node))
        node = Node(1)
        state.put(1, node)
        for changed in (node, state.get(1)):
            changed.value = "no number"
            assert state.get(1) == Node(1)
            assert contents(restore_from(backend), (int, Node)) == {1: Node(1)}

    @pytest.mark.parametrize("key_type", [Mutable, Pickled(Mutable)])
    @pytest.mark.parametrize("is_restored", [False, True])
    def test_key_changed_after_it_was_put_changes_nothing(
        self,
        key_type: Any,
        is_restored: bool,  # noqa: FBT001
    ) -> None:
        backend = OperatorStateBackend()
        key = Mutable(1)
        broadcast_state(backend, types=(key_type, int)).put(key, 5)
        broadcast_state(backend, types=(key_type, int)).put_all({Mutable(2): 6, Mutable(3): 7})
        if is_restored:
            backend = restore_from(backend)
        state = broadcast_state(backend, types=(key_type, int))
        state.remove(Mutable(3))
        snapshot = backend.snapshot(memory_factory())
        for seen in (key, *state, *dict(state.entries()), *state.immutable_entries()):
            seen.number = 99
        (handle,) = snapshot.run().state.managed_operator
        expected = {Mutable(1): 5, Mutable(2): 6}
        assert contents(OperatorStateBackend.restore([handle]), (key_type, int)) == expected
        assert dict(state.entries()) == dict(state.immutable_entries()) == expected
        assert list(state) == list(expected)
        assert (state.get(Mutable(1)), state.get(Mutable(99))) == (5, None)
        state.put(Mutable(1), 8)
        assert contents(restore_from(backend), (key_type, int)) == {**expected, Mutable(1): 8}

    def test_buffer_changed_after_it_was_put_changes_no_snapshot(self) -> None:
        backend = OperatorStateBackend()
        content = bytearray(b"old")
        state = broadcast_state(backend, types=(int, bytes))
        state.put(1, content)
        state.put_all({2: memoryview(content)})
        snapshot = backend.snapshot(memory_factory())
        content[:] = b"new"
        (handle,) = snapshot.run().state.managed_operator
        assert contents(OperatorStateBackend.restore([handle]), (int, bytes)) == {
            1: b"old",
            2: b"old",
        }

    def test_scalars_of_several_types_are_one_type(self) -> None:
        backend = OperatorStateBackend()
        state = broadcast_state(backend, types=(str, int))
        state.put("a", pa.scalar(1, pa.int32()))
        state.put(pa.scalar("b"), pa.scalar(2, pa.int64()))
        assert state.get("b") == state.get(pa.scalar("b")) == 2
        for _ in range(2):
            assert contents(restore_from(backend), (str, int)) == {"a": 1, "b": 2}

    def test_restored_entries_are_read_on_first_access(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, types=(int, Point), entries={1: Point(1)})
        backend = restore_from(backend)
        state = broadcast_state(backend, types=(int, Point))
        columns = state.capture()()
        snapshot_of(backend)
        assert state.capture()() is columns
        assert state.get(1) == Point(1)
        assert state.capture()() is columns  # looking changes nothing
        state.remove(7)
        assert state.capture()() is columns
        state.remove(1)
        assert state.capture()() is not columns


class TestRestore:
    def test_entries_of_later_handles_replace_those_before(self) -> None:
        backends = [OperatorStateBackend() for _ in range(3)]
        for backend, entries in zip(backends, ({1: 1, 2: 1}, {}, {2: 2, 3: 2}), strict=True):
            broadcast_state(backend, entries=entries)
        assert contents(restore_from(*backends)) == {1: 1, 2: 2, 3: 2}
        assert contents(restore_from(*backends[::-1])) == {1: 1, 2: 1, 3: 2}
        assert contents(restore_from(restore_from(*backends))) == {1: 1, 2: 2, 3: 2}

    @pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
    def test_every_subtask_gets_one_of_the_copies(self, parallelism: int) -> None:
        backends = [OperatorStateBackend() for _ in range(3)]
        for backend in backends:
            broadcast_state(backend, entries={1: 2, 3: 4})
            list_state(backend).add(1)
        handles = [[snapshot_of(backend)] for backend in backends]
        for _ in range(2):
            parts = redistribute(handles, parallelism)
            news = [OperatorStateBackend.restore(part) for part in parts]
            assert [contents(backend) for backend in news] == [{1: 2, 3: 4}] * parallelism
            assert sum(len(list_state(backend)) for backend in news) == 3
            handles = [[snapshot_of(backend)] for backend in news]

    def test_map_does_not_grow_over_a_hundred_checkpoints(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, entries=dict.fromkeys(range(100), 1))
        sizes = set()
        for n in range(100):
            broadcast_state(backend).put(n, n)
            handle = snapshot_of(backend)
            sizes.add(handle.size)
            backend = OperatorStateBackend.restore([handle])
        assert len(sizes) == 1
        assert contents(backend) == {n: n for n in range(100)}
