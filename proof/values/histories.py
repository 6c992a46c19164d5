"""Histories of a job: batches, restarts with changes, crashes, roll backs, forks and moves, with idempotent sinks.

The model knows for each event what must happen: the right totals, or a refusal that names what was changed and
changes nothing itself. After a history the sinks must have the output of the batches that count.
"""

import copy
import uuid
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any, Literal
from unittest import mock

import pyarrow as pa
from jobs.quick_disk import QUICK_DISK
from jobs.stopped_query import all_files

from holdfast import (
    StatefulFunction,
    restore_savepoint,
    roll_back,
    rollback_points,
    take_savepoint,
)
from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed import BackendName
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.adapters import file_system_for
from holdfast.spark.aggregates import Aggregation
from holdfast.spark.windows import WindowedAggregation
from proof.values.aggregates import BACKENDS, Change, Counted, aggregate_of
from proof.values.checking import Comparisons, without_each
from proof.values.model import Spec, aggregate, result_type
from proof.values.plain import to_arrow
from proof.values.sinks import (
    MergingSink,
    ReplacingSink,
    Row,
    Sink,
    TransactionalSink,
    sorted_rows,
)
from proof.values.stored_query import CrashError, Program, StoredQuery
from proof.values.windows import Kind, WindowModel

_TIME = pa.timestamp("us", "UTC")
_TTL_MS = 10_000
_BEGIN_MS = 1_700_000_000_000
_TYPES: Mapping[str, pa.DataType] = {
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
_WINDOWS = (
    Kind("tumbling", 10),
    Kind("tumbling", 20),
    Kind("tumbling", 10, offset=3),
    Kind("sliding", 10, 5),
    Kind("session", 5),
)
_DEATHS = ("before the sink", "after the sink", "after the checkpoint")

_NO_CHANGE = Change()

PlainTuple = tuple[int, int, int | None]


@dataclass(frozen=True, slots=True)
class Event:
    """An event, and the rows of the batch that comes with it.

    Attributes:
        name: What happens.
        number: Chooses among the ways in which it can happen.
        rows: Key, time and number of each row. Times are milliseconds after the watermark.
    """

    name: str
    number: int
    rows: tuple[PlainTuple, ...]


@dataclass(frozen=True, slots=True)
class HistoryCase:
    """A job, and what happens to it.

    Attributes:
        specs: Its aggregates by name.
        window: The windows of the aggregates; None if there are none.
        expires: Whether the aggregates of a key live for a time only.
        num_retained: How many checkpoints are kept.
        events: What happens.
    """

    specs: Mapping[str, Spec]
    window: Kind | None
    expires: bool
    num_retained: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start of the job runs.

    Attributes:
        uid: The uid of its operator.
        counted: Its aggregates by name.
        window: Its windows.
        key: The name of the key's column.
        key_type: The name of the key's type.
        number_type: The name of the type of the column that is aggregated.
        change: What the job says of changes of its aggregates.
        parallelism: Number of subtasks.
        backend: What keeps the state.
        may_drop: Whether state of other uids may be dropped.
    """

    uid: str
    counted: Mapping[str, Counted]
    window: Kind | None
    key: str = "k"
    key_type: str = "bigint"
    number_type: str = "int"
    change: Change = _NO_CHANGE
    parallelism: int = 1
    backend: BackendName = "columnar"
    may_drop: bool = False

    @property
    def columns(self) -> pa.Schema:
        """The columns that are not the key's."""
        return pa.schema([("t", _TIME), ("n", _TYPES[self.number_type])])

    @property
    def schema(self) -> pa.Schema:
        """All columns of rows."""
        return pa.schema([(self.key, _TYPES[self.key_type]), *self.columns])

    def program(self, *, expires: bool) -> Program:
        """Return what is run."""
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
                aggregates, self.window.assigner, time="t", **self.change.told
            )
        ttl = StateTtlConfig(timedelta(milliseconds=_TTL_MS)) if expires else None
        return Aggregation(aggregates, ttl=ttl, **self.change.told)

    def cells(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row as plain values of the types that the job has."""
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
        kind: What was changed.
        names: What the error names.
        is_certain: Whether it must be raised; if no row was ever stored, it may be.
    """

    kind: str
    names: tuple[str, ...]
    is_certain: bool = True


@dataclass(slots=True)
class Moment:
    """The model of the job after a batch.

    Attributes:
        plan: What ran.
        number: The number of the batch, which grows on even if a query begins with a savepoint.
        rows: The rows of each key, with the numbers of their batches, and the time of the last.
        windows: The windows.
        types: The types in which aggregates keep values of the column, by the aggregate's name.
        is_stored: Whether there was a row under this uid.
        time_ms: The time of the batch.
        watermark_ms: Its watermark.
        output: What came out.
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
        """Return the error that a start of another plan must raise; None if it must go on."""
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
            are_sums = any(plan.counted[name].spec.kind in {"sum", "avg"} for name in wrong)
            name = "'n'" if are_sums else repr(wrong[0])
            return Refusal(f"an aggregate of {plan.number_type}s", (name,))
        if plan.key_type != before.key_type:
            types = str(_TYPES[before.key_type]), str(_TYPES[plan.key_type])
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
            return Refusal("an untold change of aggregates", tuple(names), self.is_stored)
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
            plan: What runs.
            rows: Its rows.
            times: What the driver's clock says, and the watermark.
            expires: As of the case.
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


@dataclass(slots=True)
class Branch:
    """A query, and the model of it.

    Attributes:
        query: The query.
        moments: The model before the first batch, and after each one.
        plan: What it runs.
        kept: The checkpoints that are kept.
        first: The first batch whose output is in the sinks.
        is_noted: Whether Spark knows that the last batch is done; if not, it repeats it.
    """

    query: StoredQuery
    moments: list[Moment]
    plan: Plan
    kept: list[int] = field(default_factory=list)
    first: int = 0
    is_noted: bool = True

    @property
    def next_batch(self) -> int:
        """The batch that comes next."""
        return len(self.moments) - 1

    def take(self, moment: Moment) -> None:
        """Note a batch whose checkpoint is completed."""
        self.moments.append(moment)
        self.plan = moment.plan
        self.kept = [*self.kept, self.next_batch][-self.query.num_retained :]

    def go_back(self, checkpoint: int) -> None:
        """Forget what came after a checkpoint."""
        self.is_noted = self.is_noted or checkpoint < self.next_batch
        del self.moments[checkpoint + 1 :]
        self.plan = self.moments[-1].plan
        self.kept = [each for each in self.kept if each <= checkpoint]
        for sink in self.query.sinks:
            sink.go_back(checkpoint - 1)


class _EndedError(Exception):
    """A difference was found, after which nothing can be compared."""


@dataclass(slots=True)
class History:
    """A history that is being made.

    Attributes:
        case: The case.
        root: The directory of all that is stored.
        compared: The comparisons so far.
        branches: The queries; the last one is that to which things happen.
        savepoints: The savepoints, with the model at their time, and whether Spark knows that its last batch is done.
        clock_ms: What the driver's clock says.
        marks: The marks of a table that all queries write to.
    """

    case: HistoryCase
    root: str
    compared: Comparisons
    branches: list[Branch] = field(default_factory=list)
    savepoints: list[tuple[str, list[Moment], bool]] = field(default_factory=list)
    clock_ms: int = _BEGIN_MS
    marks: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Create the query."""
        counted = {name: Counted(spec) for name, spec in self.case.specs.items()}
        plan = Plan("u0", counted, self.case.window)
        query = StoredQuery(
            f"{self.root}/query", f"{self.root}/jobs", self.case.num_retained, self._sinks()
        )
        query.create()
        self.branches.append(Branch(query, [Moment(plan)], plan))

    def _sinks(self) -> list[Sink]:
        return [ReplacingSink(), TransactionalSink(self.marks), MergingSink()]

    @property
    def branch(self) -> Branch:
        """The query to which things happen."""
        return self.branches[-1]

    def happen(self, event: Event) -> None:
        """Let an event happen."""
        random = Random(event.number)  # noqa: S311  # no secret
        self.clock_ms += random.choice([0, 1_000, 6_000, 12_000])
        branch = self.branch
        if event.name == "batch":
            self.run(branch.plan, event.rows)
        elif event.name in _CRASHES:
            self.crash(event, random)
        elif event.name == "roll back":
            self.roll_back(random)
        elif event.name == "savepoint":
            self.take_savepoint(random)
        elif event.name in {"fork", "move", "new query"}:
            self.restore(random, event.name)
        else:
            if event.name == "the clock goes back":
                self.clock_ms -= random.choice([5_000, 60_000])
            branch.query.stop()
            if not self.run(self._changed(event.name, random), event.rows):
                self.run(branch.plan, event.rows)

    def _changed(self, name: str, random: Random) -> Plan:
        """Return what a start of the job runs after a change."""
        plan = self.branch.plan
        if name == "parallelism":
            return replace(plan, parallelism=random.randint(1, 4))
        if name == "backend":
            return replace(plan, backend=random.choice(BACKENDS))
        if name == "key type":
            return replace(plan, key_type=random.choice(["int", "text"]))
        if name == "key name":
            return replace(plan, key="kk")
        if name == "type":
            return replace(plan, number_type=random.choice([*_TYPES]))
        if name == "aggregates":
            number = self.branch.moments[-1].number + 1
            stored = self.branch.moments[-1].plan.counted
            change = draw_change(random, stored, number)
            counted = change.applied(stored, number)
            return replace(plan, counted=counted, change=change)
        if name == "uid":
            uid = f"u{self.branch.moments[-1].number}x{random.randint(0, 99)}"
            window = plan.window and random.choice(_WINDOWS)
            may_drop = random.random() < 0.7
            return replace(plan, uid=uid, window=window, may_drop=may_drop, change=_NO_CHANGE)
        if name == "windows" and plan.window is not None:
            return replace(plan, window=random.choice(_WINDOWS))
        return plan

    def run(self, plan: Plan, rows: Sequence[PlainTuple], *, dies: str = "") -> bool:
        """Run a batch.

        Returns:
            Whether the plan was not refused.
        """
        branch = self.branch
        before, batch_id = branch.moments[-1], branch.next_batch
        if not branch.is_noted:
            self._repeat_completed(branch)
        if plan != branch.plan:
            branch.query.stop()
        cells = [plan.cells((key, before.watermark_ms + time, n)) for key, time, n in rows]
        if not before.watermark_ms:
            cells = [(key, time + 1_000_000_000, n) for key, time, n in cells]
        ends = [time // 1000 for _, time, _ in cells]
        watermark_ms = max([before.watermark_ms, *(end - 4 for end in ends)])
        times = (self.clock_ms, watermark_ms)
        refusal = before.refusal(plan)
        moment = Moment(plan)
        if refusal is None or not refusal.is_certain:
            moment = before.after(plan, cells, times, expires=self.case.expires)
        stored, in_sinks = self._files(branch), copy.deepcopy(branch.query.sinks)
        table = pa.Table.from_arrays(
            [
                to_arrow([row[index] for row in cells], each.type)
                for index, each in enumerate(plan.schema)
            ],
            schema=plan.schema,
        )
        try:
            program = plan.program(expires=self.case.expires)
            output = branch.query.run_batch(
                program, batch_id, table, time_ms=times[0], watermark_ms=watermark_ms, dies=dies
            )
        except CrashError:
            if dies == "after the checkpoint":
                branch.take(moment)
                branch.is_noted = False
            return True
        except CheckpointError as error:
            if refusal is None:
                self._end("a batch", error)
            assert refusal is not None
            self._check_refused(refusal, error)
            self.compared.check(
                self._files(branch) == stored and branch.query.sinks == in_sinks,
                f"{refusal.kind}: the refusal has changed something",
            )
            return False
        except Exception as error:  # noqa: BLE001  # whatever comes is a finding
            self._end("a batch", error)
        if refusal is not None and refusal.is_certain:
            self.compared.check(False, f"{refusal.kind} is not refused", plan, output)
            raise _EndedError
        self.compared.check(
            output is not None and sorted_rows(output) == sorted_rows(moment.output),
            "other rows come out of a batch",
            f"batch {batch_id}: {output}, not {moment.output}",
        )
        branch.take(moment)
        return True

    def _check_refused(self, refusal: Refusal, error: CheckpointError) -> None:
        missing = [name for name in refusal.names if name not in str(error)]
        self.compared.check(not missing, f"{refusal.kind}: the refusal lacks {missing}", error)

    def _end(self, what: str, error: BaseException) -> None:
        self.compared.unexpected(what, error)
        raise _EndedError from error

    def _repeat_completed(self, branch: Branch) -> None:
        """Let Spark repeat a batch whose checkpoint is completed; it must be skipped."""
        plan, batch_id = branch.plan, branch.next_batch - 1
        output = branch.query.run_batch(
            plan.program(expires=self.case.expires),
            batch_id,
            plan.schema.empty_table(),
            time_ms=0,
            watermark_ms=0,
        )
        self.compared.check(output is None, "a completed batch is run again", batch_id)
        branch.is_noted = True

    def _files(self, branch: Branch) -> dict[str, str]:
        """Return the files of completed checkpoints."""
        directory = branch.query.job_directory
        try:
            files = all_files(directory)
        except CheckpointNotFoundError:
            return {}
        return {path: text for path, text in files.items() if path.startswith(("chk-", "shared/"))}

    def crash(self, event: Event, random: Random) -> None:
        """Let the driver die in a batch; then repeat that with other subtasks, or go back."""
        branch = self.branch
        self.run(branch.plan, event.rows, dies=event.name)
        if random.random() < 0.2:
            self.take_savepoint(random)
        if branch.kept and random.random() < 0.3:
            self.roll_back(random)
            return
        if branch.is_noted:
            plan = replace(
                branch.plan, parallelism=random.randint(1, 4), backend=random.choice(BACKENDS)
            )
            self.run(plan, event.rows)

    def roll_back(self, random: Random) -> None:
        """Roll the query back to a checkpoint."""
        branch = self.branch
        branch.query.stop()
        location = branch.query.location
        if not branch.kept:
            return
        points = [each.checkpoint for each in rollback_points(location, configuration={})]
        self.compared.check(
            points == branch.kept, "other checkpoints are kept", points, "not", branch.kept
        )
        gone = branch.kept[0] - 1
        if gone and random.random() < 0.2:
            files, log = self._files(branch), all_files(location)
            try:
                roll_back(location, checkpoint=gone, configuration={})
                self.compared.check(False, "a roll back to a deleted checkpoint", gone)
            except CheckpointNotFoundError as error:
                self.compared.check(f"checkpoint {gone}" in str(error), "the refusal", error)
            is_same = (files, log) == (self._files(branch), all_files(location))
            self.compared.check(is_same, "a refused roll back has changed something")
        checkpoint = random.choice(branch.kept)
        batch_id = roll_back(location, checkpoint=checkpoint, configuration={})
        self.compared.check(
            batch_id == checkpoint - 1, "a roll back to another batch", batch_id, checkpoint
        )
        later = [moment.plan for moment in branch.moments[checkpoint + 1 :]]
        branch.go_back(checkpoint)
        self._keep_change(later, random)

    def _keep_change(self, later: Sequence[Plan], random: Random) -> None:
        """Go on after a roll back with the first change of aggregates that was rolled back, or without it."""
        branch = self.branch
        plan = branch.plan
        changed = next((each for each in later if each.change != plan.change), None)
        if changed is None or changed.uid != plan.uid or random.random() < 0.5:
            return
        counted = changed.change.applied(plan.counted, branch.moments[-1].number + 1)
        branch.plan = replace(plan, counted=counted, change=changed.change)

    def take_savepoint(self, random: Random) -> None:
        """Take a savepoint."""
        branch = self.branch
        branch.query.stop()
        if not branch.kept:
            return
        formats: list[Literal["native", "canonical"]] = ["native", "canonical"]
        form = random.choice(formats)
        of_query = [each for each, _, _ in self.savepoints if branch.query.query_id in each]
        base = of_query[-1] if of_query and form == "native" else None
        pointer = take_savepoint(
            branch.query.location,
            f"{self.root}/savepoints",
            base=base,
            format=form,
            configuration={},
        )
        self.savepoints.append((pointer, [*branch.moments], branch.is_noted))

    def restore(self, random: Random, name: str) -> None:
        """Fork the query, move it, or begin a new one with its state: by the last savepoint, or by any."""
        if not self.savepoints or random.random() < 0.4:
            self.take_savepoint(random)
        if not self.savepoints:
            return
        branch = self.branch
        pointer, moments, is_noted = random.choice(self.savepoints)
        moves = name == "move"
        if moves and moments != branch.moments[: len(moments)]:
            return  # it is of a history that does not count any more
        place = uuid.uuid4().hex
        if name == "new query":
            if moments[-1].is_stored:  # without state it is refused
                self._begin_with(pointer, moments[-1], place)
            return
        restored = restore_savepoint(
            pointer,
            f"{self.root}/{place}",
            checkpoint_dir=f"{self.root}/jobs-{place}",
            keep_query_id=moves,
            configuration={},
        )
        self.compared.check(
            restored.batch_id == len(moments) - 2,
            "a restore of another batch",
            restored.batch_id,
            len(moments) - 2,
        )
        query = StoredQuery(
            restored.checkpoint_location,
            f"{self.root}/jobs-{place}",
            self.case.num_retained,
            branch.query.sinks if moves else self._sinks(),
            query_id=restored.query_id,
        )
        plan = replace(moments[-1].plan, backend=random.choice(BACKENDS))
        done = len(moments) - 1
        new = Branch(query, [*moments], plan, [done], branch.first if moves else done, is_noted)
        if moves:
            branch.query.stop()
            for sink in query.sinks:
                sink.go_back(done - 1)
            self.branches[-1] = new
        elif random.random() < 0.6:
            self.branches.append(new)
        else:
            self.branches.insert(0, new)

    def _begin_with(self, pointer: str, moment: Moment, place: str) -> None:
        """Begin a new query with the state of a savepoint. Its batches are counted from 0."""
        query = StoredQuery(
            f"{self.root}/{place}",
            f"{self.root}/jobs-{place}",
            self.case.num_retained,
            self._sinks(),
            start=pointer,
        )
        query.create()
        self.branches.append(Branch(query, [moment], moment.plan))

    def end(self) -> None:
        """Run another batch of each query, and compare its sinks with what came out of the batches that count."""
        for branch in [*self.branches]:
            self.branches.append(branch)
            self.run(branch.plan, ((1, 30, 1), (2, 1, None)))
            branch.query.stop()
            outputs = {
                number: branch.moments[number + 1].output
                for number in range(branch.first, branch.next_batch)
            }
            for sink in branch.query.sinks:
                difference = sink.difference(outputs)
                self.compared.check(not difference, f"{type(sink).__name__} differs", difference)


_CRASHES = _DEATHS
_EVENTS = (
    *["batch"] * 6,
    *_CRASHES,
    *["parallelism", "backend", "key type", "key name", "type", "type"],
    *["aggregates"] * 4,
    *["uid", "windows", "windows"],
    *["roll back"] * 3,
    *["savepoint", "fork", "fork", "move", "move", "new query", "new query"],
    *["the clock goes back"] * 2,
)


def draw_change(random: Random, counted: Mapping[str, Counted], number: int) -> Change:
    """Draw a change of aggregates."""
    renamed, added = [], []
    dropped: list[str] = []
    for name in counted:
        chance = random.random()
        if chance < 0.3:
            renamed.append((f"{name[:6]}r{number}", name))
        elif chance < 0.5 and len(dropped) < len(counted) - 1:
            dropped.append(name)
    if random.random() < 0.4:
        added.append((f"c{number}", _draw_spec(random)))
    is_reordered = random.random() < 0.3
    return Change(
        tuple(renamed), tuple(added), tuple(dropped), random.random() < 0.75, is_reordered
    )


def _draw_spec(random: Random) -> Spec:
    kind = random.choice(["count", "count", "sum", "min", "max", "avg", "first", "last"])
    if kind == "count" and random.random() < 0.5:
        return Spec(kind)
    return Spec(kind, "n", "t" if kind in {"first", "last"} else None)


def draw_case(random: Random) -> HistoryCase:
    """Draw a case."""
    specs = {f"a{index}": _draw_spec(random) for index in range(random.randint(1, 3))}
    window = random.choice(_WINDOWS) if random.random() < 0.4 else None
    events = [Event("batch", random.randrange(1 << 30), _draw_rows(random))]
    for _ in range(random.randint(2, 9)):
        name = random.choice(_EVENTS)
        events.append(Event(name, random.randrange(1 << 30), _draw_rows(random)))
    return HistoryCase(
        specs,
        window,
        window is None and random.random() < 0.4,
        random.randint(1, 4),
        tuple(events),
    )


def _draw_rows(random: Random) -> tuple[PlainTuple, ...]:
    return tuple(
        (random.randint(1, 4), random.randint(-8, 30), random.choice([None, 1, -2, 7, 2**20]))
        for _ in range(random.choice([0, 1, 3, 5]))
    )


def run_case(case: HistoryCase) -> Comparisons:
    """Let all events happen, and compare each batch and the sinks with the model."""
    compared = Comparisons()
    root = f"file://{QUICK_DISK}/{uuid.uuid4().hex}"
    file_system_for(root).prepare_directory(root)
    history = History(case, root, compared)
    try:
        with mock.patch("holdfast.spark.sessions.is_application_alive", return_value=False):
            history.begin()
            for event in case.events:
                history.happen(event)
            history.end()
    except _EndedError:
        pass
    finally:
        for branch in history.branches:
            branch.query.stop()
        file_system_for(root).delete_tree(root)
    return compared


def smaller_cases(case: HistoryCase) -> Iterator[HistoryCase]:
    """Yield cases with less in them."""
    for events in without_each(case.events):
        yield replace(case, events=events)
    if len(case.specs) > 1:
        for specs in without_each(tuple(case.specs.items())):
            yield replace(case, specs=dict(specs))
    for index, event in enumerate(case.events):
        before, after = case.events[:index], case.events[index + 1 :]
        for rows in without_each(event.rows):
            yield replace(case, events=(*before, replace(event, rows=rows), *after))
    if case.expires:
        yield replace(case, expires=False)
