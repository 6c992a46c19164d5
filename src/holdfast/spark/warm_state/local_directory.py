"""The directory of an application on the disk of a host: where it is, and who deletes it."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from holdfast.common import Clock, ProcessCache

_NAME = "holdfast"
_BLOCK_MANAGER = "blockmgr-"
_DEAD_S = 24 * 3600.0

_CLEANED: ProcessCache[str, None] = ProcessCache()
"""The directories beside which this process has deleted what was dead."""


def local_directory(environment: Mapping[str, str], clock: Clock) -> str | None:
    """Where a task keeps what others of its application can use; None if Spark names no place.

    Spark or YARN deletes it when the application ends. It may have to be made.

    Args:
        environment: Variables of the task's process.
        clock: Says how old the directories of other executors are.
    """
    of_executor = environment.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not of_executor:
        return None
    if "CONTAINER_ID" in environment or "SPARK_EXECUTOR_DIRS" in environment:
        # YARN and Spark's own cluster have a directory around it for all of the application's.
        of_executor = os.path.dirname(of_executor)
    directory = os.path.join(of_executor, _NAME)
    _CLEANED.get(directory, partial(_delete_dead_beside, directory, clock))
    return directory


def _delete_dead_beside(directory: str, clock: Clock) -> None:
    """Delete what executors have left that were killed, where nobody else does.

    A directory that an executor still uses has changed since yesterday; if not, it loses copies.
    """
    block_manager = os.path.dirname(directory)
    if not os.path.basename(block_manager).startswith(_BLOCK_MANAGER):
        return
    dead_since_s = clock.now_ms() / 1000 - _DEAD_S
    with suppress(OSError), os.scandir(os.path.dirname(block_manager)) as entries:
        for entry in entries:
            other = os.path.join(entry.path, _NAME)
            if entry.name.startswith(_BLOCK_MANAGER) and other != directory:
                with suppress(OSError):
                    status = os.lstat(other)
                    if status.st_uid == os.geteuid() and status.st_mtime < dead_since_s:
                        shutil.rmtree(other)
