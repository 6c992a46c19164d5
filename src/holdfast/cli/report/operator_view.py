"""An operator on the page: the state and the work of its subtasks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.cli.report.data import Checkpoint, ReportedOperator, Subtask
from holdfast.cli.report.figures import Figure, subtask_figures
from holdfast.cli.report.folded_rows import SHOWN_ROWS, Rows, rows_of

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class OperatorView:
    """An operator, as it was in the newest checkpoint that can be read.

    Attributes:
        operator: The operator.
        checkpoints: Number of checkpoints that rows and times are added up over.
        figures: How evenly its subtasks share the work.
        rows: The subtasks.
        is_by_size: Whether those with most state are first, else they are by index.
        most: The subtask that has the most, in each column.
    """

    operator: ReportedOperator
    checkpoints: int
    figures: list[Figure]
    rows: Rows[Subtask]
    is_by_size: bool
    most: dict[str, float]


def operator_view(operator: ReportedOperator, checkpoints: Sequence[Checkpoint]) -> OperatorView:
    """Add up what the subtasks did for all checkpoints.

    A single micro-batch says little of how rows are dealt. Checkpoints of another parallelism, which
    dealt them otherwise, don't count.
    """
    alike = [
        earlier
        for checkpoint in checkpoints
        for earlier in checkpoint.operators
        if earlier.uid == operator.uid and earlier.parallelism == operator.parallelism
    ]
    subtasks = _totals(operator, alike)
    is_by_size = len(subtasks) > SHOWN_ROWS
    in_order = (
        sorted(subtasks, key=lambda subtask: -subtask.stored_bytes) if is_by_size else subtasks
    )
    columns = ("stored_bytes", "rows_in", "rows_late", "rows_out", "process_ms", "snapshot_ms")
    return OperatorView(
        operator=operator,
        checkpoints=len(alike),
        figures=subtask_figures(subtasks),
        rows=rows_of(in_order),
        is_by_size=is_by_size,
        most={
            column: max((getattr(subtask, column) or 0 for subtask in subtasks), default=0)
            for column in columns
        },
    )


def _totals(operator: ReportedOperator, alike: Sequence[ReportedOperator]) -> list[Subtask]:
    """Each subtask by index: its state as in the newest checkpoint, its rows and times added up over all."""
    own = {subtask.subtask: subtask for subtask in operator.subtasks}
    did: dict[int, list[Subtask]] = defaultdict(list)
    for earlier in alike:
        for subtask in earlier.subtasks:
            did[subtask.subtask].append(subtask)
    return [
        Subtask(
            subtask=index,
            stored_bytes=own[index].stored_bytes if index in own else 0,
            rows_in=_sum(part.rows_in for part in did[index]),
            rows_late=_sum(part.rows_late for part in did[index]),
            rows_out=_sum(part.rows_out for part in did[index]),
            restore_ms=_sum(part.restore_ms for part in did[index]),
            process_ms=_sum(part.process_ms for part in did[index]),
            snapshot_ms=_sum(part.snapshot_ms for part in did[index]),
            restored_from=own[index].restored_from if index in own else "",
            backend_metrics=own[index].backend_metrics if index in own else {},
        )
        for index in range(operator.parallelism)
    ]


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
