"""Deletions in the background: failures are logged, and `close` waits for them."""

import logging
import threading

import pytest
from contracts.patience import HANGS_S

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations.coordination import CheckpointsCleaner


@pytest.mark.parametrize("threads", [0, -1])
def test_cleaner_without_a_thread_is_refused(threads: int) -> None:
    with pytest.raises(InvalidRequestError, match="must be >= 1"):
        CheckpointsCleaner(threads)


def test_deletions_run_two_at_a_time_in_other_threads() -> None:
    cleaner = CheckpointsCleaner(2)
    may_delete, started = threading.Event(), threading.Semaphore(0)
    threads = []

    def delete() -> None:
        threads.append(threading.current_thread())
        started.release()
        assert may_delete.wait(HANGS_S)

    for _ in range(5):
        cleaner.run(delete, "something")
    started.acquire()
    started.acquire()
    assert len(threads) == 2
    may_delete.set()
    cleaner.wait()
    cleaner.close()
    assert len(threads) == 5
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    "error",
    [StorageUnavailableError("as planned"), ValueError("as planned"), OSError(5, "planned")],
)
def test_failed_deletion_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    cleaner = CheckpointsCleaner()
    done = []

    def fail() -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        cleaner.run(fail, "checkpoint 7")
        cleaner.run(lambda: done.append(1), "another")
        cleaner.close()
    assert done == [1]
    (record,) = [logged for logged in caplog.records if logged.name.startswith("holdfast")]
    assert record.levelno == logging.WARNING
    assert "checkpoint 7" in record.getMessage()
    assert record.exc_info
    assert record.exc_info[1] is error


def test_close_waits_for_requested_deletions() -> None:
    cleaner = CheckpointsCleaner(1)
    done = []
    for number in range(20):
        cleaner.run(lambda number=number: done.append(number), "something")  # type: ignore[misc]
    cleaner.close()
    assert done == list(range(20))
    cleaner.close()


def test_deletion_after_close_runs_at_once() -> None:
    cleaner = CheckpointsCleaner()
    cleaner.close()
    done = []
    cleaner.run(lambda: done.append(threading.current_thread()), "something")
    assert done == [threading.current_thread()]


def test_failure_after_close_is_not_raised() -> None:
    cleaner = CheckpointsCleaner()
    cleaner.close()

    def fail() -> None:
        raise StorageUnavailableError("as planned")

    cleaner.run(fail, "something")


def test_waiting_with_nothing_to_do_returns() -> None:
    cleaner = CheckpointsCleaner()
    cleaner.wait()
    cleaner.close()
    cleaner.wait()
