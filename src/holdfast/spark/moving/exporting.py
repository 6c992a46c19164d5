"""The state of an operator as the initial state of a query with Spark's own `transformWithState`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import load_checkpoint, resolve_pointer
from holdfast.spark.moving.descriptions import description
from holdfast.spark.moving.moved_processor import MovedProcessor
from holdfast.spark.moving.processor_state import ProcessorState
from holdfast.spark.processors import Declaration, SchemaParser, TimeMode, record_declarations
from holdfast.spark.settings import Stores
from holdfast.spark_progress import SPARK, SparkProgress, progress_of, sources_of
from pyspark_holdfast_wake import is_of_wake_ups

_TIME_MODES: dict[TimeMode, str] = {
    "none": "None",
    "processingtime": "ProcessingTime",
    "eventtime": "EventTime",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkInitialState:
    """State of an operator, for a new query with Spark's own `transformWithState` to begin with.

    Attributes:
        processor: The processor, for `statefulProcessor`. It fills the states that the user's own `init` declares, and
            else does what that does.
        rows: The state, for `initialState`: rows grouped by the key. They are read in the query's first batch.
        time_mode: The `timeMode` to give to Spark's query.
        kept: The states that are moved, by name, described for people.
        lost: Descriptions of what is not moved, for people.
        sources: Where each source has to be read on, as Spark's log has it, in the order of the plan: JSON; of Kafka
            the option `startingOffsets`. Empty if the state is of no query.
    """

    processor: StatefulProcessor
    rows: GroupedData
    time_mode: str
    kept: Mapping[str, str]
    lost: tuple[str, ...]
    sources: tuple[str, ...]


def spark_initial_state(
    spark: SparkSession,
    pointer: str | PathLike[str],
    processor: StatefulProcessor,
    *,
    operator: str | None = None,
) -> SparkInitialState:
    """State of a processor with `keyed(…)`, for a query with Spark's own `transformWithState` to begin with.

        moved = spark_initial_state(spark, savepoint, Counts())
        rows.groupBy("k").transformWithState(
            moved.processor, schema, "Update", moved.time_mode, initialState=moved.rows
        )

    The query needs a new checkpointLocation. Once its first batch is done it can be restarted with the user's own
    processor and without initial state; until then the checkpoint has to stay. Here nothing is written, and no state read.

    Args:
        spark: The session that the query will run in.
        pointer: URI of a checkpoint or savepoint.
        processor: A processor of the class that has the state; it is neither changed nor used itself.
        operator: The operator's uid; may be left out where there is only one.

    Raises:
        InvalidRequestError: There is no such operator, or it has no state of a processor; or state that the class
            declares otherwise, or not at all.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    if not isinstance(processor, StatefulProcessor):
        message = f"{type(processor).__name__} is no StatefulProcessor; give a processor of the class that has the state"
        raise InvalidRequestError(message)
    Stores.parse(spark.conf.getAll, fspath(pointer)).use()
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    uid = _chosen(metadata, operator)
    state = ProcessorState.of(pointer, uid, metadata.operators[uid])
    copy: Any = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    declared, _ = record_declarations(copy, state.time_mode, SchemaParser(spark))
    variables = state.declarations(declared)
    rows = state.rows(spark, variables, SYSTEM_CLOCK.now_ms())
    progress = progress_of(metadata) if SPARK in metadata.coordinator_states else None
    kept = {each.name: description(each) for each in variables}
    if state.timers is not None:
        kept["timers"] = f"timers of {_TIME_MODES[state.time_mode]}"
    sources = sources_of(progress.offsets) if progress else []
    return SparkInitialState(
        processor=MovedProcessor(processor),
        rows=rows.groupBy(*map(_quoted, state.key.names)),
        time_mode=_TIME_MODES[state.time_mode],
        kept=kept,
        lost=tuple(_lost(state, variables, progress)),
        sources=tuple(each for each in sources if not is_of_wake_ups(each)),
    )


def _lost(
    state: ProcessorState, variables: Sequence[Declaration], progress: SparkProgress | None
) -> Iterator[str]:
    """What is not moved, for people."""
    yield (
        "how far sources were read: Spark begins where their options say, and file sources with the files that are "
        "there. Give Kafka the startingOffsets of `sources`"
    )
    if living := [each.name for each in variables if each.ttl_ms]:
        yield f"the ages of {living}: what lives now lives as long again from the first batch on"
    if state.time_mode == "eventtime":
        watermark = progress.times[1] if progress else 0
        yield (
            f"the watermark, which was {watermark} ms: it begins at 0, so the first two batches drop no late rows, and "
            "timers fire once it has come to their time again"
        )
    if state.time_mode == "processingtime" and state.timers is not None:
        yield "the hour at which timers fall due while no query runs: they fire in the first batch"
    yield "what sinks keep in checkpoints, and earlier checkpoints: there is only the state of this one"
    if numbers := [each.name for each in state.key if _is_number(each.type)]:
        yield (
            f"with transformWithStateInPandas, keys whose {numbers} are null: there Spark itself takes rows and state of "
            "such a key for those of others. transformWithState keeps them apart"
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _chosen(metadata: CheckpointMetadata, operator: str | None) -> str:
    """The operator that is meant."""
    uids = sorted(metadata.operators)
    if operator is None and len(uids) == 1:
        return uids[0]
    if operator not in metadata.operators:
        which = "not named" if operator is None else f"not {operator!r}"
        raise InvalidRequestError(f"the operator is {which}; name one of {uids}")
    return operator


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
