"""Crash points of what is done to a job from outside: savepoints, restores, roll backs, imports of Flink's savepoints.

Each dies before each call to the store, by an exception that no handler catches and with no call behind it, which is also
right after the call before. What it leaves must be nothing that is taken for whole, and be finished by a repetition.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contracts.flink_archives import extract
from jobs.savepoint_crashes import (
    check_imports,
    check_restores,
    check_rollbacks,
    check_savepoints,
)

from holdfast import flink
from holdfast.testing import Faults, faulty_file_system


def die_everywhere(directory: str, *, every: int = 1) -> tuple[int, list[str]]:
    """Let each command die at each so many-th of its calls.

    Args:
        directory: URI of an empty directory of any store.
        every: Take each so many-th call, where all would take too long.

    Returns:
        How many died, and what was wrong behind them.
    """
    died = 0
    failures = []
    with tempfile.TemporaryDirectory() as name:
        savepoint = flink.open_savepoint(extract(Path(name), "orders") / "orders")
        commands: dict[str, Callable[[Faults, int], int]] = {
            "savepoint": check_savepoints,
            "restore": check_restores,
            "roll back": check_rollbacks,
            "import": partial(_imported, savepoint),
        }
        for command, check in commands.items():
            with faulty_file_system(f"{directory}/{command.replace(' ', '-')}") as faults:
                try:
                    died += check(faults, every)
                except Exception as error:  # noqa: BLE001  # whatever it is, it is wrong
                    failures.append(f"{command}: {type(error).__name__}: {error}")
    return died, failures


def _imported(savepoint: flink.FlinkSavepoint, faults: Faults, every: int) -> int:
    return check_imports(faults, savepoint, every)
