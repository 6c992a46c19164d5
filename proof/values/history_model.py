"""The model of a job with changes: the output of each batch, or the refusal of a start."""

import copy
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from holdfast import (
    StatefulFunction,
)
from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed import BackendName
from holdfast.spark.aggregates import Aggregation
from holdfast.spark.windows import WindowedAggregation
from proof.values.aggregates import Change, Counted, aggregate_of
from proof.values.model import aggregate, result_type
from proof.values.sinks import (
    Row,
)
from proof.values.stored_query import Program
from proof.values.windows import Kind, WindowModel

_TIME = pa.timestamp("us", "UTC")
_TTL_MS = 10_000
TYPES: Mapping[str, pa.DataType] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "text": pa.string(),
    "array": pa.list_(pa.int64()),
}
_KEEP_VALUES = frozenset({"min", "max", "first", "last"})
"""The aggregates whose state has the type of the column."""
_NOT_TAKEN: Mapping[str, AbstractSet[str]] = {
    "text": {"sum", "avg"},
    "array": {"sum", "avg", *_KEEP_VALUES},
}
"""The aggregates that do not take a type."""
NO_CHANGE = Change()


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of a start of the job.

    Attributes:
        uid: The uid of its operator.
        counted: Its aggregates by name.
        window: Its windows.
        key: The name of the key's column.
        key_type: The name of the key's type.
        number_type: The name of the type of the column that is aggregated.
        change: The declared change of its aggregates.
        parallelism: Number of subtasks.
        backend: The state backend.
        may_drop: Whether state of other uids may be dropped.
    """

    uid: str
    counted: Mapping[str, Counted]
    window: Kind | None
    key: str = "k"
    key_type: str = "bigint"
    number_type: str = "int"
    change: Change = NO_CHANGE
    parallelism: int = 1
    backend: BackendName = "columnar"
    may_drop: bool = False

    @property
    def columns(self) -> pa.Schema:
        """The columns except the key."""
        return pa.schema([("t", _TIME), ("n", TYPES[self.number_type])])

    @property
    def schema(self) -> pa.Schema:
        """All columns of rows."""
        return pa.schema([(self.key, TYPES[self.key_type]), *self.columns])

    def program(self, *, expires: bool) -> Program:
        """Return the program."""
        key = pa.schema([self.schema.field(self.key)])
        bounds = [] if self.window is None else [("window_start", _TIME), ("window_end", _TIME)]
        results = [
            (name, result_type(each.spec, self.columns)) for name, each in self.counted.items()
        ]
        return Program(
            function=self._function(expires=expires),
            uid=self.uid,
            key=key,
            parallelism=self.parallelism,
            backend=self.backend,
            output=pa.schema([*key, *bounds, *results]),
            may_drop=self.may_drop,
        )

    def _function(self, *, expires: bool) -> StatefulFunction:
        aggregates = {name: aggregate_of(each.spec) for name, each in self.counted.items()}
        if self.window is not None:
            return WindowedAggregation(
                aggregates, self.window.assigner, time="t", **self.change.options
            )
        ttl = StateTtlConfig(timedelta(milliseconds=_TTL_MS)) if expires else None
        return Aggregation(aggregates, ttl=ttl, **self.change.options)

    def cells(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row as plain values of the job's types."""
        key, time, number = row
        if number is not None and self.number_type == "text":
            number = str(number)
        elif number is not None and self.number_type == "array":
            number = [number]
        return str(key) if self.key_type == "text" else key, time * 1000, number


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that must be raised.

    Attributes:
        kind: The changed part of the plan.
        names: Names that the error must contain.
        is_certain: Whether it must be raised; without stored rows it is optional.
    """

    kind: str
    names: tuple[str, ...]
    is_certain: bool = True


@dataclass(slots=True)
class Moment:
    """The model of the job after a batch.

    Attributes:
        plan: The plan of the batch.
        number: The number of the batch, which continues if a query begins with a savepoint.
        rows: The rows of each key, with the numbers of their batches, and the time of the last.
        windows: The windows.
        types: The types in which aggregates keep values of the column, by the aggregate's name.
        is_stored: Whether there was a row under this uid.
        time_ms: The time of the batch.
        watermark_ms: Its watermark.
        output: The output.
    """

    plan: Plan
    number: int = -1
    rows: dict[Any, tuple[list[tuple[int, Row]], int]] = field(default_factory=dict)
    windows: WindowModel | None = None
    types: dict[str, str] = field(default_factory=dict)
    is_stored: bool = False
    time_ms: int = 0
    watermark_ms: int = 0
    output: list[Row] = field(default_factory=list)

    def refusal(self, plan: Plan) -> Refusal | None:
        """Return the error that a start of another plan must raise; None if it must succeed."""
        before = self.plan
        if plan.uid != before.uid:
            if plan.may_drop:
                return None
            return Refusal("another uid", (before.uid, plan.uid), self.is_stored)
        if plan.key != before.key:
            return Refusal("another key", (before.key, plan.key), self.is_stored)
        not_taken = _NOT_TAKEN.get(plan.number_type, set())
        wrong = [name for name, each in plan.counted.items() if each.spec.kind in not_taken]
        if wrong:
            has_sums = any(plan.counted[name].spec.kind in {"sum", "avg"} for name in wrong)
            name = "'n'" if has_sums else repr(wrong[0])
            return Refusal(f"an aggregate of {plan.number_type}s", (name,))
        if plan.key_type != before.key_type:
            types = str(TYPES[before.key_type]), str(TYPES[plan.key_type])
            return Refusal("another type of the key", (plan.key, *types), self.is_stored)
        if plan.window != before.window:
            assert plan.window is not None
            assert before.window is not None
            windows = str(before.window.assigner), str(plan.window.assigner)
            return Refusal("other windows", (*windows, "another uid"), self.is_stored)
        change = plan.change
        if change.is_refused:
            names = [name for pair in change.renamed for name in pair]
            names += [*change.dropped, *(name for name, _ in change.added)]
            return Refusal("an undeclared change of aggregates", tuple(names), self.is_stored)
        renamed = dict(change.renamed)
        for name, each in plan.counted.items():
            stored = self.types.get(renamed.get(name, name), self.types.get(name))
            if stored is None or each.spec.kind not in _KEEP_VALUES:
                continue
            if stored != plan.number_type and (stored, plan.number_type) != ("int", "bigint"):
                return Refusal("another type", (repr(name),), self.is_stored)
        return None

    def after(
        self,
        plan: Plan,
        rows: Sequence[tuple[Any, ...]],
        times: tuple[int, int],
        *,
        expires: bool,
    ) -> "Moment":
        """Return the job after another batch.

        Args:
            plan: The plan of the batch.
            rows: Its rows.
            times: The time of the driver's clock, and the watermark.
            expires: Whether state expires, as in the case.
        """
        time_ms, watermark_ms = max(times[0], self.time_ms), times[1]
        is_new = plan.uid != self.plan.uid
        names = plan.schema.names
        cells = [dict(zip(names, row, strict=True)) for row in rows]
        number = self.number + 1
        moment = Moment(
            plan,
            number,
            {} if is_new else dict(self.rows),
            None,
            {},
            bool(rows) or (self.is_stored and not is_new),
            time_ms,
            watermark_ms,
        )
        moment.types = {
            name: plan.number_type
            for name, each in plan.counted.items()
            if each.spec.kind in _KEEP_VALUES
        }
        if plan.window is not None:
            is_kept = self.windows is not None and not is_new
            model = copy.deepcopy(self.windows) if is_kept else None
            moment.windows = model or WindowModel(plan.window, 0, "append")
            keyed = [(row[plan.key], {**row, "number": number}) for row in cells]
            for key, window in moment.windows.batch(keyed, self.watermark_ms, watermark_ms):
                numbered = [(row["number"], row) for row in window.rows]
                bounds = {"window_start": window.start * 1000, "window_end": window.end * 1000}
                moment.output.append(_result(plan, {plan.key: key, **bounds}, numbered))
            return moment
        for row in cells:
            key = row[plan.key]
            held, written_ms = moment.rows.get(key, ([], time_ms))
            if expires and written_ms + _TTL_MS <= time_ms:
                held = []
            moment.rows[key] = [*held, (number, row)], time_ms
        for key in dict.fromkeys(row[plan.key] for row in cells):
            moment.output.append(_result(plan, {plan.key: key}, moment.rows[key][0]))
        return moment


def _result(plan: Plan, key: Row, rows: Sequence[tuple[int, Row]]) -> Row:
    """Return a row of the output."""
    cells = {}
    for name, each in plan.counted.items():
        counted = [row for number, row in rows if number >= each.since]
        cells[name] = aggregate(each.spec, counted, plan.columns).value
    return {**key, **cells}
