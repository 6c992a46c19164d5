"""The states in a checkpoint of an operator that runs a processor: compared with the processor, and as rows for Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from os import PathLike
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from holdfast.backends.inspection import StoredState, read_state, shown_schema, states_of
from holdfast.backends.keyed import HeapStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator
from holdfast.spark.data_source import read_state as frame_of_state
from holdfast.spark.data_source import spark_schema_of
from holdfast.spark.moving.descriptions import description
from holdfast.spark.moving.state_rows import COLUMNS, RowsOfState
from holdfast.spark.processors import (
    NOTES,
    Declaration,
    DeclaredVariables,
    TimeMode,
    open_state,
    open_timers,
    time_mode_of,
)

_BROADCAST, _TIMERS = "broadcast", "keyed timers"


@dataclass(frozen=True, slots=True)
class ProcessorState:
    """The state of an operator that has run a processor.

    Attributes:
        pointer: The checkpoint.
        uid: The operator.
        key: The key's columns.
        max_parallelism: Number of key groups.
        time_mode: The time mode that the processor was run with.
        variables: The states of its variables, by name.
        timers: The processor's timers, if it has some.
    """

    pointer: str | PathLike[str]
    uid: str
    key: pa.Schema
    max_parallelism: int
    time_mode: TimeMode
    variables: Mapping[str, StoredState]
    timers: StoredState | None

    @classmethod
    def of(cls, pointer: str | PathLike[str], uid: str, operator: StoredOperator) -> Self:
        """Look at what is there; reads no rows.

        Raises:
            InvalidRequestError: The operator has no state by key, or was none with a processor.
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
        """
        every = states_of(uid, operator)
        if not any(state.name == NOTES.name and not state.is_keyed for state in every):
            message = (
                f"operator {uid!r} has run no processor; it has states {sorted(state.label for state in every)}, and "
                "only those of transformWithState can go to Spark's"
            )
            raise InvalidRequestError(message)
        notes = read_state(pointer, uid, NOTES.name, kind=_BROADCAST).to_pylist()
        time_mode = time_mode_of({note["key"]: note["value"] for note in notes})
        keyed: dict[str, StoredState] = {}
        for state in every:
            if state.name is None:
                state.readable()  # says why
            elif state.is_keyed:
                keyed[state.name] = state
        if not keyed:
            message = f"operator {uid!r} has no state by key: there is nothing to move"
            raise InvalidRequestError(message)
        _, *columns = next(iter(keyed.values())).readable().schema
        types = [field.type for field in columns[: len(operator.key)]]
        key = pa.schema(list(zip(operator.key, types, strict=True)))
        timers = open_timers(_backend(key, operator.max_parallelism), time_mode)
        variables = {name: state for name, state in keyed.items() if state.kind != _TIMERS}
        return cls(
            pointer=pointer,
            uid=uid,
            key=key,
            max_parallelism=operator.max_parallelism,
            time_mode=time_mode,
            variables=variables,
            timers=None if timers is None else keyed.get(timers.name),
        )

    def declarations(self, declared: DeclaredVariables) -> list[Declaration]:
        """The processor's declarations of the states that the checkpoint has.

        Raises:
            InvalidRequestError: The processor doesn't declare a state, or declares it with another kind or type than is stored.
        """
        by_name = {each.name: each for each in declared.variables}
        lost = sorted(self.variables.keys() - by_name.keys() - set(declared.deleted))
        if lost:
            message = (
                f"operator {self.uid!r} has states {lost}, which the processor does not declare: it has "
                f"{sorted(by_name)}. Declare them in its init, or give them up there by handle.deleteIfExists(name)"
            )
            raise InvalidRequestError(message)
        chosen = [by_name[name] for name in self.variables if name in by_name]
        for variable in chosen:
            self._check(variable)
        return chosen

    def rows(
        self, spark: SparkSession, declarations: Sequence[Declaration], now_ms: int
    ) -> DataFrame:
        """All of the state: the key, and `COLUMNS`.

        Args:
            spark: The session whose tasks will read it.
            declarations: The variables that are there.
            now_ms: Values that have expired at this time are left out, milliseconds since 1970.
        """
        states = [
            (self.variables[variable.name], RowsOfState(variable, len(self.key), now_ms))
            for variable in declarations
        ]
        if self.timers is not None:
            states.append((self.timers, RowsOfState(None, len(self.key), now_ms)))
        frames = [self._frame(spark, state, rows) for state, rows in states]
        return reduce(lambda some, others: some.union(others), frames)

    def _frame(self, spark: SparkSession, state: StoredState, rows: RowsOfState) -> DataFrame:
        frame = frame_of_state(spark, self.pointer, self.uid, state.name, kind=state.kind)
        # By place, because a column of the state may be called like one of the key. The subtask's is the first.
        places = [f"_{number}" for number in range(len(frame.columns))]
        fields = frame.schema.fields[1 : 1 + len(self.key)]
        key = [
            StructField(name, field.dataType)
            for name, field in zip(self.key.names, fields, strict=True)
        ]
        return frame.toDF(*places).drop(places[0]).mapInArrow(rows, StructType([*key, *COLUMNS]))

    def _check(self, variable: Declaration) -> None:
        """Refuse a state that is stored as another kind or type than is declared."""
        state = self.variables[variable.name]
        stored = _types(state.readable().schema)[1:]
        for ttl_ms in (
            None,
            1,
        ):  # rows have their time if values did live so long, and the class may say another
            backend = _backend(self.key, self.max_parallelism)
            open_state(backend, replace(variable, ttl_ms=ttl_ms))
            spec = backend.specs()[variable.name]
            if state.kind == f"keyed {spec.kind}" and stored == _types(shown_schema(spec)):
                return
        message = (
            f"state {variable.name!r} is stored as {state.kind.removeprefix('keyed ')} of "
            f"{' and '.join(stored[len(self.key) :])}, and the processor declares {description(variable)}. Give the "
            "processor that has stored it, or first run a batch of the new one with Holdfast, which changes the state"
        )
        raise InvalidRequestError(message)


def _backend(key: pa.Schema, max_parallelism: int) -> KeyedStateBackend:
    """A backend without state, which says what a processor would store."""
    groups = KeyGroupRange(0, max_parallelism - 1)
    return KeyedStateBackend(HeapStateTables(groups), key, max_parallelism)


def _types(schema: pa.Schema) -> list[str]:
    """The types of columns as Spark has them."""
    return [field.dataType.simpleString() for field in spark_schema_of(schema)]
