"""Selection of the valid reports among those that reach the driver."""

import pytest

from holdfast.locations import StoredSubtask, SubtaskStatistics
from holdfast.spark.subtask import Acknowledgement, reports_of_final_pass


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
