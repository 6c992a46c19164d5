"""Tests of the check of words: each pattern matches its example, and good names and sentences pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.checks.wording import CLASSES, FUNCTIONS, NAMES, PENDING, PROSE, VARIABLES, file_lines

ROOT = Path(__file__).parent.parent

SENTENCES = {
    "after, following": "the file behind it",
    "next to, compared with": "a file beside the other",
    "before": "a flag in front of each value",
    "two sentences, or `whose`": "keys of which few stay",
    "a noun: files, rows, settings …": "What is left is deleted.",
    "the noun again": "Those that expired are deleted.",
    "everything that": "it reads all that is stored",
    "no one, the passive, or the agent's name": "nobody reads it",
    "if you …": "whoever sets it",
    "is not a (valid) …": "`x` is no bucket",
    "does not exist, is not one of": "where there is none",
    "not one of the": "it uses none of the states",
    "must be >= 1, got …": "a block has a byte at least",
    "specifies, reports, states, returns": "the file says so",
    "notified, given, reports; is distinguished from": "it was told",
    "resumes, continues": "the batch goes on",
    "uses, follows": "a query goes by the settings",
    "is (stored), means": "the data stands there",
    "is stored, is in": "the state lies in memory",
    "reaches, results in, amounts to": "it comes to this",
    "includes, keeps": "it takes the log along",
    "has, carries": "the file bears the id",
    "has ended": "the job is over",
    "releases, deletes": "it lets go of the file",
    "aborted, failed": "a batch that was given up",
    "partitions, routes, distributes": "rows are dealt",
    "flushes, resolves": "states are settled",
    "alternates; per key": "they take turns",
    "in progress": "a file in the making",
    "again, from scratch": "it reads it anew",
    "in the meantime, concurrently": "it changed meanwhile",
    "any longer, or `no longer`": "it is not there any more",
    "eventually, gradually, still, already": "it is deleted some day",
    "anyway, still": "it fails all the same",
    "except": "all but for the last",
    "forever": "it is kept for ever",
    "only": "the newest alone",
    "repeatedly": "it fails time after time",
    "this many, up to N": "after so many bytes it stops",
    "incompatible": "a misfit",
    "corruption, error": "the flaw of a block",
    "lookup keys": "the needles are sorted",
    "idle ticks": "wake-ups for timers",
    "our …, their …": "a savepoint of ours",
    "its own …, separate": "a file of its own",
    "a compound: Spark settings": "the settings of Spark's.",
    "type, variant": "whatever kind it has",
    "compute, fix, garbage, prefix": "mend it",
    "rollback": "after a roll back",
    "a string": "a text that is stored",
    "a heading that is a noun phrase": "Fine. ## Where files are",
    "spelled, misspelled": "a misspelt key",
}
CODE = {
    "max, min": "MOST_BYTES = 1",
    "has_, is_, all_": "def are_all(): ...",
    "key, call, round": "class KeyTurns: ...",
    "a noun or a verb": "def test_a_file_that_is_lost(): ...",
    "a noun without prepositions": "class StateOfKey: ...",
    "a verb for an action, a noun for a value": "def marked(): ...",
    "the thing's name": "tried = 1",
    "at most 70 characters": f"def test_{'x' * 70}(): ...",
    "an imperative, or a noun phrase": '"""Whether the file exists."""',
    "corruption, error": "def block_flaw(): ...",
}
GOOD = '''"""Rows of a state, and where they are stored."""

MAX_BYTES = 1


def resolve_reports(name: str) -> None:
    """Wait for the reports; see `says` and `what is` in code."""
    raise ValueError(f"name must be a valid bucket name, got {name!r}")  # no longer used elsewhere
'''


def lines_of(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return "\n".join(file_lines(str(path)))


@pytest.mark.parametrize(("instead", "sentence"), SENTENCES.items())
def test_sentence_is_reported_in_every_place(tmp_path: Path, instead: str, sentence: str) -> None:
    first, _, rest = sentence.partition(" ")
    for text in (
        f'"""Fine. {sentence}\n"""',
        f"# {sentence}",
        f"# {first}\n# {rest}" if rest else f"# {first}",
        f'raise ValueError("{first} "\n    f"{rest}")',
    ):
        assert f"write {instead}" in lines_of(tmp_path / "module.py", text)
    assert f"write {instead}" in lines_of(tmp_path / "page.md", sentence)
    assert not lines_of(tmp_path / "page.md", f"```text\n{sentence}\n```\nor `{sentence}`")


@pytest.mark.parametrize(("instead", "code"), CODE.items())
def test_name_or_docstring_in_code_is_reported(tmp_path: Path, instead: str, code: str) -> None:
    assert f"write {instead}" in lines_of(tmp_path / "module.py", code)


def test_examples_cover_every_pattern() -> None:
    rows = NAMES | CLASSES | FUNCTIONS | VARIABLES
    assert set(PROSE.values()) == set(SENTENCES)
    assert set(rows.values()) <= set(SENTENCES) | set(CODE)


def test_good_names_and_sentences_pass(tmp_path: Path) -> None:
    assert not lines_of(tmp_path / "module.py", GOOD)


def test_hit_is_reported_with_file_line_words_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    text = f"{path}:3: 'goes on': write resumes, continues"
    assert lines_of(path, '"""A batch.\n\nIt goes\non."""') == text


def test_pending_places_exist_and_have_hits() -> None:
    command = [sys.executable, "infra/checks/wording.py", "."]
    output = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    places = [line.partition(":")[0] for line in output.splitlines()]
    assert not [
        beginning for beginning in PENDING if not any(p.startswith(beginning) for p in places)
    ]
    assert not [place for place in places if not place.startswith(PENDING)]
