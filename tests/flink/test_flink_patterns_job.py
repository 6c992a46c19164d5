"""State of a real pattern over events (CEP), and states next to Kryo values: `infra/flink/PatternJob.java`."""

from pathlib import Path
from typing import Any

import pytest
from contracts.flink_archives import extract

from holdfast import flink
from holdfast.errors import UnreadableStateError

KEYS = range(4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("flink"), "patterns") / "patterns"


@pytest.fixture(scope="module", params=["hashmap-native", "rocksdb-native"])
def savepoint(request: pytest.FixtureRequest, directory: Path) -> flink.FlinkSavepoint:
    return flink.open_savepoint(directory / request.param)


def by_number(savepoint: flink.FlinkSavepoint, operator: str, state: str) -> dict[int, Any]:
    """The values of a state by the number in their key."""
    rows = savepoint.read_state(operator, state, check_keys=True).to_pylist()
    return {int(row["key"].removeprefix("k")): row["value"] for row in rows}


def partial_matches(key: int) -> list[int]:
    """The numbers of a key that have begun a match."""
    return [number for number in (key, key + 4) if number < 6]


def event(number: int) -> dict[str, int]:
    return {"id": 0, "timestamp": number * 1000}


def test_partial_matches_are_read(savepoint: flink.FlinkSavepoint) -> None:
    matches = by_number(savepoint, "pattern", "nfaStateName")
    for key in KEYS:
        assert matches[key]["completed"] == []
        waiting = [match for match in matches[key]["partial"] if match["stage"] == "second"]
        assert [match["start"] for match in waiting] == [
            1000 * number for number in partial_matches(key)
        ]
        assert [match["start_event"] for match in waiting] == [*map(event, partial_matches(key))]
        assert [match["previous_node"] for match in waiting] == [
            {"event": event(number), "stage": "first"} for number in partial_matches(key)
        ]


def test_events_of_a_pattern_are_read_with_their_values(savepoint: flink.FlinkSavepoint) -> None:
    events = by_number(savepoint, "pattern", "sharedBuffer-events")
    assert {
        key: sorted((name["timestamp"], content["value"]) for name, content in pairs)
        for key, pairs in events.items()
    } == {key: [(1000 * number, number) for number in partial_matches(key)] for key in KEYS}
    entries = by_number(savepoint, "pattern", "sharedBuffer-entries-with-lockable-edges")
    for key in KEYS:
        assert sorted(name["event"]["timestamp"] for name, _ in entries[key]) == [
            1000 * number for number in partial_matches(key)
        ]
        for _, content in entries[key]:
            [edge] = content["value"]
            assert edge["value"]["target"] is None


def test_states_next_to_kryo_values_are_read(
    savepoint: flink.FlinkSavepoint,
) -> None:
    last = {key: key + 4 for key in KEYS}
    assert by_number(savepoint, "kept", "number") == last
    assert by_number(savepoint, "kept", "text") == {key: f"t{last[key]}" for key in KEYS}
    assert by_number(savepoint, "kept", "duration") == {
        0: "PT-1.5S",
        1: "PT0S",
        2: "PT1.5S",
        3: "PT3S",
    }
    assert sorted(savepoint.timers("kept").column("timestamp").to_pylist()) == [
        4102444800000 + number for number in range(8)
    ]


@pytest.mark.parametrize("state", ["opaque", "another"])
def test_kryo_values_are_named_or_read_as_bytes(directory: Path, state: str) -> None:
    of_heap = flink.open_savepoint(directory / "hashmap-native")
    with pytest.raises(UnreadableStateError, match=r"PatternJob\$Opaque \(by Kryo\)"):
        of_heap.read_state("kept", state)
    of_rocksdb = flink.open_savepoint(directory / "rocksdb-native")
    values = of_rocksdb.read_state("kept", state).column("value").to_pylist()
    assert len(values) == len(set(values)) == len(KEYS)
