"""The initial state of a processor, as rows of an operator's first batch."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import INITIAL_STATE
from holdfast.spark.sessions import column_named


@dataclass(frozen=True, slots=True)
class InitialState:
    """Rows with the initial state of keys, which the subtasks get together with the operator's first batch.

    Attributes:
        rows: The rows. With Spark Connect the name of a view of them: it pickles operators for the server, which can't
            unpickle a DataFrame.
        key: Their key columns, by the names of the stream's.
    """

    rows: DataFrame | str
    key: dict[str, str]

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
            raise InvalidRequestError(
                f"initialState is of type {type(given).__name__}; pass rows grouped by the key, "
                f"rows.groupBy({', '.join(map(repr, key))}), or rows with columns of these names"
            )
        missing = [name for name in columns if name not in states.columns]
        if states.isStreaming or missing or len(columns) != len(key):
            raise InvalidRequestError(
                f"initialState must not be a stream, and must be grouped by {len(key)} of its columns "
                f"{states.columns}, like the key {list(key)}; got {columns}"
            )
        for name, own in zip(columns, key, strict=True):
            kind, wanted = states.schema[name].dataType, rows.schema[own].dataType
            if kind != wanted:
                raise InvalidRequestError(
                    f"column {name!r} of initialState must have the type of the key's column {own!r}, "
                    f"{wanted.simpleString()}, got {kind.simpleString()}; cast it"
                )
        if not hasattr(states.sparkSession, "_jsparkSession"):
            view = f"holdfast_initial_state_{uuid.uuid4().hex}"
            states.createOrReplaceTempView(view)
            states = view
        return cls(states, dict(zip(key, columns, strict=True)))

    def union_with(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a batch and those of the initial state, which has a separate column, null for the batch."""
        states = rows.sparkSession.table(self.rows) if isinstance(self.rows, str) else self.rows
        state = F.struct(*(column_named(name) for name in states.columns))
        columns = [
            column_named(self.key[field.name])
            if field.name in self.key
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in rows.schema
        ]
        states = states.select(*columns, state.alias(INITIAL_STATE))
        null = F.lit(None).cast(states.schema[INITIAL_STATE].dataType)
        return rows.select("*", null.alias(INITIAL_STATE)).union(states)
