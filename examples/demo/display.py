"""The display of the running demo: a progress bar on a terminal, lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.runs import Run

_LINES_A_JOB = 4


class Display:
    """Shows how many batches are done, and how each run ended."""

    def __init__(self, console: Console, *, batches: int) -> None:
        self._console = console
        self._batches = batches
        self._run = 1
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("run 1", total=batches)

    def on_batch(self, done: int) -> None:
        """Show the number of finished batches."""
        self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and done % (self._batches // _LINES_A_JOB) == 0:
            self._console.print(f"run {self._run}: {done} of {self._batches} batches")

    def on_run(self, run: Run) -> None:
        """Show how a run has ended."""
        began = f"checkpoint {run.log.restored}" if run.log.restored else "nothing"
        ended = "ended by itself"
        if run.kill:
            ended = f"was [red]killed[/] in batch {run.kill.batch}: {run.kill.stage.value}"
        self._console.print(f"run {self._run} began with {began} and {ended}")
        self._run += 1
        self._bar.update(self._task, description=f"run {self._run}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
