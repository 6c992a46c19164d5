import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import CheckpointError


def subclasses(of: type[CheckpointError]) -> list[type[CheckpointError]]:
    """All subclasses that the module defines, depth first."""
    children = [child for child in of.__subclasses__() if child.__module__ == errors.__name__]
    return [cls for child in children for cls in (child, *subclasses(child))]


CLASSES: list[type[CheckpointError]] = [CheckpointError, *subclasses(CheckpointError)]


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn: list[tuple[str, str]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").partition("has a `kind`")[0].splitlines():
        match = re.fullmatch(r"([│├└─ ]*)(\w+Error)\b.*", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn.append((path[depth - 1] if depth else "Exception", match[2]))
    assert drawn[0] == ("Exception", "CheckpointError")
    expected = {(parent.__name__, cls.__name__) for cls in CLASSES for parent in cls.__bases__[:1]}
    assert set(drawn) == expected
    assert len(drawn) == len(expected)


def test_every_class_of_the_module_is_in_the_tree() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("location", ["", "file:///a"])
@pytest.mark.parametrize("case", ["", "exists"])
def test_errors_survive_pickling(kind: type[CheckpointError], location: str, case: str) -> None:
    error = kind("it broke", location, case)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.location, copy.args) == (str(error), location, error.args)
    assert (copy.kind, copy.code) == (error.kind, error.code)
    assert copy.kind == (case or kind.kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_location_and_the_code_end_the_text(kind: type[CheckpointError]) -> None:
    code = f" [{kind('').code}]" if kind.kind else ""
    assert str(kind("it broke")) == f"it broke{code}"
    assert str(kind("it broke", "file:///a b")) == f"it broke: location='file:///a b'{code}"
    assert str(kind("it broke", kind="taken-over")) == "it broke [HF-TAKEN-OVER]"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_a_docstring(kind: type[CheckpointError]) -> None:
    assert kind.__doc__


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
