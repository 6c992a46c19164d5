"""Classes of the script that was started, as they come to executors."""

import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.serializers import Outcome
from holdfast.errors import InvalidRequestError

SCRIPT = """
import sys
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from pyspark import cloudpickle

import holdfast.spark

{definition}

sys.stdout.buffer.write(cloudpickle.dumps(One))
"""


@dataclass
class One:
    user: str


@pytest.fixture
def arrived(tmp_path: Path) -> Any:
    """Makes a class, by its text, that was defined in a script, and has come from there."""

    def make(definition: str) -> Any:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(definition=definition))
        done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, check=True)
        return cloudpickle.loads(done.stdout)

    return make


DATACLASS = """
@dataclass
class One:
    user: str
"""


def test_a_dataclass_is_the_same_type_as_in_a_module(arrived: Any) -> None:
    cls = arrived(DATACLASS)
    assert [one.default is MISSING for one in fields(cls)] == [True]
    stored, here = (ListStateDescriptor("s", one).serializer.stored for one in (cls, One))
    assert stored.schema == here.schema


@pytest.mark.parametrize(
    ("field", "outcome"),
    [
        ("tags: list[str] = field(default_factory=list)", Outcome.AFTER_MIGRATION),
        ("visits: int = 0", Outcome.AFTER_MIGRATION),
        ("visits: int", Outcome.INCOMPATIBLE),
    ],
)
def test_a_dataclass_migrates_as_one_of_a_module(
    arrived: Any, field: str, outcome: Outcome
) -> None:
    stored = ListStateDescriptor("s", arrived(DATACLASS)).serializer
    wanted = ListStateDescriptor("s", arrived(f"{DATACLASS}    {field}\n")).serializer
    assert wanted.compatibility(stored.stored, stored.storage_type).outcome is outcome


@pytest.mark.parametrize(
    "definition",
    [
        "class One(msgspec.Struct):\n    user: str",
        "class One(msgspec.Struct, array_like=True):\n    user: str",
        "class Base(msgspec.Struct):\n    user: str\nclass One(Base):\n    pass",
        "class Inner(msgspec.Struct):\n    user: str\n@dataclass\nclass One:\n    inner: list[Inner]",
    ],
    ids=["object", "array", "base", "inside"],
)
def test_a_struct_that_has_lost_its_fields_is_refused(arrived: Any, definition: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"lost its field 'user' .* define it in a module"
    ):
        ListStateDescriptor("s", arrived(definition))


def test_a_struct_without_fields_has_lost_none(arrived: Any) -> None:
    nothing = arrived("class One(msgspec.Struct):\n    limit: ClassVar[int] = 3")
    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", nothing))
    state.add(nothing())
    assert state.get() == [nothing()]
