"""Objects of the JDK that Flink leaves to Kryo, and classes that only the job can read."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import RUNTIME, Kind, framed_map, snapshot, utf
from contracts.flink_savepoints import Subtask, list_states, metadata
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointError, UnreadableStateError

DATA = Path(__file__).parents[1] / "data" / "flink"
BY_KRYO = bytes(4)
BY_THE_JOB = bytes(3) + b"\1" + utf("job.Lists")
FLINK_1, FLINK_2 = 4, 6
"""Versions of the metadata."""
OBJECTS = {
    version: [
        line.split("\t")
        for line in (DATA / f"kryo-{version}.txt").read_text(encoding="utf-8").splitlines()
    ]
    for version in ("1.20", "2.3")
}
"""By the version of Flink, objects as JSON, and their bytes in hexadecimal digits."""


def snapshot_of_classes(java_class: str, **registered: bytes) -> bytes:
    """Return Kryo's snapshot: the declared type, and classes of `java.util` with their serializers."""
    classes = {java_class: BY_KRYO} | {
        f"java.util.{name}": writer for name, writer in registered.items()
    }
    entries = {name: utf(name) + writer for name, writer in classes.items()}
    content = utf(java_class) + framed_map(entries) + framed_map({}) * 2
    return snapshot(f"{RUNTIME}kryo.KryoSerializerSnapshot", 2, content)


def read(directory: Path, serializer: bytes, values: list[bytes], version: int) -> list[Any]:
    kind = Kind(serializer, pa.string(), lambda data: data, st.none())
    subtasks = {"job": {0: Subtask(operator=list_states({"v": (kind, values)}))}}
    (directory / "_metadata").write_bytes(metadata(subtasks, version=version))
    table = flink.open_savepoint(directory).read_state("job", "v")
    read_values: list[Any] = table.column("value").to_pylist()
    return read_values


@pytest.mark.parametrize(("flink_version", "version"), [("1.20", FLINK_1), ("2.3", FLINK_2)])
def test_objects_as_a_real_flink_has_written_them_are_read(
    flink_version: str, version: int, tmp_path: Path
) -> None:
    objects = OBJECTS[flink_version]
    values = [bytes.fromhex(digits) for _, digits in objects]
    expected = [None if json == "None" else json for json, _ in objects]
    assert read(tmp_path, snapshot_of_classes("java.lang.Object"), values, version) == expected


@pytest.mark.parametrize(
    ("java_class", "data", "value"),
    [
        ("java.lang.String", b"\x03\x01g\xb3", "g3"),
        ("java.lang.Long", b"\x09\x06", "3"),
        ("[I", b"W\x01\x03\x02\x06", "[1, 3]"),
        ("java.util.UUID", b"W\x01\x02\x06", "00000000-0000-0001-0000-000000000003"),
        ("java.util.concurrent.atomic.AtomicLong", b"W\x01\x06", "3"),
        ("java.util.Optional", b"W\x01\x03\x01o\xb3", '"o3"'),
    ],
)
def test_objects_of_a_declared_type_are_read(
    java_class: str, data: bytes, value: str, tmp_path: Path
) -> None:
    assert read(tmp_path, snapshot_of_classes(java_class), [data], FLINK_1) == [value]


def test_classes_registered_by_job_are_resolved_by_number(tmp_path: Path) -> None:
    serializer = snapshot_of_classes(
        "java.lang.Object", LinkedHashMap=BY_KRYO, ArrayList=BY_THE_JOB
    )
    assert read(tmp_path, serializer, [b"X\x01\x01\x03\x01\x82k\x09\x0d"], FLINK_1) == ['{"k": -7}']


@pytest.mark.parametrize("version", [FLINK_1, FLINK_2])
@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"Y\x01\x01\x03\x01\x81", "java.util.ArrayList"),
        (b"\x01\x00java.util.ArrayLis\xf4\x01\x00", "java.util.ArrayList"),
        (b"\x01\x00job.Colo\xf2\x03", "job.Color"),  # an enum, which Kryo 5 has no mark before
        (b"Z\x01", "number 88"),
    ],
)
def test_class_readable_only_by_job_is_named(
    data: bytes, name: str, version: int, tmp_path: Path
) -> None:
    serializer = snapshot_of_classes(
        "java.lang.Object", LinkedHashMap=BY_KRYO, ArrayList=BY_THE_JOB
    )
    with pytest.raises(UnreadableStateError, match=name):
        read(tmp_path, serializer, [data], version)


@given(
    version=st.sampled_from(["1.20", "2.3"]),
    cut=st.booleans(),
    data=st.data(),
)
def test_damaged_objects_are_values_or_errors_and_nothing_else(
    version: str,
    cut: bool,  # noqa: FBT001
    data: st.DataObject,
    tmp_path: Path,
) -> None:
    digits = data.draw(st.sampled_from(OBJECTS[version]))[1]
    damaged = bytearray.fromhex(digits)
    place = data.draw(st.integers(0, len(damaged) - 1))
    if cut:
        del damaged[place:]
    else:
        damaged[place] = data.draw(st.integers(0, 255))
    metadata_version = FLINK_1 if version == "1.20" else FLINK_2
    with suppress(CheckpointError):
        read(tmp_path, snapshot_of_classes("java.lang.Object"), [bytes(damaged)], metadata_version)


def test_a_declared_type_with_a_serializer_of_the_job_is_bytes(tmp_path: Path) -> None:
    serializer = snapshot_of_classes("java.util.Map", Map=BY_THE_JOB)
    assert read(tmp_path, serializer, [b"W\x01\x02"], FLINK_1) == [b"W\x01\x02"]
