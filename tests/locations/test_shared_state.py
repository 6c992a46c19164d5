"""Files that several checkpoints refer to: they go when, and only when, nobody does any more."""

import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequestError
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.coordination import SharedStateRegistry


def handle(name: str, size: int = 1) -> FileStateHandle:
    return FileStateHandle(f"memory:///x/job/shared/{name}", size)


@pytest.fixture
def deleted() -> list[FileStateHandle]:
    return []


@pytest.fixture
def registry(deleted: list[FileStateHandle]) -> SharedStateRegistry:
    return SharedStateRegistry(deleted.append)


A, B, C = handle("a"), handle("b"), handle("c")


def test_a_file_goes_once_no_checkpoint_refers_to_it(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    registry.register(B, 1)
    registry.register(A, 2)
    registry.unregister_unused(1)
    assert deleted == []
    registry.unregister_unused(2)
    assert deleted == [B]
    registry.unregister_unused(3)
    assert deleted == [B, A]


def test_a_file_is_deleted_once(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    for _ in range(3):
        registry.unregister_unused(2)
    assert deleted == [A]


def test_an_equal_handle_is_the_one_that_was_registered_first(
    registry: SharedStateRegistry,
) -> None:
    first = handle("a")
    assert registry.register(first, 1) is first
    assert registry.register(handle("a"), 2) is first
    assert registry.reuse(first.uri, 3) is first


def test_an_older_checkpoint_that_registers_late_takes_nothing_back(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 5)
    registry.register(A, 3)
    registry.reuse(A.uri, 1)
    registry.unregister_unused(5)
    assert deleted == []


def test_another_handle_of_the_same_file_is_refused_and_changes_nothing(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    with pytest.raises(InvalidRequestError, match="another length or checksum") as caught:
        registry.register(handle("a", 2), 9)
    assert caught.value.location == A.uri
    registry.unregister_unused(2)
    assert deleted == [A]


def test_a_file_that_nobody_knows_cannot_be_used_again(registry: SharedStateRegistry) -> None:
    with pytest.raises(InvalidRequestError, match="not known"):
        registry.reuse(A.uri, 1)
    registry.register(A, 1)
    registry.unregister_unused(2)
    with pytest.raises(InvalidRequestError, match="not known"):
        registry.reuse(A.uri, 2)


@pytest.mark.parametrize("lowest", [-1, 0, 1, -sys.maxsize])
def test_an_id_below_all_is_nothing_to_it(
    registry: SharedStateRegistry, deleted: list[FileStateHandle], lowest: int
) -> None:
    registry.register(A, 1)
    assert registry.unregister_unused(lowest) == frozenset()
    assert deleted == []


@pytest.mark.parametrize("lowest", [-1, 0, 7, 2**63 - 1])
def test_an_empty_registry_has_nothing_to_delete(
    registry: SharedStateRegistry, deleted: list[FileStateHandle], lowest: int
) -> None:
    assert registry.unregister_unused(lowest) == frozenset()
    assert deleted == []


def test_an_id_above_all_deletes_all(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    registry.register(B, 7)
    registry.unregister_unused(2**63 - 1)
    assert deleted == [A, B]


def test_what_was_not_claimed_is_never_deleted(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 5)
    registry.protect_up_to(5)
    registry.register(B, 6)
    registry.register(A, 6)  # somebody else's, used for a while
    registry.unregister_unused(100)
    assert deleted == [B]


def test_protection_is_not_lowered(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.protect_up_to(5)
    registry.protect_up_to(2)
    registry.register(A, 4)
    registry.unregister_unused(100)
    assert deleted == []


def test_a_file_in_a_checkpoints_own_directory_holds_that_and_goes_with_it(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1, lies_in_checkpoint=True)
    registry.register(A, 2)
    assert registry.unregister_unused(2) == {1}
    assert registry.unregister_unused(3) == frozenset()
    assert deleted == []


def test_nothing_is_held_by_what_is_not_older(registry: SharedStateRegistry) -> None:
    registry.register(A, 1, lies_in_checkpoint=True)
    assert registry.unregister_unused(1) == frozenset()


def test_a_closed_registry_refuses_everything_and_deletes_nothing(
    registry: SharedStateRegistry, deleted: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    registry.close()
    registry.close()
    for call in (
        lambda: registry.register(B, 2),
        lambda: registry.reuse(A.uri, 2),
        lambda: registry.unregister_unused(9),
    ):
        with pytest.raises(InvalidRequestError, match="closed"):
            call()
    assert deleted == []


def test_a_deletion_may_use_the_registry() -> None:
    """It is called without the lock."""

    def delete(_: FileStateHandle) -> None:
        using.register(C, 9)

    using = SharedStateRegistry(delete)
    using.register(A, 1)
    using.unregister_unused(2)
    assert using.reuse(C.uri, 9) == C


@dataclass
class Model:
    uses: dict[str, list[int]] = field(default_factory=dict)
    in_directory: dict[str, bool] = field(default_factory=dict)
    protected: int = -1


steps = st.one_of(
    st.tuples(st.just("register"), st.sampled_from("abcdef"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("reuse"), st.sampled_from("abcdef"), st.integers(0, 12)),
    st.tuples(st.just("unused"), st.integers(-1, 14)),
    st.tuples(st.just("protect"), st.integers(-1, 4)),
)


@given(done=st.lists(steps, max_size=40))
def test_what_is_reachable_stays_and_all_else_goes(done: list[tuple[str, ...]]) -> None:
    deleted: list[str] = []
    registry = SharedStateRegistry(lambda one: deleted.append(one.uri))
    model = Model()
    for name, *arguments in done:
        if name == "register":
            key, number, inside = str(arguments[0]), int(arguments[1]), bool(arguments[2])
            registry.register(handle(key), number, lies_in_checkpoint=inside)
            model.uses.setdefault(key, []).append(number)
            model.in_directory.setdefault(key, inside)
        elif name == "reuse":
            key, number = str(arguments[0]), int(arguments[1])
            if key in model.uses:
                registry.reuse(handle(key).uri, number)
                model.uses[key].append(number)
            else:
                with pytest.raises(InvalidRequestError):
                    registry.reuse(handle(key).uri, number)
        elif name == "protect":
            registry.protect_up_to(int(arguments[0]))
            model.protected = max(model.protected, int(arguments[0]))
        else:
            lowest = int(arguments[0])
            deleted.clear()
            held = registry.unregister_unused(lowest)
            gone = {
                key
                for key, uses in model.uses.items()
                if max(uses) < lowest and uses[0] > model.protected
            }
            expected = {handle(key).uri for key in gone if not model.in_directory[key]}
            assert sorted(deleted) == sorted(expected)
            for key in gone:
                del model.uses[key]
                del model.in_directory[key]
            assert held == {
                uses[0]
                for key, uses in model.uses.items()
                if model.in_directory[key] and uses[0] < lowest
            }
