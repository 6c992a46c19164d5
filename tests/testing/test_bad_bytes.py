"""`proof.bad_bytes`: it finds errors of other types, is reproducible by seed, and finds no errors in our readers."""

import itertools
from pathlib import Path

import pytest

from holdfast.errors import CheckpointCorruptedError
from proof.bad_bytes import changed_input, try_inputs, try_reader
from proof.corpora import minimal_corpus, read_corpora
from proof.readers import READERS, Reader, readers


def careless(content: bytes) -> None:
    if not content.startswith(b"whole"):
        raise CheckpointCorruptedError("no beginning")
    if len(content) != 5:
        raise ValueError("careless")


def check_length(content: bytes) -> None:
    """Refuse long input; only `CheckpointCorruptedError` executes code of Holdfast."""
    if len(content) > 5:
        raise CheckpointCorruptedError("too long")


def test_failure_is_reported_with_input_number() -> None:
    outcome = try_reader(Reader({"it": b"whole"}, careless), "seed", inputs=200)
    assert outcome.inputs == 200
    assert outcome.refused > 20
    assert outcome.escaped
    assert "ValueError at test_bad_bytes.py:" in outcome.escaped[0]
    assert outcome.refused + len(outcome.escaped) <= 200


def test_endless_reader_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(content: bytes) -> None:
        for _ in itertools.count() if content != b"whole" else ():
            pass

    monkeypatch.setattr("proof.bad_bytes.LONGEST_S", 0.01)
    outcome = try_reader(Reader({"it": b"whole"}, endless), "seed", inputs=2)
    assert ["HangsError" in escaped for escaped in outcome.escaped] == [True, True]


def test_reader_failing_on_intact_input_is_an_error() -> None:
    with pytest.raises(CheckpointCorruptedError):
        try_reader(Reader({"it": b"no beginning"}, careless), "seed", inputs=1)


def test_a_seed_gives_the_same_inputs_again() -> None:
    reader = Reader({"it": bytes(range(100))}, careless)
    first, again, other = (
        [changed_input(reader, seed, number) for number in range(20)]
        for seed in ("one", "one", "other")
    )
    assert first == again != other


@pytest.mark.parametrize("name", READERS)
def test_bad_bytes_give_values_or_holdfast_errors(name: str, tmp_path: Path) -> None:
    known = readers(tmp_path)
    assert tuple(known) == READERS
    outcome = try_reader(known[name], "tests", inputs=25)
    assert not outcome.escaped
    assert outcome.refused > 10


@pytest.mark.parametrize("name", READERS)
def test_coverage_inputs_give_values_or_holdfast_errors(name: str, tmp_path: Path) -> None:
    reader = readers(tmp_path)[name]
    inputs = read_corpora()[name]
    assert len(inputs) > 5
    assert try_inputs(reader, map(reader.seal, inputs)).escaped == []


def test_shortest_input_of_equal_coverage_is_kept() -> None:
    longer = b"longer"
    kept = minimal_corpus(
        Reader({"it": b"whole"}, check_length), [b"longest", longer, b"whole", b"ended"]
    )
    assert kept == [longer]
