"""The pages of error messages quote them as they are in the sources."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from holdfast import errors

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SYMPTOMS = "".join(re.findall(r"^\*\*See:.*", RUNBOOK, re.MULTILINE))
MESSAGES = [
    " ".join(text.split())
    for text in (*re.findall(r"\*\*(.+?)\*\*", PAGE, re.DOTALL), *SYMPTOMS.split("`")[1::2])
    if " " in text and not text.startswith("holdfast ")
]
SOURCES = ("locations", "backends", "src/holdfast")


@cache
def source_texts() -> list[str]:
    """Return all texts in the sources, with `…` for inserted values."""
    return [
        text
        for source in SOURCES
        for file in (ROOT / source).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (text := _text(node))
    ]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_one_of_the_sources(message: str) -> None:
    for clause in message.replace("'…'", "…").rstrip(".,").split("; "):
        pieces = [re.escape(piece) for piece in clause.split("…")]
        wanted = re.compile(".*".join(pieces), re.DOTALL)
        assert any(wanted.search(text) for text in source_texts()), clause


def test_every_error_has_its_place() -> None:
    leaves = {
        error.__name__
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.CheckpointError)
    } - {"CheckpointError", "StreamClosedError"}
    assert [name for name in sorted(leaves) if f"`{name}`" not in PAGE + RUNBOOK] == []
