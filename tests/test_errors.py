import ast
import pickle
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import CheckpointConflictError, CheckpointError


def subclasses(of: type[CheckpointError]) -> list[type[CheckpointError]]:
    """All subclasses that the module defines, depth first."""
    return [cls for child in of.__subclasses__() for cls in (child, *subclasses(child))]


CLASSES: list[type[CheckpointError]] = [CheckpointError, *subclasses(CheckpointError)]


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn: list[tuple[str, str]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").partition("have a `kind`")[0].splitlines():
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
    assert copy.kind == case


def test_the_kind_is_not_part_of_the_text() -> None:
    assert (
        str(CheckpointError("it broke", "file:///a", "exists")) == "it broke: location='file:///a'"
    )


def kinds_in(module: ast.Module) -> set[str]:
    """The kinds that a module gives to errors."""
    return {
        keyword.value.value
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error")
        for keyword in node.keywords
        if keyword.arg == "kind"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    }


def test_the_module_documents_every_value_of_kind() -> None:
    table = (errors.__doc__ or "").partition("have a `kind`")[2]
    listed = re.findall(r"^(?:\w+Error)? {3,}([a-z]+(?:-[a-z]+)*) {2,}\S", table, re.MULTILINE)
    root = Path(__file__).parents[1]
    sources = [
        source
        for folder in ("src", "locations", "backends")
        for source in (root / folder).rglob("*.py")
    ]
    given = {kind for source in sources for kind in kinds_in(ast.parse(source.read_text()))}
    given |= {
        CheckpointConflictError.exists("").kind,
        CheckpointConflictError.taken_over("", newest=2, own=1).kind,
    }
    assert sorted(listed) == sorted(given)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_location_is_appended_to_the_message(kind: type[CheckpointError]) -> None:
    assert str(kind("it broke")) == "it broke"
    assert str(kind("it broke", "file:///a b")) == "it broke: location='file:///a b'"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_a_docstring(kind: type[CheckpointError]) -> None:
    assert kind.__doc__


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
