"""Files of several checkpoints: each is deleted once no checkpoint refers to it, and not before."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequestError
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.coordination import SharedStateRegistry


def handle(name: str, size: int = 1) -> FileStateHandle:
    return FileStateHandle(f"memory:///x/job/shared/{name}", size)


@pytest.fixture
def deletions() -> list[FileStateHandle]:
    return []


@pytest.fixture
def registry(deletions: list[FileStateHandle]) -> SharedStateRegistry:
    return SharedStateRegistry(deletions.append)


A, B, C = handle("a"), handle("b"), handle("c")


def test_file_is_deleted_once_no_checkpoint_refers_to_it(
    registry: SharedStateRegistry, deletions: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    registry.register(B, 1)
    registry.register(A, 2)
    registry.unregister_unused(1)
    assert deletions == []
    registry.unregister_unused(2)
    assert deletions == [B]
    registry.unregister_unused(3)
    assert deletions == [B, A]


def test_file_is_deleted_once(
    registry: SharedStateRegistry, deletions: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    for _ in range(3):
        registry.unregister_unused(2)
    assert deletions == [A]


def test_late_registration_of_an_older_checkpoint_changes_nothing(
    registry: SharedStateRegistry, deletions: list[FileStateHandle]
) -> None:
    registry.register(A, 5)
    registry.register(A, 3)
    registry.unregister_unused(5)
    assert deletions == []


def test_another_handle_of_the_same_file_is_refused_and_changes_nothing(
    registry: SharedStateRegistry, deletions: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    with pytest.raises(InvalidRequestError, match="another length or checksum") as caught:
        registry.register(handle("a", 2), 9)
    assert caught.value.location == A.uri
    registry.unregister_unused(2)
    assert deletions == [A]


@pytest.mark.parametrize("lowest", [-1, 0, 1, -sys.maxsize])
def test_id_below_all_deletes_nothing(
    registry: SharedStateRegistry, deletions: list[FileStateHandle], lowest: int
) -> None:
    registry.register(A, 1)
    registry.unregister_unused(lowest)
    assert deletions == []


@pytest.mark.parametrize("lowest", [-1, 0, 7, 2**63 - 1])
def test_empty_registry_has_nothing_to_delete(
    registry: SharedStateRegistry, deletions: list[FileStateHandle], lowest: int
) -> None:
    registry.unregister_unused(lowest)
    assert deletions == []


def test_id_above_all_deletes_all(
    registry: SharedStateRegistry, deletions: list[FileStateHandle]
) -> None:
    registry.register(A, 1)
    registry.register(B, 7)
    registry.unregister_unused(2**63 - 1)
    assert deletions == [A, B]


def test_deletion_may_use_the_registry() -> None:
    """The registry calls it without its lock."""

    def delete(_: FileStateHandle) -> None:
        using.register(C, 9)

    using = SharedStateRegistry(delete)
    using.register(A, 1)
    using.unregister_unused(2)
    with pytest.raises(InvalidRequestError, match="another length"):
        using.register(handle("c", 2), 9)


steps = st.one_of(
    st.tuples(st.just("register"), st.sampled_from("abcdef"), st.integers(0, 12)),
    st.tuples(st.just("unused"), st.integers(-1, 14)),
)


@given(done=st.lists(steps, max_size=40))
def test_reachable_files_stay_and_all_others_are_deleted(done: list[tuple[str, ...]]) -> None:
    deletions: list[str] = []
    registry = SharedStateRegistry(lambda handle: deletions.append(handle.uri))
    last_uses: dict[str, int] = {}
    for name, *arguments in done:
        if name == "register":
            key, number = str(arguments[0]), int(arguments[1])
            registry.register(handle(key), number)
            last_uses[key] = max(number, last_uses.get(key, number))
        else:
            lowest = int(arguments[0])
            deletions.clear()
            registry.unregister_unused(lowest)
            gone = {key for key, last_use in last_uses.items() if last_use < lowest}
            assert sorted(deletions) == sorted(handle(key).uri for key in gone)
            for key in gone:
                del last_uses[key]
