"""A subtask on an executor: restore, the user's function, snapshot, and the report to the driver.

`query/` gives Spark a `SubtaskRunner` (`subtask`), which has all that it needs of the driver (`shipment`). It
reads its `input_rows`, is spared reading state from storage by `warm_state/`, and ends with an
`Acknowledgement`; on the driver `passes` tells which of these count. Start with `subtask`.
"""

from holdfast.spark.subtask.acknowledgements import (
    COLUMN,
    Acknowledgement,
    decode_acknowledgements,
    operator_state,
)
from holdfast.spark.subtask.passes import is_doubled, of_the_pass
from holdfast.spark.subtask.shipment import JobStorage, Shipment
from holdfast.spark.subtask.subtask import Reports, SubtaskRunner, name_in_plans

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
