"""A limit for the memory of a process, including its mapped files: a separate control group.

`ulimit` is not sufficient: it counts addresses, not pages in memory. Without the right to create control groups
(root, or a group delegated to this user) nothing is measured.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rounds import LeftOutError

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Group:
    """A control group.

    Attributes:
        directory: The group's directory.
    """

    directory: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that joins the group, then executes the given one."""
        script = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
        return ["sh", "-c", script, str(self.directory), *command]

    def peak_bytes(self) -> int:
        """Return the peak memory of the group."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (self.directory / name).exists():
                return int((self.directory / name).read_text())
        return 0


@contextmanager
def memory_limit(name: str, limit_bytes: int) -> Iterator[Group]:
    """A group with a limit until the block is left, when its processes have to have ended.

    Raises:
        LeftOutError: There is no way here.
    """
    second = (_ROOT / "cgroup.controllers").exists()
    parent = _own_group() if second else _ROOT / "memory"
    directory = parent / f"holdfast-benchmark-{os.getpid()}-{name}"
    try:
        directory.mkdir()
        limit = "memory.max" if second else "memory.limit_in_bytes"
        (directory / limit).write_text(str(limit_bytes))
    except OSError as error:
        raise LeftOutError(f"memory can't be limited here: {error}") from error
    try:
        yield Group(directory)
    finally:
        _remove(directory)


def forget_pages(directory: Path) -> None:
    """Drop the cached pages of the files: a page is charged to the group that has read it first."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _own_group() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return _ROOT / next(line for line in lines if line.startswith("0::")).removeprefix("0::/")


def _remove(directory: Path) -> None:
    for _ in range(100):
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.05)  # its process is about to end
        else:
            return
