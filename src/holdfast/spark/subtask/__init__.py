"""A subtask on an executor: restore, the user's function, snapshot, and the report to the driver.

`query/` ships it, `warm_state/` spares it reading from storage. Start with `subtask`.
"""

from holdfast.spark.subtask.acknowledgements import (
    COLUMN,
    Acknowledgement,
    decode_acknowledgements,
    is_doubled,
    of_the_pass,
    operator_state,
)
from holdfast.spark.subtask.subtask import (
    JobStorage,
    Reports,
    Shipment,
    SubtaskRunner,
    name_in_plans,
)

__all__ = [
    "COLUMN",
    "Acknowledgement",
    "JobStorage",
    "Reports",
    "Shipment",
    "SubtaskRunner",
    "decode_acknowledgements",
    "is_doubled",
    "name_in_plans",
    "of_the_pass",
    "operator_state",
]
