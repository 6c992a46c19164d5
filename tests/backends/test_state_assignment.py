import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.backends.assignment import (
    AssignedOperator,
    OperatorSettings,
    assign,
    redistribute,
    redistribute_raw,
)
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask, SubtaskStatistics
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
)

STATISTICS = SubtaskStatistics(1, 1, 100, 1.0, 1.0, 1.0, 1.0)


def handle(stream: str, count: int = 2) -> OperatorStateHandle:
    partitions = StatePartitions(OperatorStateMode.SPLIT_DISTRIBUTE, 0, 100, 0, count)
    return OperatorStateHandle({"s": partitions}, FileStateHandle(stream, 100))


def checkpoint(**operators: StoredOperator) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        checkpoint_id=7,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators=operators,
    )


def operator(parallelism: int, max_parallelism: int = 128) -> StoredOperator:
    """An operator all of whose subtasks have state."""
    subtasks = {
        i: StoredSubtask((handle(f"h{i}"),), statistics=STATISTICS) for i in range(parallelism)
    }
    return StoredOperator(parallelism, max_parallelism, subtasks)


EMPTY = StoredOperator(2, 128, {0: StoredSubtask(), 1: StoredSubtask(statistics=STATISTICS)})


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_operator_state_is_redistributed(parallelism: int) -> None:
    raw = RawOperatorStateHandle(((0, 4), (4, 4), (8, 4)), FileStateHandle("raw", 12))
    stored = StoredOperator(
        3,
        128,
        {
            0: StoredSubtask((handle("h0", 5),), statistics=STATISTICS),
            2: StoredSubtask((handle("h2", 1),), raw_operator=(raw,)),
        },
    )
    assigned = assign(checkpoint(op=stored), {"op": OperatorSettings(parallelism)})["op"]
    managed = redistribute([[handle("h0", 5)], [], [handle("h2", 1)]], parallelism)
    raws = redistribute_raw([[], [], [raw]], parallelism)
    assert assigned.subtasks == tuple(
        StoredSubtask(managed[i], raw_operator=raws[i]) for i in range(parallelism)
    )


def test_at_an_unchanged_parallelism_each_subtask_gets_its_own_state() -> None:
    assigned = assign(checkpoint(op=operator(3)), {"op": OperatorSettings(3)})["op"]
    assert [subtask.managed_operator for subtask in assigned.subtasks] == [
        (handle(f"h{i}"),) for i in range(3)
    ]


@pytest.mark.parametrize("kind", ["managed_keyed", "raw_keyed"])
@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, [[("h0", 0, 4), ("h1", 5, 9)]]),
        (2, [[("h0", 0, 4)], [("h1", 5, 9)]]),
        (3, [[("h0", 0, 3)], [("h0", 4, 4), ("h1", 5, 6)], [("h1", 7, 9)]]),
    ],
)
def test_key_groups_go_to_their_owner(kind: str, parallelism: int, expected: list[Any]) -> None:
    places = tuple((i, 1) for i in range(5))
    handles = [
        KeyGroupsStateHandle(ends, places, FileStateHandle(f"h{i}", 5))
        for i, ends in enumerate([(0, 4), (5, 9)])
    ]
    subtasks = {
        i: replace(StoredSubtask(), **{kind: (handle,)}) for i, handle in enumerate(handles)
    }
    stored = checkpoint(op=StoredOperator(2, 10, subtasks))
    assigned = assign(stored, {"op": OperatorSettings(parallelism)})["op"]
    assigned_groups = [
        [(handle.stream.uri, *handle.key_groups) for handle in getattr(subtask, kind)]
        for subtask in assigned.subtasks
    ]
    assert assigned_groups == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (OperatorSettings(3), 128),
        (OperatorSettings(100), 256),
        (OperatorSettings(3, 5), 5),
    ],
)
@pytest.mark.parametrize("stored", [{}, {"op": EMPTY}], ids=["unknown", "without state"])
def test_operator_without_stored_state_starts_empty(
    settings: OperatorSettings, expected: int, stored: dict[str, StoredOperator]
) -> None:
    assigned = assign(checkpoint(**stored), {"op": settings})
    assert assigned == {"op": AssignedOperator(expected, (StoredSubtask(),) * settings.parallelism)}


class TestMaxParallelism:
    @pytest.mark.parametrize("parallelism", [1, 100, 300])
    def test_it_is_the_checkpoints_if_none_is_asked_for(self, parallelism: int) -> None:
        stored = checkpoint(op=operator(2, 300))
        assert assign(stored, {"op": OperatorSettings(parallelism)})["op"].max_parallelism == 300

    def test_same_max_parallelism_may_be_requested(self) -> None:
        stored = checkpoint(op=operator(2, 300))
        assert assign(stored, {"op": OperatorSettings(3, 300)})["op"].max_parallelism == 300

    def test_another_one_is_refused(self) -> None:
        stored = checkpoint(op=operator(2, 300))
        with pytest.raises(InvalidRequestError, match=r"'op'.* 128.* 300.*leave it out"):
            assign(stored, {"op": OperatorSettings(2, 128)})

    @pytest.mark.parametrize("max_parallelism", [None, 256])
    def test_higher_parallelism_is_refused(self, max_parallelism: int | None) -> None:
        stored = checkpoint(op=operator(2, 128))
        assert len(assign(stored, {"op": OperatorSettings(128)})["op"].subtasks) == 128
        with pytest.raises(InvalidRequestError, match=r"'op'.* 129.* 128; reduce"):
            assign(stored, {"op": OperatorSettings(129, max_parallelism)})

    @pytest.mark.parametrize("numbers", [(0,), (32769,), (1, 0), (1, 32769), (129, 128)])
    def test_numbers_out_of_bounds_are_refused(self, numbers: tuple[int, ...]) -> None:
        with pytest.raises(InvalidRequestError, match="is not between 1 and"):
            OperatorSettings(*numbers)


class TestNonRestoredState:
    stored = checkpoint(kept=operator(2), gone=operator(1), lost=operator(2), empty=EMPTY)

    def test_it_is_refused_by_name(self) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            assign(self.stored, {"kept": OperatorSettings(2)})
        assert "['gone', 'lost']" in str(caught.value)
        assert "allow_non_restored_state" in str(caught.value)

    def test_non_restored_state_is_skipped_if_allowed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        wanted = {"kept": OperatorSettings(2), "new": OperatorSettings(1)}
        with caplog.at_level(logging.WARNING):
            assigned = assign(self.stored, wanted, allow_non_restored_state=True)
        assert list(assigned) == ["kept", "new"]
        assert "['gone', 'lost']" in caplog.text

    def test_operator_without_state_may_go(self, caplog: pytest.LogCaptureFixture) -> None:
        assert assign(checkpoint(empty=EMPTY), {}) == {}
        assert not caplog.records

    @pytest.mark.parametrize(
        "state",
        [
            {"managed_operator": (handle("h0", 0),)},
            {"raw_operator": (RawOperatorStateHandle((), FileStateHandle("h0", 0)),)},
            {"managed_keyed": (KeyGroupsStateHandle((0, 0), (None,), FileStateHandle("h0", 0)),)},
            {"raw_keyed": (KeyGroupsStateHandle((0, 0), (None,), FileStateHandle("h0", 0)),)},
        ],
        ids=lambda state: next(iter(state)),
    )
    def test_any_handle_is_state(self, state: dict[str, Any]) -> None:
        stored = checkpoint(gone=StoredOperator(1, 128, {0: StoredSubtask(**state)}))
        with pytest.raises(InvalidRequestError, match="gone"):
            assign(stored, {})


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 9), st.integers(9, 99))),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)),
)
def test_every_subtask_of_every_operator_gets_an_assignment(
    stored: dict[str, tuple[int, int]], wanted: dict[str, int]
) -> None:
    metadata = checkpoint(**{uid: operator(*numbers) for uid, numbers in stored.items()})
    settings = {uid: OperatorSettings(parallelism) for uid, parallelism in wanted.items()}
    assigned = assign(metadata, settings, allow_non_restored_state=True)
    assert {
        uid: len(assigned_operator.subtasks) for uid, assigned_operator in assigned.items()
    } == wanted
    for uid, state_of_operator in assigned.items():
        assert all(isinstance(subtask, StoredSubtask) for subtask in state_of_operator.subtasks)
        elements = [
            part.states["s"].count
            for subtask in state_of_operator.subtasks
            for part in subtask.managed_operator
        ]
        assert sum(elements) == (2 * stored[uid][0] if uid in stored else 0)
        assert state_of_operator.max_parallelism == (stored[uid][1] if uid in stored else 128)


@pytest.mark.parametrize("index", [-1, 2])
def test_state_of_a_subtask_beyond_the_parallelism_is_refused(index: int) -> None:
    stored = operator(2)
    stored = replace(stored, subtasks=stored.subtasks | {index: stored.subtasks[0]})
    with pytest.raises(
        CheckpointCorruptedError, match=rf"parallelism 2, but .* subtasks \[{index}\]"
    ):
        assign(checkpoint(a=stored), {"a": OperatorSettings(2)})
