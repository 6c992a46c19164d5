"""Values in state of Flink's operators, and values of Scala, byte by byte."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import LONG, STRING, Kind, composite, i4, i8, snapshot, string, utf
from contracts.flink_savepoints import Subtask, list_states, metadata
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError

STREAMING = "org.apache.flink.streaming."
SCALA = "org.apache.flink.api.scala.typeutils."
ELEMENT = composite(
    f"{STREAMING}runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot",
    LONG.snapshot,
    outer_version=2,
)
ENUM = snapshot(
    f"{SCALA}ScalaEnumSerializerSnapshot",
    3,
    utf("shop.Size$") + i4(2) + utf("Small") + i4(1) + utf("Large") + i4(5),
)


def element(kind: str, timestamp: int | None = None, value: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "timestamp": timestamp, "value": value}


CASES: dict[str, tuple[bytes, list[bytes], list[Any]]] = {
    "elements of a stream": (
        ELEMENT,
        [
            b"\0" + i8(9) + i8(7),
            b"\1" + i8(8),
            b"\2" + i8(6),
            b"\3" + bytes(28),
            b"\4" + i4(-1),
            b"\5\1",
            b"\6" + i4(0) + i8(5),
        ],
        [
            element("record", 9, 7),
            element("record", None, 8),
            element("watermark", 6),
            element("latency marker"),
            element("status"),
            element("attributes"),
            element("watermark"),
        ],
    ),
    "options": (
        composite(f"{SCALA}ScalaOptionSerializerSnapshot", STRING.snapshot, outer_version=2),
        [b"\1" + string("a"), b"\0"],
        ["a", None],
    ),
    "either": (
        composite(f"{SCALA}ScalaEitherSerializerSnapshot", LONG.snapshot, STRING.snapshot),
        [b"\1" + i8(3), b"\0" + string("b")],
        [{"left": 3, "right": None}, {"left": None, "right": "b"}],
    ),
    "collections of Scala": (
        composite(
            f"{SCALA}TraversableSerializerSnapshot",
            LONG.snapshot,
            outer=utf("implicitly[...]"),
            outer_version=2,
        ),
        [i4(2) + b"\1" + i8(3) + b"\0", i4(0)],
        [[3, None], []],
    ),
    "pairs of Scala": (
        composite(
            f"{SCALA}Tuple2CaseClassSerializerSnapshot",
            LONG.snapshot,
            STRING.snapshot,
            outer=utf("scala.Tuple2"),
            outer_version=2,
        ),
        [i8(3) + string("c")],
        [{"f0": 3, "f1": "c"}],
    ),
    "enumerations of Scala": (ENUM, [i4(5), i4(1)], ["Large", "Small"]),
}


def open_job(directory: Path, described: bytes, values: list[bytes]) -> flink.FlinkSavepoint:
    kind = Kind(described, pa.null(), lambda data: data, st.none())
    handle = list_states({"v": (kind, values), "w": (LONG, [1])})
    (directory / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=handle)}}))
    return flink.open_savepoint(directory)


@pytest.mark.parametrize("case", CASES)
def test_values_are_read_with_their_types(case: str, tmp_path: Path) -> None:
    described, stored, values = CASES[case]
    savepoint = open_job(tmp_path, described, stored)
    assert savepoint.read_state("job", "v").column("value").to_pylist() == values
    assert savepoint.read_state("job", "w").column("value").to_pylist() == [1]


@pytest.mark.parametrize(("described", "value"), [(ELEMENT, b"\7"), (ENUM, i4(2))])
def test_undefined_numbers_are_corruption(described: bytes, value: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorruptedError, match=r"type 7|value 2"):
        open_job(tmp_path, described, [value]).read_state("job", "v")
