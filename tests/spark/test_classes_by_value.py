"""Classes of the script that was started, as they come to executors."""

import pickle
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest
from pyspark import cloudpickle

from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.serializers import IncompatibleTypeError
from holdfast.errors import InvalidRequestError

SCRIPT = """
import pickle
import sys
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from pyspark import cloudpickle

import holdfast as hf

hf.stateful  # as a script that runs an operator
arrived = {}
for definition in pickle.load(sys.stdin.buffer):
    exec(definition, globals())
    arrived[definition] = cloudpickle.dumps(One)
sys.stdout.buffer.write(pickle.dumps(arrived))
"""

DATACLASS = """
@dataclass
class One:
    user: str
"""
MORE_FIELDS = {
    "tags: list[str] = field(default_factory=list)": nullcontext(),
    "visits: int = 0": nullcontext(),
    "visits: int": pytest.raises(IncompatibleTypeError),
}
STRUCTS = {
    "object": "class One(msgspec.Struct):\n    user: str",
    "array": "class One(msgspec.Struct, array_like=True):\n    user: str",
    "base": "class Base(msgspec.Struct):\n    user: str\nclass One(Base):\n    pass",
    "inside": (
        "class Inner(msgspec.Struct):\n    user: str\n@dataclass\nclass One:\n    inner: list[Inner]"
    ),
}
NOTHING = "class One(msgspec.Struct):\n    limit: ClassVar[int] = 3"
DEFINITIONS = [
    DATACLASS,
    *(f"{DATACLASS}    {field}\n" for field in MORE_FIELDS),
    *STRUCTS.values(),
    NOTHING,
]


@dataclass
class One:
    user: str


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The class of each definition, as it comes from a script that has it."""
    script = tmp_path_factory.mktemp("classes") / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        input=pickle.dumps(DEFINITIONS),
        stdout=subprocess.PIPE,
        check=True,
    )
    classes: dict[str, bytes] = pickle.loads(done.stdout)
    return classes


@pytest.fixture
def arrived(pickled: dict[str, bytes]) -> Any:
    """Makes a class, by its text, that was defined in a script, and has come from there."""
    return lambda definition: cloudpickle.loads(pickled[definition])


def test_a_dataclass_is_the_same_type_as_in_a_module(arrived: Any) -> None:
    cls = arrived(DATACLASS)
    assert [field.default is MISSING for field in fields(cls)] == [True]
    stored, here = (
        ListStateDescriptor("s", element_type).serializer.stored for element_type in (cls, One)
    )
    assert stored.form == here.form


@pytest.mark.parametrize(("field", "outcome"), MORE_FIELDS.items(), ids=MORE_FIELDS)
def test_a_dataclass_migrates_as_one_of_a_module(
    arrived: Any, field: str, outcome: AbstractContextManager[object]
) -> None:
    stored = ListStateDescriptor("s", arrived(DATACLASS)).serializer
    wanted = ListStateDescriptor("s", arrived(f"{DATACLASS}    {field}\n")).serializer
    with outcome:
        assert wanted.migration(stored.stored, stored.storage_type) is not None


@pytest.mark.parametrize("definition", STRUCTS.values(), ids=STRUCTS)
def test_a_struct_that_has_lost_its_fields_is_refused(arrived: Any, definition: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"lost its field 'user' .* define it in a module"
    ):
        ListStateDescriptor("s", arrived(definition))


def test_a_struct_without_fields_has_lost_none(arrived: Any) -> None:
    nothing = arrived(NOTHING)
    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", nothing))
    state.add(nothing())
    assert state.get() == [nothing()]
