"""Which state goes to which subtask when a job is restored. Pure functions over handles."""

from holdfast.backends.assignment.redistribution import redistribute, redistribute_raw
from holdfast.backends.assignment.state_assignment import AssignedOperator, OperatorSettings, assign

__all__ = [
    "AssignedOperator",
    "OperatorSettings",
    "assign",
    "redistribute",
    "redistribute_raw",
]
