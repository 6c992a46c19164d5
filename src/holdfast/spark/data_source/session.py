"""`scan_state`: the data source with the settings of a session."""

import json
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from holdfast.backends.inspection import Raw
from holdfast.spark.data_source.view import SETTINGS
from holdfast.spark.event_time import check_rows_per_batch
from holdfast.spark.sessions import register_source
from holdfast.spark.settings import is_of_stores
from pyspark_holdfast import DefaultSource


def scan_state(
    spark: SparkSession,
    pointer: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    raw: Raw | None = None,
    kind: str | None = None,
    key: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A state of a checkpoint or savepoint as a DataFrame, read by tasks of the session.

    The same as `spark.read.format("holdfast")` with options that say how the session reaches its stores, which
    Spark doesn't tell data sources.

    Args:
        spark: The session, also one of Spark Connect.
        pointer: URI of the checkpoint or savepoint, or as for `holdfast.read_state`.
        operator: The operator's uid. Without it, `state` and `raw` the rows say which states there are.
        state: The state's name; may be left out where the operator has only one state.
        raw: As for `holdfast.read_state`.
        kind: As for `holdfast.read_state`.
        key: The key of keyed state whose rows alone are read, without the others: a value for each of the key's
            columns, by name, as JSON has it or as `holdfast cat` prints it.

    Raises:
        TypeError: A value of the key is of another type.
        InvalidRequestError: The session's setting for rows per batch is one that Spark's Python data sources don't run with.
        pyspark.errors.AnalysisException: There is no such state, or it can't be read; the message
            says which names there are.
    """
    check_rows_per_batch(spark)
    register_source(spark, DefaultSource)
    settings = {key: text for key, text in spark.conf.getAll.items() if is_of_stores(key)}
    options = {SETTINGS: msgspec.json.encode(settings).decode()}
    named = {"operator": operator, "state": state, "raw": raw, "kind": kind}
    options |= {name: value for name, value in named.items() if value is not None}
    if key is not None:
        options["key"] = json.dumps(dict(key))
    return spark.read.format("holdfast").options(**options).load(fspath(pointer))
