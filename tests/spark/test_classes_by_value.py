"""Classes of the main script, as executors get them by value."""

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
NO_FIELDS = "class One(msgspec.Struct):\n    limit: ClassVar[int] = 3"
DEFINITIONS = [
    DATACLASS,
    *(f"{DATACLASS}    {field}\n" for field in MORE_FIELDS),
    *STRUCTS.values(),
    NO_FIELDS,
]


@dataclass
class One:
    user: str


@pytest.fixture(scope="module")
def pickles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the pickled class of each definition, from a script that has it."""
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
def unpickle(pickles: dict[str, bytes]) -> Any:
    """Return a function that unpickles a class of the script by its text."""
    return lambda definition: cloudpickle.loads(pickles[definition])


def test_dataclass_is_the_same_type_as_in_a_module(unpickle: Any) -> None:
    cls = unpickle(DATACLASS)
    assert [field.default is MISSING for field in fields(cls)] == [True]
    stored, here = (
        ListStateDescriptor("s", element_type).serializer.stored for element_type in (cls, One)
    )
    assert stored.form == here.form


@pytest.mark.parametrize(("field", "outcome"), MORE_FIELDS.items(), ids=MORE_FIELDS)
def test_dataclass_migrates_like_one_of_a_module(
    unpickle: Any, field: str, outcome: AbstractContextManager[object]
) -> None:
    stored = ListStateDescriptor("s", unpickle(DATACLASS)).serializer
    wanted = ListStateDescriptor("s", unpickle(f"{DATACLASS}    {field}\n")).serializer
    with outcome:
        assert wanted.migration(stored.stored, stored.storage_type) is not None


@pytest.mark.parametrize("definition", STRUCTS.values(), ids=STRUCTS)
def test_struct_with_lost_fields_is_refused(unpickle: Any, definition: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"lost its field 'user' .* define it in a module"
    ):
        ListStateDescriptor("s", unpickle(definition))


def test_struct_without_fields_is_accepted(unpickle: Any) -> None:
    cls = unpickle(NO_FIELDS)
    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", cls))
    state.add(cls())
    assert state.get() == [cls()]
