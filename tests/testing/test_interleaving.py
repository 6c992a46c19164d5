from collections.abc import Callable

import pytest

from holdfast.locations.adapters import MemoryFileSystem
from holdfast.locations.storages import check_job_id
from holdfast.testing import Interleaved, at_every_step

HERE = (__file__,)


class Account:
    def __init__(self) -> None:
        self.balance = 0

    def add_one(self) -> None:
        before = self.balance
        after = before + 1
        self.balance = after


def test_race_visible_at_every_third_step_is_found() -> None:
    balances = []

    def prepare() -> tuple[Callable[[], None], Callable[[], None]]:
        account = Account()

        def call() -> None:
            account.add_one()
            balances.append(account.balance)

        return call, account.add_one

    at_every_step(prepare, lambda outcome: None, code=HERE)
    assert {1, 2} <= set(balances)


def test_each_line_is_a_step_with_an_outcome() -> None:
    outcomes: list[Interleaved] = []

    def call() -> str:
        value = "done"
        return value  # noqa: RET504

    at_every_step(lambda: (call, list), outcomes.append, code=HERE)
    assert [(outcome.reached, outcome.result, outcome.error) for outcome in outcomes] == [
        (True, "done", None)
    ] * 2


def test_an_error_is_an_outcome() -> None:
    outcomes: list[Interleaved] = []
    at_every_step(lambda: ((lambda: 1 // 0), list), outcomes.append, code=HERE)
    assert [type(outcome.error) for outcome in outcomes] == [ZeroDivisionError]


def test_the_code_of_locations_counts_with_its_folders(memory_directory: str) -> None:
    outcomes: list[Interleaved] = []
    file_system = MemoryFileSystem()
    # Not `list`, which has as many lines as there are files in this process.
    at_every_step(
        lambda: ((lambda: file_system.prepare_directory(memory_directory)), list), outcomes.append
    )
    at_every_step(lambda: ((lambda: check_job_id("job")), list), outcomes.append)
    assert outcomes


def test_call_without_counted_lines_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no line of the call"):
        at_every_step(lambda: (list, list), lambda outcome: None)
