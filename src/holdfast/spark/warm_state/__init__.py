"""State that a subtask need not fetch from storage: in its worker's memory, or on its host's disk.

`subtask/` uses a `WarmState` (`warm_states`), which looks into the memory of the process, then into
`local_copies`; segments of keyed state are in `local_segments`. Start with `warm_states`.
"""

from holdfast.spark.warm_state.local_copies import LocalCopies, owner_of
from holdfast.spark.warm_state.local_directory import local_directory
from holdfast.spark.warm_state.local_segments import LocalSegments
from holdfast.spark.warm_state.warm_states import WarmSettings, WarmState, WorkerMemory

__all__ = [
    "LocalCopies",
    "LocalSegments",
    "WarmSettings",
    "WarmState",
    "WorkerMemory",
    "local_directory",
    "owner_of",
]
