"""Spark as an independent reference: rows as DataFrames, its own aggregates, and settings of its sessions."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from proof.values.drawing import ZONES, columns_of
from proof.values.model import Spec
from proof.values.plain import to_arrow

Settings = tuple[tuple[str, str], ...]

PLAIN_SETTINGS: Settings = (
    ("spark.sql.ansi.enabled", "true"),
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.shuffle.partitions", "2"),
)
"""The settings of the reference."""

_CHOICES: Mapping[str, Sequence[str]] = {
    "spark.sql.ansi.enabled": ("true", "false"),
    "spark.sql.session.timeZone": ZONES,
    "spark.sql.caseSensitive": ("true", "false"),
    "spark.sql.execution.arrow.useLargeVarTypes": ("true", "false"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true", "false"),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("2", "10000"),
    "spark.sql.codegen.wholeStage": ("true", "false"),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "CORRECTED"),
}
"""Settings on which the meaning of an expression may depend."""


def draw_settings(random: Random) -> Settings:
    """Draw settings of a session."""
    names = random.sample(sorted(_CHOICES), random.randint(1, len(_CHOICES)))
    return tuple((name, random.choice(_CHOICES[name])) for name in sorted(names))


def session_of(spark: SparkSession, settings: Settings) -> SparkSession:
    """Return a new session with these settings."""
    session = spark.newSession()
    for name, value in dict([*PLAIN_SETTINGS, *settings]).items():
        session.conf.set(name, value)
    return session


def frame_of(session: SparkSession, rows: Sequence[Sequence[Any]], schema: pa.Schema) -> DataFrame:
    """Return plain rows as a DataFrame."""
    table = pa.Table.from_arrays(columns_of(rows, schema, to_arrow), schema=schema)
    return session.createDataFrame(table, ", ".join(f"{f.name} {ddl_of(f.type)}" for f in schema))


def ddl_of(kind: pa.DataType) -> str:
    """Return the name of a type in Spark."""
    if types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{ddl_of(kind.key_type)},{ddl_of(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{ddl_of(field.type)}' for field in kind)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DDL[kind]


_DDL = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp_ltz",
    pa.timestamp("us"): "timestamp_ntz",
    pa.duration("us"): "interval day to second",
}


def spark_aggregates(
    frame: DataFrame, key: Sequence[str | Column], specs: Mapping[str, Spec]
) -> pa.Table:
    """Return Spark's own aggregates of all rows by key."""
    columns = [_expression(spec).alias(name) for name, spec in specs.items()]
    return frame.groupBy(*key).agg(*columns).toArrow()


def _expression(spec: Spec) -> Column:
    if spec.column is None:
        return F.count(F.lit(1))
    column = F.col(spec.column)
    if spec.by is not None:
        pair = F.when(F.col(spec.by).isNotNull(), F.struct(F.col(spec.by), column.alias("value")))
        return (F.min(pair) if spec.kind == "first" else F.max(pair))["value"]
    function = F.collect_list if spec.kind == "collect" else getattr(F, spec.kind)
    return function(column)
