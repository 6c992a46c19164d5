"""Task-local state: what a subtask need not fetch from storage, because its worker or its host still has it.

`subtask/` uses a `LocalState` (`local_state`), which looks for operator state in the memory of the process, and for
files on the disk of the host (`local_files`). Start with `local_state`.
"""

from holdfast.spark.local_state.local_files import LocalFiles, digest_of, local_directory
from holdfast.spark.local_state.local_state import LocalState, StateSettings, WorkerMemory

__all__ = [
    "LocalFiles",
    "LocalState",
    "StateSettings",
    "WorkerMemory",
    "digest_of",
    "local_directory",
]
