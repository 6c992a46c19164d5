"""Checkpoints that are being copied: while they are, nobody in this process lets any go."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.common import ProcessLock

_LOCK = ProcessLock()
_HELD: Counter[str] = Counter()


@contextmanager
def retained(job_id: str) -> Iterator[None]:
    """Keep all completed checkpoints of a job until the block is left.

    Only the job's coordinator in this process heeds that: it looks after each commit. So the checkpoint
    that is the newest at some moment within the block stays until the block's end.
    """
    with _LOCK.current:
        _HELD[job_id] += 1
    try:
        yield
    finally:
        with _LOCK.current:
            _HELD[job_id] -= 1
            if not _HELD[job_id]:
                del _HELD[job_id]


def is_retained(job_id: str) -> bool:
    """Whether somebody needs the job's checkpoints as they are."""
    with _LOCK.current:
        return job_id in _HELD
