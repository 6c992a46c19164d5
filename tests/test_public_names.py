"""The names that users can learn: the pages of the API reference list them, and nothing else is public_names."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PAGES = {
    "holdfast": "api-holdfast.md",
    "holdfast.backends": "api-backends.md",
    "holdfast.errors": "api-errors.md",
    "holdfast.flink": "api-flink.md",
    "holdfast.locations": "api-locations.md",
    "holdfast.locations.adapters": "api-adapters.md",
    "holdfast.spark.sinks.delta": "api-sinks.md",
    "holdfast.spark.sinks.files": "api-sinks.md",
    "holdfast.spark.sinks.iceberg": "api-sinks.md",
    "holdfast.spark.sinks.kafka": "api-sinks.md",
    "holdfast.spark.sinks.postgres": "api-sinks.md",
    "holdfast.testing": "api-testing.md",
}
MAX_NAMES = {
    "holdfast": 50,
    "holdfast.backends": 30,
    "holdfast.locations": 26,
    "holdfast.locations.adapters": 30,
}


def documented_names(module: str) -> list[str]:
    """Return the names on the page of a module."""
    page = (ROOT / "docs" / PAGES[module]).read_text()
    return re.findall(rf"^::: {re.escape(module)}\.(\w+)$", page, re.MULTILINE)


def public_names(module: str) -> list[str]:
    """Return the public_names names of a module."""
    if module == "holdfast.errors":  # all its classes
        errors = vars(import_module(module)).values()
        return [error.__name__ for error in errors if getattr(error, "__module__", "") == module]
    return list(import_module(module).__all__)


def can_have_docstring(value: object) -> bool:
    """Return whether a value can have a docstring: aliases of types and constants can't."""
    return inspect.isclass(value) or inspect.isfunction(value)


@pytest.mark.parametrize("module", PAGES)
def test_the_page_of_a_module_shows_exactly_its_public_names(module: str) -> None:
    assert sorted(documented_names(module)) == sorted(public_names(module))


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    values = {name: getattr(import_module(module), name) for name in public_names(module)}
    assert [
        name for name, value in values.items() if can_have_docstring(value) and not value.__doc__
    ] == []


@pytest.mark.parametrize("module", MAX_NAMES)
def test_a_module_has_no_more_names_than_one_can_learn(module: str) -> None:
    assert len(public_names(module)) <= MAX_NAMES[module]


def test_no_name_is_public_in_two_modules_with_two_meanings() -> None:
    meanings: dict[str, set[int]] = {}
    for module in PAGES:
        if module.startswith("holdfast.spark.sinks."):
            continue  # they are used with the name of the module: delta.merge
        for name in public_names(module):
            meanings.setdefault(name, set()).add(id(getattr(import_module(module), name)))
    assert [name for name, values in meanings.items() if len(values) > 1] == []


def test_every_page_of_the_reference_is_of_a_module() -> None:
    assert {page.name for page in (ROOT / "docs").glob("api-*.md")} == set(PAGES.values())
