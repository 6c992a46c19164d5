"""A subtask on an executor: restore, the user's function, snapshot, and the report to the driver.

`query/` gives Spark a `SubtaskRunner` (`subtask`), with everything that it needs from the driver. It takes state from
the memory of the process or the disk of the host if it can (`local_state`, `local_files`), and ends with an
`Acknowledgement`. Start with `subtask`.
"""

from holdfast.spark.subtask.acknowledgements import (
    COLUMN,
    Acknowledgement,
    combine_acknowledgements,
    decode_acknowledgements,
    has_duplicate_reports,
    reports_of_final_pass,
)
from holdfast.spark.subtask.local_files import LocalFiles, digest_of, local_directory
from holdfast.spark.subtask.local_state import WorkerMemory
from holdfast.spark.subtask.subtask import (
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    Reports,
    SubtaskRunner,
    TaskPayload,
    name_in_plans,
)
