"""Records of Avro: as a real Flink has written one, which `infra/flink/avro/AvroRecord.java` prints, and all sorts of schemas."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import Kind, snapshot, string, utf
from contracts.flink_savepoints import Subtask, list_states, metadata
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError

RECORD = Path(__file__).parents[1] / "data" / "flink" / "avro.txt"
AVRO = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"


def open_job(directory: Path, described: bytes, *values: bytes) -> flink.FlinkSavepoint:
    """A savepoint with a list of values in their bytes."""
    kind = Kind(described, pa.null(), lambda data: data, st.none())
    handle = list_states({"v": (kind, list(values))})
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=handle)}}))
    return flink.open_savepoint(directory)


def read(directory: Path, described: bytes, *values: bytes) -> list[Any]:
    table = open_job(directory, described, *values).read_state("job", "v")
    values_read: list[Any] = table.column("value").to_pylist()
    return values_read


def of_schema(schema: Any) -> bytes:
    return snapshot(AVRO, 3, string("a.Record") + string(json.dumps(schema)))


def test_a_record_of_a_real_flink_is_read(tmp_path: Path) -> None:
    described, value = map(bytes.fromhex, RECORD.read_text().split())
    expected = {
        "id": 7,
        "n": -3,
        "name": "é",
        "any": {"f1": None, "f2": "x"},
        "tags": ["a", "bb"],
        "m": [("q", 1.5)],
        "k": "B",
        "k2": "A",
        "fx": b"\1\2\3",
        "b": b"\x09\x08",
        "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "price": Decimal("-12.34"),
        "in": {"x": True, "f": 0.5},
    }
    assert read(tmp_path, described, value, value) == [expected] * 2


def test_descriptions_of_older_versions_are_read(tmp_path: Path) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
    for described in (
        snapshot(AVRO, 1, utf(schema)),
        snapshot(AVRO, 2, utf("a.R") + utf(schema)),
    ):
        assert read(tmp_path, described, b"\0\0\0\5") == [{"a": 5}]


def test_a_list_in_several_blocks_is_read(tmp_path: Path) -> None:
    described = of_schema({"type": "array", "items": "boolean"})
    assert read(tmp_path, described, b"\2\1\0\1\1\0", b"\0") == [[True, False, True], []]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "unheard-of"}]},
        {"name": "R"},
    ],
    ids=["of itself", "unknown type", "no type"],
)
def test_parts_missing_in_schema_are_read_as_bytes(schema: Any, tmp_path: Path) -> None:
    assert read(tmp_path, of_schema(schema), b"abc") == [b"abc"]


def test_missing_symbol_is_corruption(tmp_path: Path) -> None:
    described = of_schema({"type": "enum", "name": "E", "symbols": ["A"]})
    with pytest.raises(CheckpointCorruptedError, match="number 1"):
        open_job(tmp_path, described, b"\0\0\0\1").read_state("job", "v")
