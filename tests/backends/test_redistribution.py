import itertools
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.assignment import redistribute, redistribute_raw
from holdfast.backends.keys import key_group_range
from holdfast.errors import InvalidRequestError
from holdfast.locations.adapters import ByteStreamStateHandle, FileStateHandle
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
)

SPLIT, UNION, BROADCAST = OperatorStateMode

Handles = Sequence[Sequence[OperatorStateHandle | None]]

# The state, the stream and the index there.
Element = tuple[str, str, int]


def handle(stream: str, **states: tuple[OperatorStateMode, int, int]) -> OperatorStateHandle:
    """A handle to states given by mode, first and count."""
    partitions = {
        name: StatePartitions(mode, 100 * i, 100, first, count)
        for i, (name, (mode, first, count)) in enumerate(states.items())
    }
    return OperatorStateHandle(partitions, FileStateHandle(stream, 100 * len(states)))


def split(stream: str, **states: range) -> OperatorStateHandle:
    ranges = {name: (SPLIT, rows.start, len(rows)) for name, rows in states.items()}
    return handle(stream, **ranges)


def parts(handles: Iterable[OperatorStateHandle]) -> list[tuple[str, dict[str, list[int]]]]:
    """The handles of a subtask as the vectors are written."""
    return [
        (
            handle_parts.stream.uri
            if isinstance(handle_parts.stream, FileStateHandle)
            else repr(handle_parts.stream),
            {
                name: list(range(p.first, p.first + p.count))
                for name, p in handle_parts.states.items()
            },
        )
        for handle_parts in handles
    ]


def elements(handles: Iterable[OperatorStateHandle]) -> list[Element]:
    """The elements that a subtask restores, in order."""
    return [
        (name, stream, index)
        for stream, states in parts(handles)
        for name, indexes in states.items()
        for index in indexes
    ]


def raw(stream: str, partitions: int) -> RawOperatorStateHandle:
    places = tuple((10 * i, 10) for i in range(partitions))
    return RawOperatorStateHandle(places, FileStateHandle(stream, 10 * partitions))


A = [[split("h0", s=range(10))]]
B = [
    [split("h0", s=range(3))],
    [split("h1", s=range(2))],
    [split("h2", s=range(5))],
]
C = [
    [split("h0", a=range(4), b=range(10, 13))],
    [split("h1", a=range(1), b=range(10, 12))],
]
G = [[split("h0", s=range(0))], [split("h1", s=range(2))]]

# Each subtask's handles; a handle is its stream and, by name, the elements of its states.
SPLIT_VECTORS: dict[str, tuple[Handles, list[Any]]] = {
    "A to 2": (A, [[("h0", {"s": [0, 1, 2, 3, 4]})], [("h0", {"s": [5, 6, 7, 8, 9]})]]),
    "A to 3": (
        A,
        [[("h0", {"s": [0, 1, 2, 3]})], [("h0", {"s": [4, 5, 6]})], [("h0", {"s": [7, 8, 9]})]],
    ),
    "A to 4": (
        A,
        [
            [("h0", {"s": [0, 1, 2]})],
            [("h0", {"s": [3, 4, 5]})],
            [("h0", {"s": [6, 7]})],
            [("h0", {"s": [8, 9]})],
        ],
    ),
    "A to 10": (A, [[("h0", {"s": [i]})] for i in range(10)]),
    "A to 12": (A, [*([("h0", {"s": [i]})] for i in range(10)), [], []]),
    "B to 1": (
        B,
        [[("h0", {"s": [0, 1, 2]}), ("h1", {"s": [0, 1]}), ("h2", {"s": [0, 1, 2, 3, 4]})]],
    ),
    "B to 2": (
        B,
        [[("h0", {"s": [0, 1, 2]}), ("h1", {"s": [0, 1]})], [("h2", {"s": [0, 1, 2, 3, 4]})]],
    ),
    "B to 3": (B, [parts(stored) for stored in B]),
    "B to 4": (
        B,
        [
            [("h0", {"s": [0, 1, 2]})],
            [("h1", {"s": [0, 1]}), ("h2", {"s": [0]})],
            [("h2", {"s": [1, 2]})],
            [("h2", {"s": [3, 4]})],
        ],
    ),
    "B to 5": (
        B,
        [
            [("h0", {"s": [0, 1]})],
            [("h0", {"s": [2]}), ("h1", {"s": [0]})],
            [("h1", {"s": [1]}), ("h2", {"s": [0]})],
            [("h2", {"s": [1, 2]})],
            [("h2", {"s": [3, 4]})],
        ],
    ),
    "C to 3": (
        C,
        [
            [("h0", {"a": [0, 1], "b": [12]}), ("h1", {"b": [10]})],
            [("h0", {"a": [2, 3]}), ("h1", {"b": [11]})],
            [("h0", {"b": [10, 11]}), ("h1", {"a": [0]})],
        ],
    ),
    "C to 4": (
        C,
        [
            [("h0", {"a": [0, 1]}), ("h1", {"b": [11]})],
            [("h0", {"a": [2], "b": [10, 11]})],
            [("h0", {"a": [3], "b": [12]})],
            [("h1", {"a": [0], "b": [10]})],
        ],
    ),
    "G to 1": (G, [[("h0", {"s": []}), ("h1", {"s": [0, 1]})]]),
    "G to 2": (G, [parts(stored) for stored in G]),
    "G to 3": (G, [[("h0", {"s": []}), ("h1", {"s": [0]})], [("h1", {"s": [1]})], []]),
}


@pytest.mark.parametrize(("handles", "expected"), SPLIT_VECTORS.values(), ids=SPLIT_VECTORS)
def test_elements_are_distributed_as_in_flink(handles: Handles, expected: list[Any]) -> None:
    assert [parts(subtask) for subtask in redistribute(handles, len(expected))] == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_subtask_gets_the_whole_union(parallelism: int) -> None:
    handles = [[handle("h0", s=(UNION, 0, 2))], [handle("h1", s=(UNION, 0, 1))]]
    expected = [("h0", {"s": [0, 1]}), ("h1", {"s": [0]})]
    assert [parts(subtask) for subtask in redistribute(handles, parallelism)] == [
        expected
    ] * parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 7])
def test_each_union_part_is_owned_once_and_copied_to_others(
    parallelism: int,
) -> None:
    handles: Handles = [
        [handle("h0", u=(UNION, 0, 2)), handle("h1", u=(UNION, 0, 1))],
        [None],
        [handle("h2", u=(UNION, 3, 0), s=(SPLIT, 0, 4), b=(BROADCAST, 0, 1))],
    ]
    owners: dict[str, list[int]] = {"h0": [], "h1": [], "h2": []}
    for subtask, of_subtask in enumerate(redistribute(handles, parallelism)):
        for stored in of_subtask:
            assert isinstance(stored.stream, FileStateHandle)
            if not stored.states["u"].is_copy:
                owners[stored.stream.uri].append(subtask)
            assert not any(stored.states[name].is_copy for name in stored.states if name != "u")
    assert owners == {"h0": [0], "h1": [0], "h2": [2 % parallelism]}


@pytest.mark.parametrize(
    ("holders", "old", "expected"),
    [
        ([0, 1, 2], 3, [0]),
        ([0, 1, 2], 3, [0, 1]),
        ([0, 1, 2], 3, [0, 1, 2]),
        ([0, 1, 2], 3, [0, 1, 2, 0, 1]),
        ([0], 2, [0]),
        ([0], 2, [0, 0]),
        ([0], 2, [0, 0, 0]),
        ([0, 2], 3, [0, 2, 0]),
    ],
)
def test_every_subtask_gets_one_copy_of_a_broadcast_state(
    holders: list[int], old: int, expected: list[int]
) -> None:
    copies = [handle(f"h{i}", s=(BROADCAST, 0, 3)) for i in range(old)]
    handles = [[copy] if i in holders else [] for i, copy in enumerate(copies)]
    assert redistribute(handles, len(expected)) == [(copies[i],) for i in expected]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_all_modes_together_give_as_many_handles_as_in_flink(parallelism: int) -> None:
    broadcast = dict.fromkeys(("t-4", "t-5", "t-6"), (BROADCAST, 0, 3))
    union = {"t-1": (UNION, 0, 1)}
    more = {"t-2": (UNION, 0, 2), "t-3": (SPLIT, 0, 2)}
    handles = [
        [handle("h0", **union, **more, **broadcast)],
        [handle("h1", **union, **broadcast)],
    ]
    subtasks = redistribute(handles, parallelism)
    names = [name for subtask in subtasks for stored in subtask for name in stored.states]
    assert {name: names.count(name) for name in names} == {
        "t-1": 2 * parallelism,
        "t-2": parallelism,
        "t-3": 2 if parallelism == 3 else 1,
        **dict.fromkeys(broadcast, parallelism),
    }
    for subtask in subtasks:
        assert len({stored.stream for stored in subtask}) == len(subtask)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (2, 3), (5, 2)])
def test_two_states_with_two_elements_each_are_both_split(old: int, new: int) -> None:
    handles: Handles = [[split("h0", t=range(2))], [split("h1", u=range(2))]] + [[]] * (old - 2)
    subtasks = redistribute(handles, new)
    for name in "tu":
        holders = [stored for subtask in subtasks for stored in subtask if name in stored.states]
        assert len(holders) == min(2, new)


@given(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 6))
def test_registered_state_is_never_forgotten(counts: list[int], parallelism: int) -> None:
    handles = [[split(f"h{i}", s=range(count))] for i, count in enumerate(counts)]
    subtasks = redistribute(handles, parallelism)
    streams = {stream for subtask in subtasks for stream, _ in parts(subtask)}
    assert streams == {f"h{i}" for i in range(len(counts))}


def test_state_without_elements_is_carried_over_by_one_subtask() -> None:
    handles = [[split("h0", a=range(1), s=range(0))], [split("h1", s=range(0))]]
    assert [parts(subtask) for subtask in redistribute(handles, 3)] == [
        [("h0", {"a": [0]})],
        [("h0", {"s": []}), ("h1", {"s": []})],
        [],
    ]


@pytest.mark.parametrize("handles", [[], [[]], [[None]], [[], [None], []]])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_nothing_is_spread_as_nothing(handles: list[list[None]], parallelism: int) -> None:
    assert redistribute(handles, parallelism) == [()] * parallelism
    assert redistribute_raw(handles, parallelism) == [()] * parallelism


def test_absent_handle_is_skipped() -> None:
    stored = split("h0", s=range(2))
    assert redistribute([[None, stored], [None]], 2) == [(stored,), ()]
    assert redistribute([[None, stored], [None]], 1) == [(stored,)]


@pytest.mark.parametrize("parallelism", [0, -1])
def test_parallelism_below_one_is_refused(parallelism: int) -> None:
    for function in (redistribute, redistribute_raw):
        with pytest.raises(InvalidRequestError, match="parallelism must be >= 1"):
            function([], parallelism)


def test_streams_with_the_same_bytes_are_still_two() -> None:
    states = {"s": StatePartitions(SPLIT, 0, 4, 0, 2)}
    same = [OperatorStateHandle(states, ByteStreamStateHandle(b"same")) for _ in range(2)]
    assert redistribute([[stored] for stored in same], 1) == [tuple(same)]


def test_part_of_a_part_counts_from_the_stream_start() -> None:
    ((first,), (second,)) = redistribute([[split("h0", s=range(10, 20))]], 2)
    assert parts([first, second]) == [
        ("h0", {"s": [10, 11, 12, 13, 14]}),
        ("h0", {"s": [15, 16, 17, 18, 19]}),
    ]
    assert first.states["s"].offset == 0
    assert first.states["s"].length == 100
    assert parts(redistribute([[first], [second]], 5)[2]) == [
        ("h0", {"s": [14]}),
        ("h0", {"s": [15]}),
    ]


def test_redistribution_time_is_independent_of_elements() -> None:
    handles = [[split("h0", s=range(10**12))]]
    start = time.perf_counter()
    subtasks = redistribute(handles, 3)
    assert time.perf_counter() - start < 1
    assert [subtask[0].states["s"].count for subtask in subtasks] == [
        333333333334,
        333333333333,
        333333333333,
    ]


counts_by_subtask = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10)), min_size=1, max_size=10
)


def check_split(counts: Sequence[dict[str, int]], parallelism: int) -> None:
    """Invariants of any redistribution at a changed parallelism."""
    handles = [
        [split(f"h{i:02}", **{name: range(count) for name, count in of_subtask.items()})]
        for i, of_subtask in enumerate(counts)
    ]
    old = [element for subtask in handles for element in elements(subtask)]
    subtasks = redistribute(handles, parallelism)
    new = [elements(subtask) for subtask in subtasks]

    assert sorted(itertools.chain(*new)) == sorted(old), "an element is lost or doubled"
    loads = [len(subtask) for subtask in new]
    assert max(loads) - min(loads) <= 1, "the loads are uneven"
    for subtask in subtasks:
        streams = [stream for stream, _ in parts(subtask)]
        assert streams == sorted(set(streams)), "handles are doubled or out of order"
    for name in "abcd":
        expected = [element for element in old if element[0] == name]
        runs = [[element for element in subtask if element[0] == name] for subtask in new]
        # The runs follow each other from some subtask on, where the distribution began.
        first_run = next((i for i, run in enumerate(runs) if expected and expected[0] in run), 0)
        rotated = [*itertools.chain(*runs[first_run:]), *itertools.chain(*runs[:first_run])]
        assert rotated == expected, "elements are out of order"


@given(counts_by_subtask, st.integers(1, 12))
def test_nothing_is_lost_doubled_or_out_of_order_and_loads_are_even(
    counts: list[dict[str, int]], parallelism: int
) -> None:
    check_split(counts, parallelism + (parallelism == len(counts)))


@pytest.mark.exhaustive
def test_ten_thousand_random_cases_hold_too() -> None:
    pick = random.Random(6)
    for _ in range(10_000):
        old, new = pick.sample(range(1, 11), 2)
        names = "abcd"[: pick.randint(0, 4)]
        check_split([{name: pick.randint(1, 10) for name in names} for _ in range(old)], new)


@given(counts_by_subtask)
def test_unchanged_parallelism_keeps_elements_in_place(
    counts: list[dict[str, int]],
) -> None:
    handles = [
        [split(f"h{i}", **{name: range(count) for name, count in of_subtask.items()})]
        if of_subtask
        else []
        for i, of_subtask in enumerate(counts)
    ]
    assert redistribute(handles, len(handles)) == [tuple(subtask) for subtask in handles]


def test_unchanged_parallelism_only_copies_the_union() -> None:
    handles = [
        [handle("h0", s=(SPLIT, 0, 5), u=(UNION, 0, 1), b=(BROADCAST, 0, 1))],
        [handle("h1", s=(SPLIT, 0, 1), u=(UNION, 0, 1), b=(BROADCAST, 0, 1))],
    ]
    assert [parts(subtask) for subtask in redistribute(handles, 2)] == [
        [("h0", {"s": [0, 1, 2, 3, 4], "u": [0], "b": [0]}), ("h1", {"u": [0]})],
        [("h0", {"u": [0]}), ("h1", {"s": [0], "u": [0], "b": [0]})],
    ]


class TestRaw:
    @pytest.mark.parametrize("parallelism", range(1, 8))
    def test_partitions_are_distributed_as_elements(self, parallelism: int) -> None:
        counts = (3, 0, 2, 5)
        managed = [[split(f"h{i}", s=range(count))] for i, count in enumerate(counts)]
        expected = [parts(subtask) for subtask in redistribute(managed, parallelism)]
        handles = [[raw(f"h{i}", count)] for i, count in enumerate(counts)]
        distributed = [
            [
                (stored.stream.uri, {"s": [offset // 10 for offset, _ in stored.partitions]})
                for stored in subtask
                if isinstance(stored.stream, FileStateHandle)
            ]
            for subtask in redistribute_raw(handles, parallelism)
        ]
        assert distributed == expected

    def test_unchanged_parallelism_keeps_partitions_in_place(self) -> None:
        handles = [[raw("h0", 5), raw("h1", 1)], [], [raw("h2", 0)]]
        assert redistribute_raw(handles, 3) == [tuple(subtask) for subtask in handles]


class TestIntersection:
    stored = KeyGroupsStateHandle(
        (10, 14), ((0, 5), None, (5, 1), (6, 0), (6, 4)), FileStateHandle("h0", 10)
    )

    @pytest.mark.parametrize(
        ("key_groups", "expected"),
        [
            ((12, 13), (12, 13)),
            ((0, 10), (10, 10)),
            ((14, 99), (14, 14)),
            ((0, 99), (10, 14)),
            ((10, 14), (10, 14)),
        ],
    )
    def test_it_has_the_common_key_groups_of_the_same_stream(
        self, key_groups: tuple[int, int], expected: tuple[int, int]
    ) -> None:
        part = self.stored.intersection(*key_groups)
        first, last = expected
        assert part == KeyGroupsStateHandle(
            expected, self.stored.partitions[first - 10 : last - 9], self.stored.stream
        )

    @pytest.mark.parametrize(
        "key_groups", [(0, 9), (15, 20), (13, 12)], ids=["before", "after", "empty"]
    )
    def test_disjoint_key_groups_have_no_intersection(self, key_groups: tuple[int, int]) -> None:
        assert self.stored.intersection(*key_groups) is None

    @given(st.integers(1, 64), st.data())
    def test_rescaled_key_groups_are_neither_lost_nor_doubled(
        self, groups: int, data: st.DataObject
    ) -> None:
        old, new = data.draw(st.tuples(*[st.integers(1, groups)] * 2))
        handles = []
        for i in range(old):
            owned = key_group_range(groups, old, i)
            places = tuple((group, 1) for group in owned)
            ends = owned.start_key_group, owned.end_key_group
            handles.append(KeyGroupsStateHandle(ends, places, FileStateHandle(f"h{i}", groups)))
        for i in range(new):
            owned = key_group_range(groups, new, i)
            ends = owned.start_key_group, owned.end_key_group
            parts = [part for handle in handles if (part := handle.intersection(*ends))]
            assert [place for part in parts for place in part.partitions] == [
                (group, 1) for group in owned
            ]
