"""`proof.bad_bytes`: it finds what comes through, gives the same inputs for a seed, and finds nothing in our readers."""

import itertools
from pathlib import Path

import pytest

from holdfast.errors import CheckpointCorruptedError
from proof.bad_bytes import changed_input, try_inputs, try_reader
from proof.corpora import fewest, read_corpora
from proof.readers import READERS, Reader, readers


def careless(content: bytes) -> None:
    if not content.startswith(b"whole"):
        raise CheckpointCorruptedError("no beginning")
    if len(content) != 5:
        raise ValueError("careless")


def tell_apart(content: bytes) -> None:
    """Reads bytes of two kinds: the way through `CheckpointCorruptedError` is in Holdfast."""
    if len(content) > 5:
        raise CheckpointCorruptedError("too long")


def test_what_comes_through_is_told_with_the_number_of_the_input() -> None:
    outcome = try_reader(Reader({"it": b"whole"}, careless), "seed", inputs=200)
    assert outcome.inputs == 200
    assert outcome.refused > 20
    assert outcome.escaped
    assert "ValueError at test_bad_bytes.py:" in outcome.escaped[0]
    assert outcome.refused + len(outcome.escaped) <= 200


def test_a_reader_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(content: bytes) -> None:
        for _ in itertools.count() if content != b"whole" else ():
            pass

    monkeypatch.setattr("proof.bad_bytes.MAX_WAIT_S", 0.01)
    outcome = try_reader(Reader({"it": b"whole"}, endless), "seed", inputs=2)
    assert ["HangsError" in escaped for escaped in outcome.escaped] == [True, True]


def test_a_reader_that_can_t_read_what_is_whole_proves_nothing() -> None:
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
def test_bad_bytes_give_values_or_errors_of_holdfast(name: str, tmp_path: Path) -> None:
    known = readers(tmp_path)
    assert tuple(known) == READERS
    outcome = try_reader(known[name], "tests", inputs=25)
    assert not outcome.escaped
    assert outcome.refused > 10


@pytest.mark.parametrize("name", READERS)
def test_what_coverage_has_led_to_gives_values_or_errors_of_holdfast(
    name: str, tmp_path: Path
) -> None:
    reader = readers(tmp_path)[name]
    inputs = read_corpora()[name]
    assert len(inputs) > 5
    assert try_inputs(reader, map(reader.seal, inputs)).escaped == []


def test_of_inputs_that_reach_the_same_the_shortest_is_kept() -> None:
    longer = b"longer"
    kept = fewest(Reader({"it": b"whole"}, tell_apart), [b"longest", longer, b"whole", b"ended"])
    assert kept == [longer]
