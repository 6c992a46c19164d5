import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import CheckpointError


def subclasses(of: type[CheckpointError]) -> list[type[CheckpointError]]:
    """All subclasses that the module defines, depth first."""
    return [one for child in of.__subclasses__() for one in (child, *subclasses(child))]


CLASSES: list[type[CheckpointError]] = [CheckpointError, *subclasses(CheckpointError)]


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn: list[tuple[str, str]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"([│├└─ ]*)(\w+Error)\b.*", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn.append((path[depth - 1] if depth else "Exception", found[2]))
    assert drawn[0] == ("Exception", "CheckpointError")
    expected = {(parent.__name__, one.__name__) for one in CLASSES for parent in one.__bases__[:1]}
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
def test_errors_survive_pickling(kind: type[CheckpointError], location: str) -> None:
    error = kind("it broke", location)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.location, copy.args) == (str(error), location, error.args)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_location_is_appended_to_the_message(kind: type[CheckpointError]) -> None:
    assert str(kind("it broke")) == "it broke"
    assert str(kind("it broke", "file:///a b")) == "it broke: location='file:///a b'"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_says_what_it_means(kind: type[CheckpointError]) -> None:
    assert kind.__doc__


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
