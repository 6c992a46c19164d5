"""The log of a run of the job."""

import re
from dataclasses import dataclass

_RESTORED = re.compile(r"job \S+ resumes from checkpoint (\d+) at ")
_SKIPPED = re.compile(r"batch (\d+) was completed before; it is skipped")
_COMPLETED = re.compile(
    r"completed checkpoint (\d+) of job \S+ \(batch \d+\) in (\d+) ms: \d+ rows in, \d+ rows out, "
    r"(\d+) bytes of state, (\d+) bytes of metadata"
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A checkpoint that the job has completed.

    Attributes:
        checkpoint: The checkpoint's number.
        duration_ms: From its beginning to its completion, milliseconds.
        state_bytes: Bytes of state.
        metadata_bytes: Bytes of `_metadata`.
    """

    checkpoint: int
    duration_ms: int
    state_bytes: int
    metadata_bytes: int


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run.

    Attributes:
        restored: The checkpoint that it resumed from, or None.
        skipped: The batches that it found completed.
        completed: The checkpoints that it completed, without one whose line a kill prevented.
    """

    restored: int | None
    skipped: tuple[int, ...]
    completed: tuple[Completed, ...]


def read_log(text: str) -> RunLog:
    """Read the log lines of one run; others are passed over."""
    restored = _RESTORED.search(text)
    return RunLog(
        restored=int(restored[1]) if restored else None,
        skipped=tuple(int(match[1]) for match in _SKIPPED.finditer(text)),
        completed=tuple(
            Completed(*map(int, match.groups())) for match in _COMPLETED.finditer(text)
        ),
    )
