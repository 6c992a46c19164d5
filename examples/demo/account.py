"""The demo's account of what happened, for people."""

import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table

from examples.demo.places import Places
from examples.demo.runs import Run
from holdfast import progress_of
from holdfast.locations import CompletedCheckpoint, checkpoint_storage, load_checkpoint
from holdfast.locations.adapters import CheckpointStorageAccess


def print_account(
    console: Console,
    places: Places,
    runs: Sequence[Run],
    figures: Mapping[str, str],
    *,
    began: float,
) -> None:
    """Print the account on one screen.

    Args:
        console: Where to.
        places: Where the job's files are.
        runs: All runs of the job.
        figures: Figures of this job, by name.
        began: When the job was started first, by the monotonic clock.
    """
    console.print(_runs(runs))
    console.print(_checkpoints(retained_checkpoints(places)))
    console.print(_summary(figures, runs, time.monotonic() - began))


def retained_checkpoints(places: Places) -> list[CompletedCheckpoint]:
    """The job's checkpoints that are left, oldest first."""
    access: CheckpointStorageAccess = checkpoint_storage(
        places.checkpoints
    ).create_checkpoint_storage(places.job.name)
    return [load_checkpoint(location) for location in access.completed_checkpoints().values()]


def table_of(title: str) -> Table:
    """An empty table in the demo's style."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )


def _runs(runs: Sequence[Run]) -> Table:
    table = table_of("Runs of the job")
    table.add_column("run", justify="right")
    table.add_column("restored")
    table.add_column("repeated batch")
    table.add_column("killed in")
    table.add_column("when")
    table.add_column("s", justify="right")
    for number, (before, run) in enumerate(zip([None, *runs], runs, strict=False), start=1):
        table.add_row(
            str(number),
            f"chk-{run.log.restored}" if run.log.restored else "",
            _describe_repetition(before, run),
            f"batch {run.kill.batch}" if run.kill else "",
            run.kill.stage.value if run.kill else "ended by itself",
            f"{run.seconds:.0f}",
        )
    return table


def _checkpoints(retained: Sequence[CompletedCheckpoint]) -> Table:
    table = table_of("Checkpoints retained")
    for heading in ("id", "batch", "state", "files", "_metadata", "taken in", "completed at"):
        table.add_column(heading, justify="right")
    for checkpoint in retained:
        metadata = checkpoint.metadata
        created = datetime.fromtimestamp(metadata.created_ms / 1000, UTC)
        table.add_row(
            f"chk-{metadata.checkpoint_id}",
            str(progress_of(metadata).batch_id),
            _size(metadata.state_bytes),
            str(_state_files(checkpoint)),
            _size(checkpoint.metadata_bytes),
            f"{metadata.duration_ms:,.0f} ms",
            f"{created:%H:%M:%S} UTC",
        )
    return table


def _summary(figures: Mapping[str, str], runs: Sequence[Run], seconds: float) -> Table:
    kills = [run.kill for run in runs if run.kill]
    completed = [checkpoint for run in runs for checkpoint in run.log.completed]
    state = sorted(checkpoint.state_bytes for checkpoint in completed)
    restores = sum(run.log.restored is not None for run in runs)
    table = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        table.add_row(name, value)
    table.add_row("kills", f"{len(kills)}, {restores} restores in {len(runs)} runs")
    table.add_row(
        "checkpoint sizes",
        f"state {_size(state[0])} to {_size(state[-1])}, median "
        f"{_size(statistics.median(state))}; _metadata "
        f"{_size(max(checkpoint.metadata_bytes for checkpoint in completed))}",
    )
    table.add_row("wall time", f"{seconds:.0f} s")
    return table


def _describe_repetition(before: Run | None, run: Run) -> str:
    """Describe what happened to the batch in which the previous run was killed."""
    if before is None or before.kill is None or not before.kill.stage.in_batch:
        return ""
    batch = before.kill.batch
    return f"{batch}, skipped" if batch in run.log.skipped else f"{batch}, run again"


def _state_files(checkpoint: CompletedCheckpoint) -> int:
    return sum(
        len(subtask.streams())
        for operator in checkpoint.metadata.operators.values()
        for subtask in operator.subtasks.values()
    )


def _size(number: float) -> str:
    if number < 1000:
        return f"{number:.0f} B"
    return f"{number / 1000:.1f} kB" if number < 1_000_000 else f"{number / 1_000_000:.1f} MB"
