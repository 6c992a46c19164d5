"""The history of earlier checkpoints, and the commands that show it."""

import dataclasses
import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.coordinator import acknowledge, begin_checkpoint, coordinator, progress, run_batch
from msgspec.structs import replace

from holdfast.cli.command_line import main
from holdfast.errors import CheckpointCorruptedError, StorageUnavailableError
from holdfast.locations import CompletedCheckpoint, latest_checkpoint
from holdfast.spark.query import CLEANER
from holdfast.spark_progress import (
    HISTORY,
    CheckpointStatistics,
    OperatorStatistics,
    history_of,
    next_history,
)
from holdfast.spark_progress.history import (
    MIN_CHECKPOINTS,
    NO_HISTORY,
    decode_history,
    encode_history,
    unpack_history,
    with_checkpoint,
)
from holdfast.testing import ManualClock, counting_file_system


def newest(directory: str) -> CompletedCheckpoint:
    completed = latest_checkpoint(directory, "job")
    assert completed is not None
    return completed


def run_with_kill_and_failure(directory: str) -> None:
    """Run ten batches: a driver runs 0 to 4, the next one aborts 5, and a third aborts 5 and runs the rest."""
    clock = ManualClock(tick_ms=1)
    first = coordinator(directory, num_retained=1, clock=clock)
    for batch_id in range(5):
        run_batch(first, batch_id)
    CLEANER.wait()  # a claim is repeated if a checkpoint is deleted concurrently
    second = coordinator(directory, num_retained=1, clock=clock)
    second.abort(begin_checkpoint(second, 5), ValueError("password hunter2"))
    third = coordinator(directory, num_retained=1, clock=clock)
    third.abort(
        begin_checkpoint(third, 5), StorageUnavailableError("the store is down", "file:///x")
    )
    for batch_id in range(5, 10):
        run_batch(third, batch_id)
    CLEANER.wait()


def test_history_has_deleted_checkpoints(memory_directory: str) -> None:
    run_with_kill_and_failure(memory_directory)
    past = history_of([newest(memory_directory)])
    assert [each.checkpoint for each in past.checkpoints] == list(range(1, 11))
    assert [each.batch for each in past.checkpoints] == list(range(10))
    assert [each.epoch for each in past.checkpoints] == [1] * 5 + [3] * 5
    assert all(each.operators["operator"].parallelism == 2 for each in past.checkpoints)
    [restart] = [row for row in past.checkpoint_rows(()) if row["claims"]]
    assert (restart["restored_checkpoint"], restart["checkpoint"], restart["claims"]) == (5, 6, 2)


def test_history_has_reasons_of_failed_attempts_without_secrets(memory_directory: str) -> None:
    run_with_kill_and_failure(memory_directory)
    failed = history_of([newest(memory_directory)]).failed_attempts
    assert [(each.checkpoint, each.batch, each.epoch, each.reason) for each in failed] == [
        (6, 5, 2, "ValueError"),
        (6, 5, 3, "StorageUnavailableError: the store is down"),
    ]


def test_history_has_each_attempt_once(memory_directory: str) -> None:
    run_with_kill_and_failure(memory_directory)
    run_batch(coordinator(memory_directory), 10)
    assert len(history_of([newest(memory_directory)]).failed_attempts) == 2


def test_history_costs_no_calls_to_the_store(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts:
        driver = coordinator(counts.directory, num_retained=1)
        bills = []
        for batch_id in range(20):
            run_batch(driver, batch_id)
            CLEANER.wait()
            bills.append(dict(counts.calls))
            counts.clear()
    assert bills[2] == bills[19]


def test_unreadable_history_starts_from_scratch(memory_directory: str) -> None:
    driver = coordinator(memory_directory)
    for batch_id in range(3):
        run_batch(driver, batch_id)
    last = newest(memory_directory)
    states = last.metadata.coordinator_states | {HISTORY: b"no history"}
    damaged = dataclasses.replace(last, metadata=replace(last.metadata, coordinator_states=states))
    with pytest.raises(CheckpointCorruptedError, match="history in checkpoint 3 of job job"):
        history_of([damaged])
    carried = decode_history(next_history(damaged, ())[HISTORY], "test")
    assert [each.checkpoint for each in unpack_history(carried)] == [3]


def test_history_starts_with_a_checkpoint_without_history(memory_directory: str) -> None:
    driver = coordinator(memory_directory)
    pending = begin_checkpoint(driver, 0)
    completed = driver.complete(pending, acknowledge(pending), progress(0))
    assert HISTORY not in completed.metadata.coordinator_states
    assert [each.checkpoint for each in history_of([completed]).checkpoints] == [1]


@pytest.mark.parametrize("operators", [1, 4, 16, 40])
def test_history_of_a_thousand_checkpoints_stays_below_32_kib(operators: int) -> None:
    numbers = random.Random(operators)
    history = NO_HISTORY
    written: list[CheckpointStatistics] = []
    for number in range(1, 1300):
        written.append(checkpoint_of(number, operators, numbers))
        history = with_checkpoint(history, written[-1])
        encoded = encode_history(history)
        assert len(encoded) < 32 * 1024
        history = decode_history(encoded, "test")
    remembered = unpack_history(history)
    assert remembered
    assert len(remembered) >= MIN_CHECKPOINTS or operators == 16
    for known, was in zip(reversed(remembered), reversed(written), strict=False):
        assert known == replace(was, operators=known.operators)
        assert known.operators in ({}, was.operators)
    assert bool(remembered[-1].operators) == (operators <= 16)


def checkpoint_of(number: int, operators: int, numbers: random.Random) -> CheckpointStatistics:
    """Return a checkpoint with random statistics, which compress badly."""
    return CheckpointStatistics(
        number,
        number - 1,
        1_700_000_000_000 + 1500 * number + numbers.randrange(400),
        numbers.randrange(200, 900),
        number // 50,
        numbers.randrange(20_000, 60_000),
        numbers.randrange(1_000_000),
        numbers.randrange(10_000),
        0,
        numbers.randrange(10_000),
        {
            f"operator-{index}": OperatorStatistics(
                4,
                numbers.randrange(10_000),
                0,
                numbers.randrange(10_000),
                numbers.randrange(50_000),
                numbers.randrange(400),
                numbers.choice(["worker", "local", "storage"]),
            )
            for index in range(operators)
        },
    )


def long_history() -> bytes:
    history, numbers = NO_HISTORY, random.Random(7)
    for number in range(1, 140):
        history = with_checkpoint(history, checkpoint_of(number, 1, numbers))
    return encode_history(history)


LONG = long_history()


@given(place=st.integers(0, len(LONG) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_history_is_reported_as_corrupted(place: int, byte: int, *, cut: bool) -> None:
    damaged = LONG[:place] if cut else LONG[:place] + bytes([byte]) + LONG[place + 1 :]
    with suppress(CheckpointCorruptedError):
        unpack_history(decode_history(damaged, "test"))


def test_list_shows_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_with_kill_and_failure(f"file://{tmp_path}")
    assert main(["list", f"file://{tmp_path}", "--history", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["checkpoint"] for row in rows] == [1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9, 10]
    kinds = [row["kind"] for row in rows if row["checkpoint"] == 6]
    assert kinds == ["failed attempt", "failed attempt", "checkpoint"]
    assert [row["checkpoint"] for row in rows if row.get("is_retained")] == [10]
    assert main(["list", f"file://{tmp_path}", "--history"]) == 0
    text = capsys.readouterr().out
    assert "restarted from 5 in epoch 3" in text
    assert "failed: StorageUnavailableError: the store is down" in text


def test_report_shows_the_history(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    run_with_kill_and_failure(f"file://{checkpoints}")
    page = tmp_path / "report.html"
    assert main(["report", f"file://{checkpoints}", "-o", str(page)]) == 0
    text = page.read_text()
    assert "Duration of 10 checkpoints" in text
    assert "Restarted from #5 before batch 5, in epoch 3, the second claim since" in text
    assert "StorageUnavailableError: the store is down" in text
    assert text.count('class="restart"') == 2  # in a chart each, of duration and size
