"""Which of the reports of a batch come from the pass whose rows the sink holds.

A sink may look at a few rows before it reads all of them, which runs some subtasks once more; Spark may run
tasks again; and all that comes to the driver is reports, in no particular order.
"""

from holdfast.spark.subtask.acknowledgements import Acknowledgement


def is_doubled(acknowledgements: list[Acknowledgement]) -> bool:
    """Whether a subtask came to its end twice in one stage."""
    seen = {(report.stage_id, report.subtask) for report in acknowledgements}
    return len(seen) < len(acknowledgements)


def of_the_pass(
    acknowledgements: list[Acknowledgement], parallelism: int
) -> list[Acknowledgement] | None:
    """The reports of the only pass in which all rows were read.

    Glimpses before that are passes of their own, in which some subtasks may have come to their end; all of
    them, if none had a row to show. Reports behind the pass can be of rows that were lost from a cache and
    computed anew, for the sink.

    Args:
        acknowledgements: All reports of a batch.
        parallelism: Number of subtasks.

    Returns:
        A report of each subtask; None if there was no such pass, or maybe several.
    """
    everybody = set(range(parallelism))
    stages: dict[int, list[Acknowledgement]] = {}
    for report in acknowledgements:
        stages.setdefault(report.stage_id, []).append(report)
    whole = [reports for reports in stages.values() if _subtasks(reports) == everybody]
    if not whole:
        whole = [acknowledgements]  # maybe each partition was computed by a job of its own
    while len(whole) > 1 and not any(map(_shows_rows, whole[0])):
        del whole[0]
    reports = whole[0]
    if len(whole) > 1 or len(reports) != parallelism or _subtasks(reports) != everybody:
        return None
    begun = min(report.task_attempt_id for report in reports)
    glimpses = [report for report in acknowledgements if report not in reports]
    are_before = all(report.task_attempt_id < begun for report in glimpses)
    are_glimpses = _subtasks(glimpses) != everybody or not any(map(_shows_rows, glimpses))
    return reports if are_before and are_glimpses else None


def _subtasks(reports: list[Acknowledgement]) -> set[int]:
    return {report.subtask for report in reports}


def _shows_rows(report: Acknowledgement) -> bool:
    return report.state.statistics is None or report.state.statistics.rows_out > 0
