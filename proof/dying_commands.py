"""Crash points of commands on a job: savepoints, restores, rollbacks, imports of Flink's savepoints.

Each crashes before each call to the store, by an exception that no handler catches and without later calls; this is also
right after the previous call. It must leave nothing that is considered complete, and a repetition must complete it.
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
    """Let each command crash at every n-th call.

    Args:
        directory: URI of an empty directory of any store.
        every: The interval of calls.

    Returns:
        The number of crashes, and violations after them.
    """
    died = 0
    failures = []
    with tempfile.TemporaryDirectory() as name:
        savepoint = flink.open_savepoint(extract(Path(name), "orders") / "orders")
        commands: dict[str, Callable[[Faults, int], int]] = {
            "savepoint": check_savepoints,
            "restore": check_restores,
            "roll back": check_rollbacks,
            "import": partial(_import, savepoint),
        }
        for command, check in commands.items():
            with faulty_file_system(f"{directory}/{command.replace(' ', '-')}") as faults:
                try:
                    died += check(faults, every)
                except Exception as error:  # noqa: BLE001  # each error is a violation
                    failures.append(f"{command}: {type(error).__name__}: {error}")
    return died, failures


def _import(savepoint: flink.FlinkSavepoint, faults: Faults, every: int) -> int:
    return check_imports(faults, savepoint, every)
