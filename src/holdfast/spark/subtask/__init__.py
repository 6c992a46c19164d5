"""A subtask on an executor: restore, the user's function, snapshot, and the report to the driver.

`query/` gives Spark a `SubtaskRunner` (`subtask`), with everything that it needs from the driver (`task_data`). It
takes state from `local_state/` if possible, and ends with an `Acknowledgement`. Start with `subtask`.
"""

from holdfast.spark.subtask.acknowledgements import (
    COLUMN,
    Acknowledgement,
    combine_acknowledgements,
    decode_acknowledgements,
    has_duplicate_reports,
    reports_of_final_pass,
)
from holdfast.spark.subtask.subtask import Reports, SubtaskRunner, name_in_plans
from holdfast.spark.subtask.task_data import CheckpointInfo, JobStorage, OperatorInfo, TaskPayload

__all__ = [
    "COLUMN",
    "Acknowledgement",
    "CheckpointInfo",
    "JobStorage",
    "OperatorInfo",
    "Reports",
    "SubtaskRunner",
    "TaskPayload",
    "combine_acknowledgements",
    "decode_acknowledgements",
    "has_duplicate_reports",
    "name_in_plans",
    "reports_of_final_pass",
]
