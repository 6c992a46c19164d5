"""Values and states in all forms, as `contracts.flink_savepoints` writes them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import (
    BASE,
    INT,
    KINDS,
    LONG,
    NO_NAMESPACE,
    RUNTIME,
    SEPARATOR,
    SIMPLE,
    STRING,
    TIME_WINDOW,
    TIMER,
    Kind,
    composite,
    each,
    framed_map,
    i2,
    i4,
    i8,
    list_of,
    map_of,
    nullable,
    pojo_snapshot,
    snapshot,
    string,
    tuple_of,
    utf,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    info,
    inline,
    key_groups,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
    snappy,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, UnreadableStateError

UNKNOWN = snapshot("com.acme.Snapshot", 1, b"anything\0\0\1")


def open_job(
    directory: Path, subtask: Subtask, *, version: int = 6, max_parallelism: int = 128
) -> flink.FlinkSavepoint:
    content = metadata({"job": {0: subtask}}, version=version, max_parallelism=max_parallelism)
    (directory / "_metadata").write_bytes(content)
    return flink.open_savepoint(directory)


def keyed_savepoint(
    directory: Path, description: bytes, groups: Sequence[bytes], **extra: Any
) -> flink.FlinkSavepoint:
    return open_job(directory, Subtask(keyed=keyed_stream(description, groups, **extra)))


def column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


@given(data=st.data(), kind=KINDS, compressed=st.booleans())
def test_values_of_all_types_are_read_from_list_states(
    data: st.DataObject,
    kind: Kind,
    compressed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    values = data.draw(st.lists(kind.values, max_size=4))
    others = [1, 2]
    handle = list_states({"v": (kind, values), "w": (LONG, others)}, compressed=compressed)
    savepoint = open_job(tmp_path, Subtask(operator=handle))
    assert column(savepoint.read_state("job", "v"), "value") == pa.array(values, kind.type)
    assert column(savepoint.read_state("job", "w"), "value").to_pylist() == others


def test_an_element_may_take_many_compressed_chunks(tmp_path: Path) -> None:
    texts = ["a" * 200_000, "", "b" * 70_000]
    handle = list_states({"v": (STRING, texts), "none": (LONG, [])}, compressed=True)
    savepoint = open_job(tmp_path, Subtask(operator=handle))
    assert column(savepoint.read_state("job", "v"), "value").to_pylist() == texts
    assert len(savepoint.read_state("job", "none")) == 0


def test_elements_without_bytes_are_read(tmp_path: Path) -> None:
    name = f"{BASE}NullValueSerializer$NullValueSerializerSnapshot"
    nulls = Kind(snapshot(name), pa.null(), lambda _: b"", st.none())
    handle = list_states({"longs": (LONG, [1, 2]), "nulls": (nulls, [None] * 3)})
    savepoint = open_job(tmp_path, Subtask(operator=handle))
    assert savepoint.read_state("job", "nulls").num_rows == 3
    assert savepoint.read_state("job", "longs").column("value").to_pylist() == [1, 2]


@pytest.mark.parametrize("form", ["list", "canonical"])
def test_map_with_null_key_is_reported(form: str, tmp_path: Path) -> None:
    kind = map_of(STRING, LONG)
    pairs = [(None, 1), ("a", 2)]
    if form == "list":
        savepoint = open_job(tmp_path, Subtask(operator=list_states({"v": (kind, [pairs])})))
    else:
        group = canonical_group(
            {0: [(b"\0" + i8(1) + b"\0" + string(name), b"\0" + i8(n)) for name, n in pairs]}
        )
        described = keyed_description(LONG.snapshot, [keyed_info("v", "MAP", kind.snapshot)])
        savepoint = keyed_savepoint(tmp_path, described, [group])
    with pytest.raises(UnreadableStateError, match=r"null key.*--bytes"):
        savepoint.read_state("job", "v")
    assert savepoint.read_state("job", "v", as_bytes=True).num_rows == 1


KEYS = [(LONG, 1), (INT, 2), (STRING, "k"), (tuple_of(STRING, LONG), {"f0": "k", "f1": 3})]
"""Kinds of keys, each with the key of two other states."""

NAMESPACES = [NO_NAMESPACE, TIME_WINDOW, STRING]


@dataclass(frozen=True)
class State:
    """A state between two others with known keys and values."""

    type: str
    key: Kind
    other_key: Any
    namespace: Kind
    kind: Kind

    @property
    def value(self) -> Kind:
        return {"VALUE": self.kind, "LIST": list_of(self.kind), "MAP": map_of(INT, self.kind)}[
            self.type
        ]

    @property
    def contents(self) -> st.SearchStrategy[Any]:
        """Values of a key; empty lists and maps are not stored."""
        if self.type == "LIST":
            return st.lists(self.kind.values, min_size=1, max_size=3)
        if self.type == "MAP":
            pair = st.tuples(INT.values, st.none() | self.kind.values)
            return st.lists(pair, min_size=1, max_size=3)
        return self.kind.values

    @property
    def infos(self) -> list[bytes]:
        return [
            keyed_info("before", "VALUE", LONG.snapshot),
            keyed_info("state", self.type, self.value.snapshot, self.namespace.snapshot),
            keyed_info("rest", "VALUE", STRING.snapshot),
        ]

    def canonical(self, group: int, rows: Any, *, compressed: bool) -> bytes:
        entries = []
        for name, space, content in rows:
            key = entry_key(group, self.key, name, self.namespace, space)
            if self.type == "VALUE":
                entries.append((key, self.kind.encode(content)))
            elif self.type == "LIST":
                entries.append((key, SEPARATOR.join(map(self.kind.encode, content))))
            else:
                for user_key, value in content:
                    data = b"\1what?" if value is None else b"\0" + self.kind.encode(value)
                    entries.append((key + INT.encode(user_key), data))
        other = entry_key(group, self.key, self.other_key, NO_NAMESPACE, None)
        states = {0: [(other, i8(5))], 1: entries, 2: [(other, string("x"))]}
        data = canonical_group({number: state for number, state in states.items() if state})
        return snappy(data) if compressed else data

    def heap(self, group: int, rows: Any, *, compressed: bool) -> bytes:
        other = b"\0" + self.key.encode(self.other_key)
        encoded = [
            self.namespace.encode(space) + self.key.encode(name) + self.value.encode(content)
            for name, space, content in rows
        ]
        states = [each([other + i8(5)]), each(encoded), each([other + string("x")])]
        parts = [i2(number) + state for number, state in enumerate(states)]
        return i4(group) + b"".join(map(snappy, parts) if compressed else parts)


@given(data=st.data(), form=st.sampled_from(["canonical", "heap"]), compressed=st.booleans())
def test_keyed_states_of_all_types_are_read_in_all_formats(
    data: st.DataObject,
    form: str,
    compressed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    key, other_key = data.draw(st.sampled_from(KEYS))
    state = State(
        data.draw(st.sampled_from(["VALUE", "LIST", "MAP"])),
        key,
        other_key,
        data.draw(st.sampled_from(NAMESPACES)),
        data.draw(KINDS),
    )
    row = st.tuples(key.values, state.namespace.values, state.contents)
    several = st.lists(
        row, max_size=3, unique_by=lambda row: entry_key(0, key, row[0], state.namespace, row[1])
    )
    rows = data.draw(st.lists(several, min_size=2, max_size=3))
    groups = [
        getattr(state, form)(group, contents, compressed=compressed)
        for group, contents in enumerate(rows)
    ]
    description = keyed_description(key.snapshot, state.infos, is_compressed=compressed)
    savepoint = keyed_savepoint(tmp_path, description, groups)

    table = savepoint.read_state("job", "state")
    flat = [(group, *row) for group, contents in enumerate(rows) for row in contents]
    assert table.column("key_group").to_pylist() == [group for group, *_ in flat]
    assert column(table, "key") == pa.array([name for _, name, _, _ in flat], key.type)
    if state.namespace is not NO_NAMESPACE:
        spaces = pa.array([space for _, _, space, _ in flat], state.namespace.type)
        assert column(table, "namespace") == spaces
    assert column(table, "value") == pa.array([content for *_, content in flat], state.value.type)
    for name, content in (("before", 5), ("rest", "x")):
        others = savepoint.read_state("job", name)
        assert others.column("value").to_pylist() == [content] * len(rows)


@given(
    rows=st.lists(st.tuples(LONG.values, LONG.values), min_size=1, max_size=5, unique=True),
    form=st.sampled_from(["canonical", "heap"]),
    key=st.sampled_from([LONG, STRING]),
)
def test_timers_are_read_in_all_forms(
    rows: list[tuple[int, int]], form: str, key: Kind, tmp_path: Path
) -> None:
    names = [name if key is LONG else str(name) for name, _ in rows]
    times = [time for _, time in rows]
    value = composite(TIMER, key.snapshot, NO_NAMESPACE.snapshot)
    timers = info("_timer_state/event_user-timers", 3, serializers={"VALUE_SERIALIZER": value})
    encoded = [
        struct.pack(">Q", time + (1 << 63)) + key.encode(name) + b"\0"
        for name, time in zip(names, times, strict=True)
    ]
    if form == "canonical":
        group = canonical_group({0: [(b"\0" + timer, b"") for timer in encoded]})
    else:
        group = i4(0) + i2(0) + each(encoded)
    second = b"" if form == "canonical" else i4(1) + i2(0) + i4(0)
    savepoint = keyed_savepoint(
        tmp_path, keyed_description(key.snapshot, [timers]), [group, second]
    )
    table = savepoint.timers("job")
    assert table.column_names == ["service", "domain", "key_group", "key", "timestamp"]
    assert column(table, "timestamp").to_pylist() == times
    assert column(table, "key").to_pylist() == names
    assert set(column(table, "domain").to_pylist()) == {"event"}
    assert set(column(table, "service").to_pylist()) == {"user-timers"}


def test_timers_of_rocksdb_jobs_are_read_from_raw_keyed_state(tmp_path: Path) -> None:
    service = utf("user-timers") + LONG.snapshot + NO_NAMESPACE.snapshot
    service += each([i8(5) + b"\0" + i8(1000)]) + each([i8(6) + b"\0" + i8(-1)])
    group = struct.pack(">I", 0xF1CD859F) + i4(2) + each([service])
    stream = inline(group + group)
    raw = key_groups(3, 4, [0, -1, len(group)], stream)
    table = open_job(tmp_path, Subtask(raw_keyed=raw)).timers("job")
    assert table.sort_by("key_group").select(
        ["domain", "key_group", "key", "timestamp"]
    ).to_pylist() == [
        {"domain": domain, "key_group": group, "key": key, "timestamp": time}
        for group in (4, 6)
        for domain, key, time in (("event", 5, 1000), ("processing", 6, -1))
    ]


@pytest.mark.parametrize("form", ["canonical", "heap"])
def test_single_key_group_0_is_recognized(form: str, tmp_path: Path) -> None:
    description = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot)])
    group = {
        "canonical": canonical_group({0: [(b"\0" + i8(3) + b"\0", i8(4))]}),
        "heap": i4(0) + i2(0) + each([b"\0" + i8(3) + i8(4)]),
    }[form]
    table = keyed_savepoint(tmp_path, description, [group]).read_state("job", "v")
    assert table.to_pylist() == [{"key_group": 0, "key": 3, "value": 4}]


def test_more_than_128_key_groups_take_two_bytes(tmp_path: Path) -> None:
    description = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot)])
    key = entry_key(300, LONG, 3, NO_NAMESPACE, None, prefix=2)
    handle = keyed_stream(description, [canonical_group({0: [(key, i8(4))]})], first=300)
    savepoint = open_job(tmp_path, Subtask(keyed=handle), max_parallelism=1024)
    assert savepoint.read_state("job", "v").to_pylist() == [
        {"key_group": 300, "key": 3, "value": 4}
    ]


def test_lists_and_maps_can_be_read_element_by_element(tmp_path: Path) -> None:
    infos = [
        keyed_info("list", "LIST", list_of(LONG).snapshot),
        keyed_info("map", "MAP", map_of(STRING, LONG).snapshot),
        keyed_info("unknown", "MAP", UNKNOWN),
    ]
    key = b"\0" + i8(3) + b"\0"
    group = canonical_group(
        {
            0: [(key, i8(1) + SEPARATOR + i8(2))],
            1: [(key + string("a"), b"\0" + i8(7)), (key + string("b"), b"\1")],
            2: [(key + b"name", b"\0value")],
        }
    )
    savepoint = keyed_savepoint(tmp_path, keyed_description(LONG.snapshot, infos), [group, b""])
    row = {"key_group": 0, "key": 3}
    assert savepoint.read_state("job", "list", explode=True).to_pylist() == [
        row | {"value": 1},
        row | {"value": 2},
    ]
    assert savepoint.read_state("job", "map", explode=True).to_pylist() == [
        row | {"map_key": "a", "map_value": 7},
        row | {"map_key": "b", "map_value": None},
    ]
    assert savepoint.read_state("job", "list", as_bytes=True).to_pylist() == [
        row | {"value": i8(1) + b"," + i8(2)}
    ]
    assert savepoint.read_state("job", "map", as_bytes=True).to_pylist() == [
        row | {"value": [(string("a"), i8(7)), (string("b"), None)]}
    ]
    unknown = savepoint.read_state("job", "unknown")
    assert unknown.to_pylist() == [row | {"value": [(b"name", b"value")]}]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_unknown_serializer_keeps_other_states_readable(place: int, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    infos = [
        keyed_info(name, "VALUE", UNKNOWN if number == place else LONG.snapshot)
        for number, name in enumerate(names)
    ]
    key = b"\0" + i8(3) + b"\0"
    group = canonical_group({number: [(key, i8(number))] for number in range(3)})
    savepoint = keyed_savepoint(tmp_path, keyed_description(LONG.snapshot, infos), [group, b""])
    for number, name in enumerate(names):
        [row] = savepoint.read_state("job", name).to_pylist()
        assert row["value"] == (i8(number) if number == place else number)


@pytest.mark.parametrize("place", [0, 1])
def test_a_list_of_unknown_values_hides_no_other_state(place: int, tmp_path: Path) -> None:
    unknown = Kind(UNKNOWN, pa.binary(), lambda data: data, st.binary())
    kinds: list[tuple[Kind, list[Any]]] = [(LONG, [1, 2]), (LONG, [3])]
    kinds[place] = unknown, [b"ab", b"c"]
    handle = list_states({"x": kinds[0], "y": kinds[1]})
    savepoint = open_job(tmp_path, Subtask(operator=handle))
    for name, (_, values) in zip("xy", kinds, strict=True):
        assert savepoint.read_state("job", name).column("value").to_pylist() == values


OF_GROUP_0, OF_GROUP_1 = 312, 13
"""Return keys that Flink's hash routes to these of 128 groups."""


def heap_states(
    tmp_path: Path,
    rest: bytes = b"",
    *,
    secret: bytes = i2(3) + i4(1) + i2(0),
    has_only_full_groups: bool = False,
) -> flink.FlinkSavepoint:
    """Four states, the second and third of an unknown class, and the bytes after them."""
    snapshots = [LONG.snapshot, UNKNOWN, UNKNOWN, LONG.snapshot]
    names = ["first", "unknown", "other", "last"]
    infos = [keyed_info(name, "VALUE", kind) for name, kind in zip(names, snapshots, strict=True)]
    contents = [i8(9), secret, b"\0\3\0", i8(4)]

    def full(key: int) -> bytes:
        entry = b"\0" + i8(key)
        return b"".join(i2(state) + each([entry + value]) for state, value in enumerate(contents))

    first = b"".join(i2(state) + each([]) for state in range(4))
    if has_only_full_groups:
        first = full(OF_GROUP_0) + rest
    groups = [i4(0) + first, i4(1) + full(OF_GROUP_1) + rest]
    return keyed_savepoint(tmp_path, keyed_description(LONG.snapshot, infos), groups)


def test_heap_states_after_unknown_ones_are_found(tmp_path: Path) -> None:
    savepoint = heap_states(tmp_path)
    for name, value in (("first", 9), ("last", 4)):
        assert savepoint.read_state("job", name).column("value").to_pylist() == [value]
    for name in ("unknown", "other"):
        with pytest.raises(UnreadableStateError, match=r"com.acme.Snapshot"):
            savepoint.read_state("job", name)
    with pytest.raises(InvalidRequestError, match="canonical"):
        savepoint.read_state("job", "first", as_bytes=True)


def test_on_the_heap_states_are_found_if_no_group_is_empty(tmp_path: Path) -> None:
    savepoint = heap_states(tmp_path, has_only_full_groups=True)
    for name, value in (("first", 9), ("last", 4)):
        assert savepoint.read_state("job", name).column("value").to_pylist() == [value] * 2


@pytest.mark.parametrize(
    "secret",
    [
        i2(3) + each([b"\0" + i8(OF_GROUP_0) + i8(1)]),  # a key that belongs to another group
        i2(3) + each([b"\0" + i8(OF_GROUP_1)]),  # which doesn't end where the group does
        i2(3) + i4(0),
    ],
)
def test_heap_values_resembling_a_state_are_not_states(tmp_path: Path, secret: bytes) -> None:
    savepoint = heap_states(tmp_path, secret=secret)
    assert savepoint.read_state("job", "last").column("value").to_pylist() == [4]


def test_heap_state_after_unknown_one_must_end_with_group(
    tmp_path: Path,
) -> None:
    savepoint = heap_states(tmp_path, rest=b"\0")
    assert savepoint.read_state("job", "first").column("value").to_pylist() == [9]
    with pytest.raises(
        UnreadableStateError, match=r"follows an unreadable state.*'unknown'.*com.acme.Snapshot"
    ):
        savepoint.read_state("job", "last")


def test_key_of_unknown_class_is_read_as_bytes_if_delimited(tmp_path: Path) -> None:
    infos = [
        keyed_info("v", "VALUE", LONG.snapshot),
        keyed_info("m", "MAP", map_of(INT, INT).snapshot),
    ]
    group = canonical_group({0: [(b"\0key\0", i8(4))]})
    savepoint = keyed_savepoint(tmp_path, keyed_description(UNKNOWN, infos), [group, b""])
    assert savepoint.read_state("job", "v").to_pylist() == [
        {"key_group": 0, "key": b"key", "value": 4}
    ]
    with pytest.raises(UnreadableStateError, match=r"com.acme.Snapshot"):
        savepoint.read_state("job", "m")


def test_pojo_with_subclasses_has_class_name(tmp_path: Path) -> None:
    circle = pojo_snapshot("Circle", {"r": LONG.snapshot})
    value = pojo_snapshot(
        "Shape", {"n": INT.snapshot}, {"Square": LONG.snapshot}, {"Circle": circle}
    )
    infos = [keyed_info("v", "VALUE", value)]
    values = [
        b"\1",
        b"\2\0" + i4(1),
        b"\4" + utf("Circle") + b"\2\0" + i8(5),
        b"\4" + utf("Star") + b"???",
    ]
    entries = [(b"\0" + i8(n) + b"\0", data) for n, data in enumerate(values)]
    description = keyed_description(LONG.snapshot, infos)
    known = keyed_savepoint(tmp_path, description, [canonical_group({0: entries[:3]}), b""])
    assert known.read_state("job", "v").column("value").to_pylist() == [
        None,
        {"class": "Shape", "n": 1, "r": None},
        {"class": "Circle", "n": None, "r": 5},
    ]
    unknown = keyed_savepoint(tmp_path, description, [canonical_group({0: entries}), b""])
    with pytest.raises(UnreadableStateError, match="Star"):
        unknown.read_state("job", "v")
    assert unknown.read_state("job", "v", as_bytes=True).column("value").to_pylist() == values


def test_subtasks_may_know_different_subclasses(tmp_path: Path) -> None:
    circle = pojo_snapshot("Circle", {"r": LONG.snapshot})
    plain = pojo_snapshot("Shape", {"n": INT.snapshot})
    known = pojo_snapshot("Shape", {"n": INT.snapshot}, None, {"Circle": circle})
    subtasks = {}
    for index, (value, data) in enumerate(
        [(plain, b"\2\0" + i4(1)), (known, b"\4" + utf("Circle") + b"\2\0" + i8(5))]
    ):
        description = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", value)])
        group = canonical_group({0: [(bytes([index]) + i8(3) + b"\0", data)]})
        subtasks[index] = Subtask(keyed=keyed_stream(description, [group], first=index))
    (tmp_path / "_metadata").write_bytes(metadata({"job": subtasks}))
    savepoint = flink.open_savepoint(tmp_path)
    assert savepoint.read_state("job", "v").column("value").to_pylist() == [
        {"n": 1, "class": None, "r": None},
        {"n": None, "class": "Circle", "r": 5},
    ]
    assert savepoint.read_state("job", "v", as_bytes=True).num_rows == 2


def test_subtasks_with_different_types_are_refused(tmp_path: Path) -> None:
    subtasks = {
        index: Subtask(operator=list_states({"v": (kind, [])}))
        for index, kind in enumerate([LONG, STRING])
    }
    (tmp_path / "_metadata").write_bytes(metadata({"job": subtasks}))
    with pytest.raises(UnreadableStateError, match="types differ"):
        flink.open_savepoint(tmp_path).read_state("job", "v")


def kryo(java_class: str) -> bytes:
    content = utf(java_class) + framed_map({}) * 3
    return snapshot(f"{RUNTIME}kryo.KryoSerializerSnapshot", 2, content)


KRYO = [
    ("00", None),
    (
        "01 00 'java.util.ArrayLis' f4 01 03 03 01 'a1' ~b0 03 01 82 'b' 03 03",
        '["a10", "b", "a10"]',
    ),
    ("01 00 'java.util.HashMa' f0 01 01 03 01 82 'k' 09 0d", '{"k": -7}'),
    ("01 00 'java.util.TreeSe' f4 01 00 02 02 06 0a 3fe0000000000000", "[3, 0.5]"),
    ("01 00 'java.util.LinkedLis' f4 01 02 01 01 'java.util.HashSe' f4 01 00 00", "[[], null]"),
    ("01 00 'java.util.ArrayLis' f4 01 02 03 01 83 c3a9 'x' 03 01 81", '["\u00e9x", ""]'),
]


def bytes_of(text: str) -> bytes:
    """Hexadecimal digits, and texts in quotation marks; `~` is for the eye."""
    parts = [part.removeprefix("~") for part in text.split()]
    return b"".join(
        part.strip("'").encode() if part.startswith("'") else bytes.fromhex(part) for part in parts
    )


@pytest.mark.parametrize(("data", "value"), KRYO, ids=[value for _, value in KRYO])
def test_collections_of_kryo_are_read_as_json_from_flink_1(
    data: str, value: str | None, tmp_path: Path
) -> None:
    kind = Kind(kryo("java.util.List"), pa.string(), bytes_of, st.none())
    handle = list_states({"v": (kind, [data, data])})
    savepoint = open_job(tmp_path, Subtask(operator=handle), version=4)
    assert savepoint.read_state("job", "v").column("value").to_pylist() == [value] * 2


KRYO_5 = [
    ("00", None),
    ("01 00 'java.util.ArrayLis' f4 01 83 03 00 01 82 'a' 01 'b' b4", '["a", "b4"]'),
    ("01 00 'java.util.ArrayLis' f4 01 84 09 01 00 01 08 00", "[null, 4, null]"),
    ("01 00 'java.util.ArrayLis' f4 01 83 00", "[null, null]"),
    ("01 00 'java.util.LinkedLis' f4 01 03 02 06 0a 000000000000e03f", "[3, 0.5]"),
    ("01 00 'java.util.TreeMa' f0 01 02 00 03 01 82 'a' 09 0d", '{"a": -7}'),
    ("01 00 'java.util.TreeSe' f4 01 01 00", "[]"),
    ("01 00 'java.util.ImmutableCollections$List1' b2 01 83 03 01 82 'i' 03", '["i", "i"]'),
    ("'K' 01 82 03 00 01 81", '[""]'),
    (
        "01 00 'java.util.Optiona' ec 01 'T' 01 0100000000000000 feffffffffffffff",
        '"00000000-0000-0001-ffff-fffffffffffe"',
    ),
]


@pytest.mark.parametrize(("data", "value"), KRYO_5, ids=[str(value) for _, value in KRYO_5])
def test_collections_of_kryo_are_read_as_json_from_flink_2(
    data: str, value: str | None, tmp_path: Path
) -> None:
    kind = Kind(kryo("java.lang.Object"), pa.string(), bytes_of, st.none())
    savepoint = open_job(tmp_path, Subtask(operator=list_states({"v": (kind, [data, data])})))
    assert savepoint.read_state("job", "v").column("value").to_pylist() == [value] * 2


TIMES = [
    ("LocalDate", "'W' 01 e80f 02 1d", "2024-02-29"),
    ("LocalTime", "'W' 01 f4", "11:00:00"),
    ("LocalTime", "'W' 01 0b fd", "11:02:00"),
    ("LocalTime", "'W' 01 0b 02 03 05", "11:02:03.000000005"),
    ("LocalDateTime", "'W' 01 e80f 02 1d ff", "2024-02-29T00:00:00"),
]


@pytest.mark.parametrize(("name", "data", "text"), TIMES, ids=[text for _, _, text in TIMES])
def test_kryo_times_are_read_as_strings(name: str, data: str, text: str, tmp_path: Path) -> None:
    kind = Kind(kryo(f"java.time.{name}"), pa.string(), bytes_of, st.none())
    savepoint = open_job(tmp_path, Subtask(operator=list_states({"v": (kind, [data])})))
    assert savepoint.read_state("job", "v").column("value").to_pylist() == [text]


def test_excessive_kryo_references_are_refused(tmp_path: Path) -> None:
    text = "java.util.ArrayList"
    data = b"\1\0" + text[:-1].encode() + b"\xf4\1\2"
    data += b"\1\0\1\x02" * 30 + b"\3\1\x82a\3\x21"
    # Each list has the next one and itself as it is so far: of 30 bytes there would be 2 to the 30.
    data += b"".join(b"\1\0" + bytes([2 + n]) for n in range(29, 0, -1))
    kind = Kind(kryo("java.util.List"), pa.string(), lambda data: data, st.none())
    savepoint = open_job(tmp_path, Subtask(operator=list_states({"v": (kind, [data])})), version=4)
    with pytest.raises(CheckpointCorruptedError):
        savepoint.read_state("job", "v")


def test_lone_surrogate_is_an_error_naming_the_state(tmp_path: Path) -> None:
    kind = Kind(STRING.snapshot, pa.string(), lambda data: data, st.none())
    handle = list_states({"v": (kind, [b"\2\x81\xb0\x03"])})
    savepoint = open_job(tmp_path, Subtask(operator=handle))
    with pytest.raises(CheckpointCorruptedError, match="'v'"):
        savepoint.read_state("job", "v")
    table = savepoint.read_state("job", "v", as_bytes=True)
    assert table.column("value").to_pylist() == [b"\2\x81\xb0\x03"]


@pytest.mark.parametrize(
    "content",
    [
        nullable(LONG).snapshot,
        composite(f"{BASE}ListSerializerSnapshot", UNKNOWN),
        pojo_snapshot("a.B", {"f": UNKNOWN}),
        pojo_snapshot("a.B", {"f": kryo("a.C")}),
    ],
    ids=["nullable", "list of unknown", "POJO of unknown", "POJO of Kryo"],
)
def test_state_of_the_new_interfaces_names_elements_and_user_keys(
    content: bytes, tmp_path: Path
) -> None:
    """Flink 2 describes a list by its elements, and a map by its keys and values."""
    roles = {"NAMESPACE_SERIALIZER": NO_NAMESPACE.snapshot, "VALUE_SERIALIZER": LONG.snapshot}
    infos = [
        info("l", 4, options={"KEYED_STATE_TYPE": "LIST"}, serializers=roles),
        info(
            "m",
            4,
            options={"KEYED_STATE_TYPE": "MAP"},
            serializers=roles | {"USER_KEY_SERIALIZER": STRING.snapshot},
        ),
        keyed_info("other", "VALUE", content),
    ]
    key = b"\0" + i8(3) + b"\0"
    group = canonical_group(
        {0: [(key, i8(1) + b"," + i8(2))], 1: [(key + string("a"), b"\0" + i8(7))]}
    )
    savepoint = keyed_savepoint(tmp_path, keyed_description(LONG.snapshot, infos), [group, b""])
    assert savepoint.read_state("job", "l").column("value").to_pylist() == [[1, 2]]
    assert savepoint.read_state("job", "m").column("value").to_pylist() == [[("a", 7)]]


def test_serializers_around_others_are_seen_through(tmp_path: Path) -> None:
    ttl = "org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot"
    kept = snapshot(ttl, 1, b"\0" + LONG.snapshot)
    many = composite("org.apache.flink.runtime.state.ArrayListSerializerSnapshot", kept)
    java = snapshot("org.apache.flink.runtime.state.JavaSerializer$JavaSerializerSnapshot")
    states: dict[str, tuple[Kind, list[Any]]] = {
        "kept": (Kind(kept, pa.int64(), i8, LONG.values), [5]),
        "many": (Kind(many, pa.null(), lambda data: data, st.none()), [each([i8(1), i8(2)])]),
        "java": (Kind(java, pa.binary(), lambda data: data, st.none()), [b"\xac\xed"]),
    }
    savepoint = open_job(tmp_path, Subtask(operator=list_states(states)))
    read = {name: savepoint.read_state("job", name)["value"].to_pylist() for name in states}
    assert read == {"kept": [5], "many": [[1, 2]], "java": [b"\xac\xed"]}


def test_every_simple_serializer_has_a_distinct_type() -> None:
    assert len({kind.snapshot for kind in SIMPLE}) == len(SIMPLE)
