"""The states that a written savepoint is given, as tables, and operators with them in the place of others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.backends.inspection import (
    StateRows,
    is_keyed,
    states_of,
    without_tables,
    write_keyed_states,
    write_states,
)
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import OperatorStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark.operators import is_collated, read_table


@dataclass(frozen=True, slots=True)
class StateTables:
    """What is to become of states: they are written, replaced, or removed.

    Attributes:
        tables: By the operator's uid and the state's name; None for a state that is removed.
    """

    tables: Mapping[tuple[str, str], StateRows | None]

    @classmethod
    def of(cls, states: Mapping[tuple[str, str], Any]) -> Self:
        """The states with their rows as tables; see `write_savepoint`.

        Raises:
            InvalidRequestError: Rows are of a type that can't be used.
        """
        return cls({key: _with_table(state) for key, state in states.items()})

    def without(self, uid: str, operator: StoredOperator) -> StoredOperator:
        """The operator without the states that are replaced or removed, and without files of those alone."""
        keyed = self._keyed_names(uid, operator)
        gone = self._names(uid) - keyed
        if not gone | keyed:
            return operator

        def left(subtask: StoredSubtask) -> StoredSubtask:
            handles = (
                OperatorStateHandle(
                    {name: where for name, where in handle.states.items() if name not in gone},
                    handle.stream,
                )
                for handle in subtask.managed_operator
            )
            kept = tuple(handle for handle in handles if handle.states)
            tables = (
                without_tables(handle, keyed) if isinstance(handle, SegmentsStateHandle) else handle
                for handle in subtask.managed_keyed
            )
            return msgspec.structs.replace(
                subtask,
                managed_operator=kept,
                managed_keyed=tuple(handle for handle in tables if handle is not None),
            )

        subtasks = {index: left(subtask) for index, subtask in operator.subtasks.items()}
        return msgspec.structs.replace(operator, subtasks=subtasks)

    def written(
        self,
        uid: str,
        operator: StoredOperator,
        *,
        before: StoredOperator,
        location: CheckpointStorageLocation,
    ) -> StoredOperator:
        """The operator with the states that are given.

        Args:
            uid: The operator.
            operator: What `without` has left of it.
            before: The operator as the base has it; its types hold for states that are replaced.
            location: Where the states are written.
        """
        given = {
            name: rows for name in self._names(uid) if (rows := self.tables[uid, name]) is not None
        }
        if not given:
            return operator
        stored = states_of(uid, before)
        keyed = {name: given.pop(name) for name in self._keyed_names(uid, before) & given.keys()}
        subtasks = dict(operator.subtasks)
        if given:
            replaced = {
                state.name: state.readable()
                for state in stored
                if state.name in given and not state.is_keyed
            }
            handles = write_states(
                given,
                location,
                parallelism=operator.parallelism,
                replaced=replaced,
                needs_subtasks=bool(operator.key),
            )
            for index, handle in handles.items():
                known = subtasks.get(index, StoredSubtask())
                managed = (*known.managed_operator, handle)
                subtasks[index] = msgspec.structs.replace(known, managed_operator=managed)
        if keyed:
            segments = write_keyed_states(
                keyed,
                location,
                parallelism=operator.parallelism,
                max_parallelism=operator.max_parallelism,
                key=operator.key,
                stored=stored,
            )
            for index, tables in segments.items():
                known = subtasks.get(index, StoredSubtask())
                of_keys = (*known.managed_keyed, tables)
                subtasks[index] = msgspec.structs.replace(known, managed_keyed=of_keys)
        return msgspec.structs.replace(operator, subtasks=subtasks)

    def _keyed_names(self, uid: str, operator: StoredOperator) -> set[str]:
        """The names of keyed states that are written, replaced or removed."""
        names = self._names(uid)
        stored = states_of(uid, operator) if names else []
        return {name for name in names if is_keyed(name, self.tables[uid, name], stored)}

    def _names(self, uid: str) -> set[str]:
        return {name for operator, name in self.tables if operator == uid}


def _with_table(state: Any) -> StateRows | None:
    """The state with its rows as a table."""
    if state is None:
        return None
    given = state if isinstance(state, StateRows) else StateRows(state)
    rows = given.rows
    if isinstance(rows, DataFrame):
        collated = [field.name for field in rows.schema if is_collated(field.dataType)]
        if collated:
            message = (
                f"columns {collated} of the rows of a state have a collation, and state compares the bytes of strings; "
                "cast them to string"
            )
            raise InvalidRequestError(message)
        rows = read_table(rows)
    elif isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif type(rows).__module__.startswith("pandas."):
        try:
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        except pa.ArrowException as error:  # not its text: it may hold data
            raise_shortage(error)
            message = (
                "rows of pandas have values that are of no one Arrow type; give a pyarrow.Table"
            )
            raise InvalidRequestError(message) from None
    if not isinstance(rows, pa.Table):
        message = f"rows of a state are of type {type(rows).__name__}; give a table or a DataFrame"
        raise InvalidRequestError(message)
    return replace(given, rows=rows)
