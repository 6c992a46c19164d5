"""A subtask without Spark: its reports, its refusals of operators, and the reports that count."""

from collections.abc import Sequence
from itertools import count

import pyarrow as pa
import pytest
from jobs.job import Job
from jobs.keyed import ReportList
from jobs.operators import Groups, Returns, StopsReading, WrongColumns
from pyspark import cloudpickle

from holdfast import StatefulFunction
from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import CheckpointDeclinedError, CheckpointError, InvalidRequestError
from holdfast.locations import FileSystemCheckpointStorage, StoredSubtask, SubtaskStatistics
from holdfast.spark.settings import Settings
from holdfast.spark.subtask import (
    Acknowledgement,
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    SubtaskRunner,
    TaskPayload,
    decode_acknowledgements,
    reports_of_final_pass,
)
from holdfast.testing import ManualClock


class SteppingClock(ManualClock):
    """A clock that advances by a second at each measurement."""

    def monotonic_s(self) -> float:
        self.advance(1)
        return super().monotonic_s()


def run(
    directory: str,
    function: StatefulFunction,
    clock: Clock = SYSTEM_CLOCK,
    marks: Sequence[int] = (-1, 0, 0, 0),
    parallelism: int = 1,
) -> tuple[list[int], list[bytes]]:
    """Run a task over rows with these marks, and return its output ids and its reports.

    The ids of rows count from 0; rows without data have -1.
    """
    storage = FileSystemCheckpointStorage(directory)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    settings = Settings.parse({"spark.holdfast.checkpoint.dir": "file:///nowhere"})
    reports = ReportList()
    runner = SubtaskRunner(
        operator=OperatorInfo(
            uid="operator",
            parallelism=parallelism,
            key=None,
            input_schema=Job.arrow_schema,
            output_schema=Job.arrow_schema,
        ),
        checkpoint=CheckpointInfo(
            checkpoint_id=1,
            location_reference=access.initialize_location_for_checkpoint(1).location_reference,
        ),
        job=JobStorage(
            job_id="job",
            storage=storage,
            stores=settings.stores,
            compression=settings.compression,
            state=settings.state,
            clock=clock,
        ),
        payload=TaskPayload(cloudpickle.dumps(function), (StoredSubtask(),) * parallelism, None),  # type: ignore[no-untyped-call]
        reports=reports,
    )
    numbers = count()
    ids = [-1 if -parallelism <= mark < 0 else next(numbers) for mark in marks]
    rows = pa.record_batch(
        {"id": ids, "at": [0] * len(ids), "name": ["a"] * len(ids)}, schema=Job.arrow_schema
    ).append_column("subtask", pa.array(marks, pa.int64()))
    batches = [rows.slice(0, 2), rows.slice(2)]
    return [i for batch in runner(batches) for i in batch["id"].to_pylist()], reports.value


def test_rows_are_emitted_and_the_state_is_reported(memory_directory: str) -> None:
    ids, reports = run(memory_directory, Groups(2))
    assert ids == [0, 1]
    assert len(reports) == 1


def test_late_rows_are_dropped_and_counted(memory_directory: str) -> None:
    late = -2  # subtask - 2 * parallelism
    ids, reports = run(memory_directory, Groups(1), marks=(-1, 0, late, late))
    assert ids == [0]
    [report] = decode_acknowledgements(reports)
    counted = report.state.statistics
    assert counted is not None
    assert (counted.rows_in, counted.rows_late) == (1, 2)


def test_subtasks_of_a_task_run_one_after_the_other(memory_directory: str) -> None:
    marks = (2, 2, 2, 2 - 4, 0 - 4, 3, 3 - 4, 3)
    ids, reports = run(memory_directory, Groups(2), marks=marks, parallelism=4)
    assert ids == [0, 1, 3, 4]
    decoded = decode_acknowledgements(reports)
    assert [report.subtask for report in decoded] == [2, 0, 3]
    counted = [report.state.statistics for report in decoded]
    assert [each.rows_in for each in counted if each is not None] == [3, 0, 2]


def test_rows_after_the_end_of_their_subtask_are_refused(memory_directory: str) -> None:
    with pytest.raises(CheckpointDeclinedError, match=r"rows of subtask 0 .* has ended"):
        run(memory_directory, Groups(2), marks=(0, 1, 0), parallelism=2)


def test_durations_of_steps_are_from_the_clock_of_the_job(memory_directory: str) -> None:
    _, reports = run(memory_directory, Groups(2), SteppingClock())
    [report] = decode_acknowledgements(reports)
    counted = report.state.statistics
    assert counted is not None
    steps = counted.restore_ms, counted.process_ms, counted.sync_ms, counted.async_ms
    assert steps == (1000, 1000, 1000, 1000)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (Returns(None), InvalidRequestError, "'operator' returned NoneType"),
        (Returns(5), InvalidRequestError, "'operator' returned int"),
        (Returns([{"id": 1}]), InvalidRequestError, "'operator' yields dict"),
        (StopsReading(1), CheckpointDeclinedError, "before it had read all of its rows"),
        (WrongColumns(1), InvalidRequestError, r"'operator' .* output schema.*\['name'\]"),
    ],
    ids=["returns nothing", "returns a number", "yields a dict", "leaves rows", "other columns"],
)
def test_operator_with_invalid_output_is_refused(
    memory_directory: str, function: StatefulFunction, error: type[CheckpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(memory_directory, function)


# The valid reports among those that reach the driver


def statistics_of(rows_out: int) -> SubtaskStatistics:
    return SubtaskStatistics(5, rows_out, 0, 0, 0, 0, 0)


def reports(text: str) -> list[Acknowledgement]:
    """Parse reports: `a0 a1 b0-` are subtasks 0 and 1 in stage a, and 0 in stage b without rows."""
    return [
        Acknowledgement(
            int(word[1]),
            attempt,
            StoredSubtask(statistics=statistics_of(rows_out=0 if word.endswith("-") else 5)),
            checkpoint_id=1,
            stage_id=ord(word[0]),
        )
        for attempt, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("all_reports", "final_reports"),
    [
        ("a0 a1 a2", "a0 a1 a2"),
        ("a2 a0 a1", "a2 a0 a1"),
        ("a0 b0 b1 b2", "b0 b1 b2"),  # a prefix was read before
        ("a0 c1 b0 b1 b2", "b0 b1 b2"),
        ("a0 b1 c2", "a0 b1 c2"),  # one job for each partition
        (
            "a0- b1- c2- d0- d1- d2-",
            "d0- d1- d2-",
        ),  # isEmpty() reads everything, and there are no rows
        ("a0- b1- c2- d0 d1 d2", "d0 d1 d2"),
        ("a0- a1- a2- b0- b1- b2-", "b0- b1- b2-"),
    ],
)
def test_reports_of_the_only_complete_pass_count(all_reports: str, final_reports: str) -> None:
    counted = reports_of_final_pass(reports(all_reports), 3)
    assert counted is not None
    wanted = [(int(word[1]), ord(word[0])) for word in final_reports.split()]
    assert [(report.subtask, report.stage_id) for report in counted] == wanted


@pytest.mark.parametrize(
    "all_reports",
    [
        "",
        "a0 a1",
        "a0 b1",
        "a0 a1 a2 b0 b1 b2",  # two actions
        "a0 a1 a1 a2",  # a part was run twice
        "a0 a1 a2 b0 c1 d2",  # all partitions one by one, and an action
        "a0- b1- c2 d0 d1 d2",
        "d0 d1 d2 a0- b1- c2-",
        "d0 d1 d2 a0- a1- a2-",
        "a0 b0 b1 c2",
        "a0 a1 a2 b1",  # computed again for the sink, or a prefix was read after
        "a0 b0 c1 b1 b2",
    ],
)
def test_no_report_counts_without_a_complete_pass(all_reports: str) -> None:
    assert reports_of_final_pass(reports(all_reports), 3) is None
