"""States that the context returns by name and type, without a descriptor."""

from datetime import timedelta

import pyarrow as pa
import pytest

from holdfast.backends import FunctionInitializationContext, OperatorStateBackend
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError

GROUPS = 8
KEY = pa.schema([("user", pa.string())])


def context(backend: KeyedStateBackend | None = None) -> FunctionInitializationContext:
    """A context of the only subtask, with the given keyed state."""
    return FunctionInitializationContext(
        operator_state_store=OperatorStateBackend(),
        restored_checkpoint_id=None,
        subtask_index=0,
        parallelism=1,
        input_schema=KEY,
        open_keyed_state=None if backend is None else lambda: backend,
    )


@pytest.fixture
def backend() -> KeyedStateBackend:
    """Keyed state with `ann` as its current key."""
    backend = KeyedStateBackend(ColumnarStateTables(KeyGroupRange(0, GROUPS - 1)), KEY, GROUPS)
    select(backend, "ann")
    return backend


def select(backend: KeyedStateBackend, user: str) -> None:
    backend.begin_batch(backend.keys([pa.array([user])]))
    backend.set_current_key(0)


def test_value_state_returns_its_default_until_it_is_updated(backend: KeyedStateBackend) -> None:
    state = context(backend).value_state("last", float, default=1.5)
    assert state.value() == 1.5
    state.update(2.5)
    assert state.value() == 2.5


def test_value_with_a_ttl_expires(backend: KeyedStateBackend) -> None:
    state = context(backend).value_state("last", int, ttl=timedelta(seconds=1))
    state.update(1)
    backend.advance_time(1_000)
    select(backend, "ann")
    assert state.value() is None


def test_lists_maps_and_sums_are_kept_by_key(backend: KeyedStateBackend) -> None:
    made = context(backend)
    items = made.keyed_list_state("items", str)
    seen = made.map_state("seen", str, int)
    total = made.reducing_state("total", "sum", pa.int64())
    items.add("pen")
    seen.put("pen", 2)
    total.add(3)
    total.add(4)
    assert (items.get(), seen.get("pen"), total.get()) == (["pen"], 2, 7)
    select(backend, "bob")
    assert (list(items.get()), seen.get("pen"), total.get()) == ([], None, None)


def test_operator_states_are_returned_by_name_and_type() -> None:
    made = context()
    made.list_state("rows", int).add(1)
    made.union_list_state("offsets", int).add(2)
    made.broadcast_state("rules", str, int).put("a", 3)
    store = made.operator_state_store
    assert store.registered_state_names() == {"rows", "offsets"}
    assert store.registered_broadcast_state_names() == {"rules"}
    assert made.list_state("rows", int).get() == [1]


def test_keyed_state_without_a_key_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="requires a key"):
        context().value_state("last", float)
