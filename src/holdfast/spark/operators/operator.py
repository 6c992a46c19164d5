"""An operator as the user declares it, and sinks with state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.keys import KEY_HASH, MAX_PARALLELISM
from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import StatefulProcessor
from holdfast.spark.operators.functions import (
    BroadcastProcessFunction,
    KeyedFunction,
    StatefulFunction,
)
from holdfast.spark.operators.side_outputs import LATE

TIME_MODES = ("none", "processing", "event")

SINK = "sink"
"""The name of the state of a query's function in a checkpoint; that of an operator's sink is `sink/<uid>`, and that of
a sink that the function calls is `sink/<name>`."""

Sink = Callable[[DataFrame, int], object]
"""Writes an operator's output rows; called with them and the batch id."""

Broadcast = Callable[[SparkSession, int], DataFrame]
"""Returns the broadcast rows of a batch; called with the session of the batch and its id."""


@runtime_checkable
class CheckpointedSink(Protocol):
    """A sink with its own state, stored in each checkpoint; all calls are on the driver.

    Use it for sinks that can't replace the output of a batch, and commit in two phases instead. The calls in a run
    of the query are `initialize_state` once, then for each batch the sink itself, `snapshot_state` and, if the sink
    is also a `CheckpointListener`, the outcome of the checkpoint. A listener is first notified that the checkpoint
    exists from which the run resumes. If a run ends with an error, the next run starts with `initialize_state`
    again. Output for a checkpoint is valid exactly if the state in a completed checkpoint refers to it.

    An instance serves a single query.

    Source:
        Flink, TwoPhaseCommitSinkFunction, whose transactions in doubt are in the sink's state.
    """

    def __call__(self, rows: DataFrame, batch_id: int, /) -> object:
        """Write a batch in such a way that it can still be undone; checkpoint `batch_id + 1` completes it."""
        ...

    def initialize_state(self, state: bytes | None, /) -> None:
        """Start a run; an error fails the batch.

        Args:
            state: The value that `snapshot_state` returned for the checkpoint from which the run resumes; None
                without a checkpoint, or if it has no state of this sink.
        """
        ...

    def snapshot_state(self, checkpoint_id: int, /) -> bytes:
        """Return the sink's state for the checkpoint. The batch is written, the checkpoint not yet.

        The state is stored in `_metadata`, so it should be small. An error fails the batch.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as the user declares it to `stateful`, which explains the attributes.

    Attributes:
        prepare: Returns a function that changes the rows of batches with the same schema before they are
            routed to subtasks; None for no change.
        begin: Changes the rows of the operator's first batch, after `prepare`; None for no change.

    Raises:
        InvalidRequestError: An attribute can't be used.
    """

    function: StatefulFunction
    uid: str
    parallelism: int | None = None
    sink: Sink | None = None
    max_parallelism: int | None = None
    key: tuple[str, ...] = ()
    broadcast: Broadcast | None = None
    schema: StructType | str | None = None
    persist: bool = False
    forward: bool = False
    event_time: str | None = None
    side_outputs: Mapping[str, StructType | str] = field(default_factory=dict)
    late_rows: bool = False
    prepare: Callable[[DataFrame], Callable[[DataFrame], DataFrame]] | None = None
    begin: Callable[[DataFrame], DataFrame] | None = None

    def __post_init__(self) -> None:
        self._check_function()
        if self.sink is not None:
            check_callable("sink", self.sink)
        if not isinstance(self.uid, str) or not self.uid:
            raise InvalidRequestError(f"uid must be a non-empty string, got {self.uid!r}")
        for name in ("parallelism", "max_parallelism"):
            self._check_number(name)
        if self.parallelism is not None:
            OperatorSettings(self.parallelism, self.max_parallelism)  # raises if they do not match
        for name in ("persist", "forward", "late_rows"):
            if type(getattr(self, name)) is not bool:
                message = f"{name} must be True or False, got {getattr(self, name)!r}"
                raise InvalidRequestError(message)
        self._check_key()
        if self.schema is not None:
            self._check_schema("schema", self.schema)
        self._check_side_outputs()
        self._check_time()
        if self.broadcast is not None and not (self.takes_broadcast and callable(self.broadcast)):
            raise InvalidRequestError(
                f"broadcast of operator {self.uid!r} must be a function of a session and a batch "
                "id, and the operator a BroadcastProcessFunction"
            )

    def _check_function(self) -> None:
        if isinstance(self.function, type):
            raise InvalidRequestError(f"{self.function.__name__} is a class; pass an object of it")
        if not isinstance(self.function, StatefulFunction):
            name = type(self.function).__name__
            message = f"{name} is not a StatefulFunction; derive the operator from StatefulFunction"
            if isinstance(self.function, StatefulProcessor):
                message = f"{name} is a StatefulProcessor; run it by keyed(…).transformWithState or …InPandas"
            raise InvalidRequestError(message)

    def _check_time(self) -> None:
        mode = self.function.time_mode
        if mode not in TIME_MODES:
            raise InvalidRequestError(
                f"time_mode of operator {self.uid!r} must be one of {TIME_MODES}, got {mode!r}"
            )
        if self.event_time is None:
            return
        if not isinstance(self.event_time, str) or not self.event_time:
            message = f"event_time must be the name of a column, got {self.event_time!r}"
            raise InvalidRequestError(message)
        if not self.drops_late_rows:
            raise InvalidRequestError(
                f"operator {self.uid!r} sets event_time, but its function does not drop late rows: its time_mode "
                "is not 'event', or it keeps late rows; remove event_time"
            )

    def _check_key(self) -> None:
        if not all(isinstance(column, str) and column for column in self.key):
            raise InvalidRequestError(f"key must be names of columns, got {self.key!r}")
        if len(set(self.key)) < len(self.key):
            raise InvalidRequestError(f"key must name each column once, got {self.key!r}")
        if isinstance(self.function, KeyedFunction) and not self.key:
            raise InvalidRequestError(
                f"the function of operator {self.uid!r} is called for each key; name the "
                "key's columns: stateful(..., key=...)"
            )
        if self.forward and self.key:
            raise InvalidRequestError(
                f"operator {self.uid!r} has a key, which routes rows to subtasks, and forward=True, which "
                "leaves rows in their partitions; remove one of them"
            )

    def _check_schema(self, name: str, schema: object) -> None:
        if not isinstance(schema, StructType | str):
            kind = type(schema)
            raise InvalidRequestError(
                f"{name} of operator {self.uid!r} must be a Spark schema, such as 'id long, name string', "
                f"got {kind.__module__}.{kind.__qualname__}"
            )

    def _check_side_outputs(self) -> None:
        if not isinstance(self.side_outputs, Mapping):
            raise InvalidRequestError(
                f"side_outputs of operator {self.uid!r} must map names to schemas, such as "
                f"{{'rejected': 'line string'}}, got {self.side_outputs!r}"
            )
        for name, schema in self.side_outputs.items():
            if not isinstance(name, str) or not name or {".", "`"} & set(name):
                raise InvalidRequestError(
                    f"side outputs of operator {self.uid!r} need names without dots and backticks, got {name!r}"
                )
            self._check_schema(f"side output {name!r}", schema)
        if not self.late_rows:
            return
        if self.function.time_mode != "event":
            raise InvalidRequestError(
                f"operator {self.uid!r} has late_rows=True, but no row is late for it: its function is not in event time; "
                "remove late_rows"
            )
        if LATE in self.side_outputs:
            raise InvalidRequestError(
                f"operator {self.uid!r} has late_rows=True, and also declares a side output {LATE!r}; rename that one"
            )

    def _check_number(self, name: str) -> None:
        number = getattr(self, name)
        if number is None:
            return
        if type(number) is not int or not 1 <= number <= MAX_PARALLELISM:
            message = f"{name} must be an integer between 1 and {MAX_PARALLELISM}, got {number!r}"
            raise InvalidRequestError(message)

    def is_like(self, other: "Operator") -> bool:
        """Return whether both are the same operator, or copies of it: Spark Connect pickles operators."""
        return _traits(self) == _traits(other)

    @property
    def takes_broadcast(self) -> bool:
        """True if the operator has a second, small stream."""
        return isinstance(self.function, BroadcastProcessFunction)

    @property
    def has_side_outputs(self) -> bool:
        """True if the operator has other outputs than the main one."""
        return bool(self.side_outputs) or self.late_rows

    @property
    def keeps_output(self) -> bool:
        """True if the output is computed at once and stays in Spark's cache: several actions may read it."""
        return self.persist or self.has_side_outputs

    @property
    def drops_late_rows(self) -> bool:
        """True if late rows are dropped before the function."""
        return self.function.time_mode == "event" and not self.function.keeps_late_rows

    @property
    def key_hash(self) -> str:
        """The name of the hash function for key groups; empty without a key."""
        return KEY_HASH if self.key else ""


def check_callable(name: str, function: object) -> None:
    """Refuse an argument that can't be called. Raises `InvalidRequestError`."""
    if not callable(function):
        message = f"{name} must be a function of rows and a batch id, got {function!r}"
        raise InvalidRequestError(message)


def check_sinks(process: Sink, sinks: Mapping[str, CheckpointedSink]) -> None:
    """Refuse sinks that a query's function can't have. Raises `InvalidRequestError`."""
    names: dict[int, str] = {}
    for name, sink in sinks.items():
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(
                f"the name of a sink must be a non-empty string, got {name!r}"
            )
        if not isinstance(sink, CheckpointedSink):
            raise InvalidRequestError(
                f"sink {name!r} is a {type(sink).__name__}, which has no state (it is not a CheckpointedSink); call "
                "it in the function, and don't name it in sinks="
            )
        if sink is process:
            message = f"sink {name!r} is the query's function itself; remove it from sinks="
            raise InvalidRequestError(message)
        other = names.setdefault(id(sink), name)
        if other != name:
            message = f"sinks {other!r} and {name!r} are one object; make a sink for each name"
            raise InvalidRequestError(message)


def _traits(operator: Operator) -> tuple[object, ...]:
    kind = type(operator.function)
    return (
        kind.__module__,
        kind.__qualname__,
        operator.uid,
        operator.parallelism,
        operator.max_parallelism,
        operator.key,
        operator.persist,
        operator.forward,
        operator.event_time,
        operator.late_rows,
        tuple(operator.side_outputs),
    )


def checkpointed_sinks(
    process: Sink | None, operators: Mapping[str, Operator], sinks: Mapping[str, CheckpointedSink]
) -> dict[str, CheckpointedSink]:
    """Return the sinks of a query that have state, by the name of that state; `sinks` are called by `process`."""
    named: dict[str, Sink | None] = {SINK: process}
    named |= {f"{SINK}/{uid}": operator.sink for uid, operator in operators.items()}
    named |= {f"{SINK}/{name}": sink for name, sink in sinks.items()}
    return {name: sink for name, sink in named.items() if isinstance(sink, CheckpointedSink)}


def snapshot_sinks(sinks: Mapping[str, CheckpointedSink], checkpoint_id: int) -> dict[str, bytes]:
    """Return the states of all sinks, by name. Raises `InvalidRequestError` if one isn't bytes."""
    states = {name: sink.snapshot_state(checkpoint_id) for name, sink in sinks.items()}
    for name, state in states.items():
        if not isinstance(state, bytes):
            sink = type(sinks[name]).__name__
            message = f"snapshot_state of {sink} must return bytes, got {type(state).__name__}"
            raise InvalidRequestError(message)
    return states


def unused_sink_states(
    states: Mapping[str, bytes], sinks: Mapping[str, CheckpointedSink]
) -> list[str]:
    """Return the names of the states in a checkpoint that belong to no sink."""
    return sorted(name for name in states.keys() - sinks.keys() if name.partition("/")[0] == SINK)
