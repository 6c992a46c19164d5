"""Sinks that keep something of their own in checkpoints."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators.operator import Operator, Sink

SINK = "sink"
"""The name under which the function of a query keeps its state; an operator's sink has `sink/<uid>`."""


@runtime_checkable
class CheckpointedSink(Protocol):
    """A sink with a state of its own, kept in each checkpoint; all calls are on the driver.

    For sinks that can't replace the output of a batch and commit in two phases instead. In a run
    of the query the calls are `initialize_state` once, then for each batch the sink itself,
    `snapshot_state` and, if the sink is a `CheckpointListener` too, what became of the checkpoint. As a
    listener it is told first that the checkpoint exists that the run goes on from. Where a run dies, the
    next run begins anew. Output that was made for a checkpoint counts exactly if the state in a completed
    checkpoint names it.

    An instance serves a single query.

    Source:
        Flink, TwoPhaseCommitSinkFunction, whose transactions in doubt are in the sink's state.
    """

    def __call__(self, rows: DataFrame, batch_id: int, /) -> object:
        """Write a batch in such a way that it can still be undone; checkpoint `batch_id + 1` completes it."""
        ...

    def initialize_state(self, state: bytes | None, /) -> None:
        """Begin a run; an error fails the batch.

        Args:
            state: The value that `snapshot_state` returned for the checkpoint that the run goes on from; None
                if there is no checkpoint, or it holds nothing of this sink.
        """
        ...

    def snapshot_state(self, checkpoint_id: int, /) -> bytes:
        """Return the sink's state for the checkpoint. The batch is written, the checkpoint not yet.

        The state becomes a part of `_metadata`, so it should be small. An error fails the batch.
        """
        ...


def checkpointed_sinks(
    process: Sink, operators: Mapping[str, Operator]
) -> dict[str, CheckpointedSink]:
    """The sinks of a query that have a state, by the name under which it is kept."""
    named: dict[str, Sink | None] = {SINK: process}
    named |= {f"{SINK}/{uid}": operator.sink for uid, operator in operators.items()}
    return {name: sink for name, sink in named.items() if isinstance(sink, CheckpointedSink)}


def initialize_sinks(sinks: Mapping[str, CheckpointedSink], states: Mapping[str, bytes]) -> None:
    """Give each sink its state in the checkpoint that the run goes on from."""
    for name, sink in sinks.items():
        sink.initialize_state(states.get(name))


def snapshot_sinks(sinks: Mapping[str, CheckpointedSink], checkpoint_id: int) -> dict[str, bytes]:
    """The states of all sinks, by name.

    Raises:
        InvalidRequestError: A state isn't bytes.
    """
    states = {name: sink.snapshot_state(checkpoint_id) for name, sink in sinks.items()}
    for name, state in states.items():
        if not isinstance(state, bytes):
            kind = type(sinks[name]).__name__
            message = f"snapshot_state of {kind} gave {type(state).__name__}; it must give bytes"
            raise InvalidRequestError(message)
    return states


def sinks_left_behind(
    states: Mapping[str, bytes], sinks: Mapping[str, CheckpointedSink]
) -> list[str]:
    """Names of the states in a checkpoint that no sink takes."""
    return sorted(name for name in states.keys() - sinks.keys() if name.partition("/")[0] == SINK)
