"""Codes of errors, and the entries of the runbook that they lead to."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import CheckpointConflictError

ROOT = Path(__file__).parents[1]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
ENTRIES = {
    entry.partition("\n")[0]: entry.partition("\n")[2]
    for entry in re.split(r"^### ", RUNBOOK, flags=re.MULTILINE)[1:]
}
CODES = [title for title in ENTRIES if title.startswith("HF-")]
CLASSES = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.CheckpointError)
]


def kinds_in_sources() -> set[str]:
    """Return the kinds of all errors that the sources raise."""
    exists = CheckpointConflictError.exists("")
    taken_over = CheckpointConflictError.taken_over("", newest=2, own=1)
    kinds = {exists.kind, taken_over.kind} | {error.kind for error in CLASSES if error.kind}
    for source in ("locations", "backends", "src/holdfast"):
        for file in (ROOT / source).rglob("*.py"):
            kinds.update(kinds_in(ast.parse(file.read_text())))
    return kinds


def kinds_in(module: ast.Module) -> Iterator[str]:
    """Yield the kinds that a module gives to errors."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
            for keyword in node.keywords:
                if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value)


def test_the_codes_of_the_sources_are_those_of_the_runbook() -> None:
    codes = {f"HF-{kind.upper()}" for kind in kinds_in_sources()}
    assert codes - set(CODES) == set()
    assert set(CODES) - codes == set()
    assert len(CODES) == len(set(CODES))


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_has_symptom_safety_steps_and_check(title: str) -> None:
    parts = re.findall(r"^\*\*(\w+):\*\* ?(.*)", ENTRIES[title], re.MULTILINE)
    assert [name for name, _ in parts] == ["See", "Data", "Do", "Check"]
    assert "`" in ENTRIES[title] or not title.startswith("HF-")


def test_a_code_has_one_heading_in_all_pages() -> None:
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    for code in CODES:
        headings = [re.findall(rf"^#+ .*\b{code}\b.*$", page, re.MULTILINE) for page in pages]
        assert [heading for each in headings for heading in each] == [f"### {code}"]
