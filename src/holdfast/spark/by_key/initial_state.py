"""Initial state of keys: rows that the subtasks get together with the operator's first batch."""

import uuid
from collections.abc import Sequence
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import INITIAL_STATE
from holdfast.spark.sessions import column_named


class InitialState:
    """Rows with the initial state of keys.

    Attributes:
        key: The key columns.
    """

    def __init__(self, rows: DataFrame, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self._rows: DataFrame | None = rows
        self._view = ""
        if not hasattr(rows.sparkSession, "_jsparkSession"):
            # Spark Connect pickles operators for the server, which can't unpickle a DataFrame, but has the view.
            self._view = f"holdfast_initial_state_{uuid.uuid4().hex}"
            rows.createOrReplaceTempView(self._view)

    @classmethod
    def of(cls, given: Any, rows: DataFrame, key: Sequence[str]) -> Self:
        """Return the initial state for a user's argument.

        Args:
            given: Rows grouped by the key, as for Spark; or rows with columns of the key's names.
            rows: The stream.
            key: The key of the stream.

        Raises:
            InvalidRequestError: `given` is neither, or its key has other types than the key of the stream.
        """
        if hasattr(given, "sparkSession"):
            states, columns = given, list(key)
        elif hasattr(given, "agg") and hasattr(given, "_df"):
            states = given._df  # noqa: SLF001  # Spark has no public access to it
            columns = given.count().columns[:-1]
        else:
            message = (
                f"initialState is of type {type(given).__name__}; pass rows grouped by the key, "
                f"rows.groupBy({', '.join(map(repr, key))}), or rows with columns of these names"
            )
            raise InvalidRequestError(message)
        missing = [name for name in columns if name not in states.columns]
        if states.isStreaming or missing or len(columns) != len(key):
            message = (
                f"initialState must not be a stream, and must be grouped by {len(key)} of its columns "
                f"{states.columns}, like the key {list(key)}; got {columns}"
            )
            raise InvalidRequestError(message)
        for name, own in zip(columns, key, strict=True):
            kind, wanted = states.schema[name].dataType, rows.schema[own].dataType
            if kind != wanted:
                message = (
                    f"column {name!r} of initialState must have the type of the key's column {own!r}, "
                    f"{wanted.simpleString()}, got {kind.simpleString()}; cast it"
                )
                raise InvalidRequestError(message)
        return cls(states, columns)

    def __getstate__(self) -> tuple[tuple[str, ...], str]:
        return self.key, self._view

    def __setstate__(self, state: tuple[tuple[str, ...], str]) -> None:
        self.key, self._view = state
        self._rows = None

    def union_with(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """Return the rows of a batch and those of the initial state, which has a separate column, null for the batch."""
        states = rows.sparkSession.table(self._view) if self._rows is None else self._rows
        state = F.struct(*(column_named(name) for name in states.columns))
        by_name = dict(zip(key, self.key, strict=True))
        columns = [
            column_named(by_name[field.name])
            if field.name in by_name
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in rows.schema
        ]
        states = states.select(*columns, state.alias(INITIAL_STATE))
        null = F.lit(None).cast(states.schema[INITIAL_STATE].dataType)
        return rows.select("*", null.alias(INITIAL_STATE)).union(states)
