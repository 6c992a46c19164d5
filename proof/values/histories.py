"""Histories of a job: batches, restarts with changes, crashes, rollbacks, forks and moves, with idempotent sinks.

The model defines the result of each event: the right totals, or a refusal that names the change and has no
effects. After a history the sinks must have the output of all batches that were not rolled back.
"""

import copy
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal
from unittest import mock

import pyarrow as pa
from jobs.quick_disk import QUICK_DISK
from jobs.stopped_query import all_files

from holdfast import (
    restore_savepoint,
    roll_back,
    rollback_points,
    take_savepoint,
)
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.adapters import file_system_for
from proof.values.aggregates import BACKENDS, Counted
from proof.values.checking import Comparisons
from proof.values.history_cases import CRASHES, WINDOWS, Event, HistoryCase, PlainTuple, draw_change
from proof.values.history_model import NO_CHANGE, TYPES, Moment, Plan, Refusal
from proof.values.plain import to_arrow
from proof.values.sinks import (
    MergingSink,
    ReplacingSink,
    Sink,
    TransactionalSink,
    sorted_rows,
)
from proof.values.stored_query import CrashError, StoredQuery

_BEGIN_MS = 1_700_000_000_000


@dataclass(slots=True)
class Branch:
    """A query, and the model of it.

    Attributes:
        query: The query.
        moments: The model before the first batch, and after each one.
        plan: Its current plan.
        kept: The retained checkpoints.
        first: The first batch with output in the sinks.
        is_noted: Whether Spark has recorded the last batch as done; if not, it repeats the batch.
    """

    query: StoredQuery
    moments: list[Moment]
    plan: Plan
    kept: list[int] = field(default_factory=list)
    first: int = 0
    is_noted: bool = True

    @property
    def next_batch(self) -> int:
        """The id of the next batch."""
        return len(self.moments) - 1

    def take(self, moment: Moment) -> None:
        """Add a batch with a completed checkpoint."""
        self.moments.append(moment)
        self.plan = moment.plan
        self.kept = [*self.kept, self.next_batch][-self.query.num_retained :]

    def go_back(self, checkpoint: int) -> None:
        """Forget everything after a checkpoint."""
        self.is_noted = self.is_noted or checkpoint < self.next_batch
        del self.moments[checkpoint + 1 :]
        self.plan = self.moments[-1].plan
        self.kept = [each for each in self.kept if each <= checkpoint]
        for sink in self.query.sinks:
            sink.go_back(checkpoint - 1)


class _EndedError(Exception):
    """A difference after which nothing can be compared."""


@dataclass(slots=True)
class History:
    """A history in progress.

    Attributes:
        case: The case.
        root: The directory of all files.
        compared: The comparisons so far.
        branches: The queries; events affect the last one.
        savepoints: The savepoints, with the model at their time, and whether Spark has recorded its last batch as done.
        clock_ms: The time of the driver's clock.
        marks: The marks of a table shared by all queries.
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
        """The query that events affect."""
        return self.branches[-1]

    def apply(self, event: Event) -> None:
        """Perform an event."""
        random = Random(event.number)  # noqa: S311  # no secret
        self.clock_ms += random.choice([0, 1_000, 6_000, 12_000])
        branch = self.branch
        if event.name == "batch":
            self.run(branch.plan, event.rows)
        elif event.name in CRASHES:
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
            if not self.run(self._change(event.name, random), event.rows):
                self.run(branch.plan, event.rows)

    def _change(self, name: str, random: Random) -> Plan:
        """Return the plan after a change."""
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
            return replace(plan, number_type=random.choice([*TYPES]))
        if name == "aggregates":
            number = self.branch.moments[-1].number + 1
            stored = self.branch.moments[-1].plan.counted
            change = draw_change(random, stored, number)
            counted = change.apply(stored, number)
            return replace(plan, counted=counted, change=change)
        if name == "uid":
            uid = f"u{self.branch.moments[-1].number}x{random.randint(0, 99)}"
            window = plan.window and random.choice(WINDOWS)
            may_drop = random.random() < 0.7
            return replace(plan, uid=uid, window=window, may_drop=may_drop, change=NO_CHANGE)
        if name == "windows" and plan.window is not None:
            return replace(plan, window=random.choice(WINDOWS))
        return plan

    def run(self, plan: Plan, rows: Sequence[PlainTuple], *, dies: str = "") -> bool:
        """Run a batch.

        Returns:
            Whether the plan was accepted.
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
        except Exception as error:  # noqa: BLE001  # each error is a finding
            self._end("a batch", error)
        if refusal is not None and refusal.is_certain:
            self.compared.check(False, f"{refusal.kind} is not refused", plan, output)
            raise _EndedError
        self.compared.check(
            output is not None and sorted_rows(output) == sorted_rows(moment.output),
            "a batch has other output",
            f"batch {batch_id}: {output}, not {moment.output}",
        )
        branch.take(moment)
        return True

    def _check_refused(self, refusal: Refusal, error: CheckpointError) -> None:
        missing = [name for name in refusal.names if name not in str(error)]
        self.compared.check(not missing, f"{refusal.kind}: the refusal lacks {missing}", error)

    def _end(self, label: str, error: BaseException) -> None:
        self.compared.add_error(label, error)
        raise _EndedError from error

    def _repeat_completed(self, branch: Branch) -> None:
        """Repeat a batch with a completed checkpoint like Spark does; it must be skipped."""
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
        """Crash the driver in a batch; then repeat the batch with other subtasks, or roll back."""
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
                self.compared.check(False, "rollback to a deleted checkpoint", gone)
            except CheckpointNotFoundError as error:
                self.compared.check(f"checkpoint {gone}" in str(error), "the refusal", error)
            is_same = (files, log) == (self._files(branch), all_files(location))
            self.compared.check(is_same, "a refused rollback has changed something")
        checkpoint = random.choice(branch.kept)
        batch_id = roll_back(location, checkpoint=checkpoint, configuration={})
        self.compared.check(
            batch_id == checkpoint - 1, "rollback to another batch", batch_id, checkpoint
        )
        later = [moment.plan for moment in branch.moments[checkpoint + 1 :]]
        branch.go_back(checkpoint)
        self._keep_change(later, random)

    def _keep_change(self, later: Sequence[Plan], random: Random) -> None:
        """Resume after a rollback, with or without the first change of aggregates that was rolled back."""
        branch = self.branch
        plan = branch.plan
        changed = next((each for each in later if each.change != plan.change), None)
        if changed is None or changed.uid != plan.uid or random.random() < 0.5:
            return
        counted = changed.change.apply(plan.counted, branch.moments[-1].number + 1)
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
        """Fork the query, move it, or begin a new one with its state, from the last savepoint or another one."""
        if not self.savepoints or random.random() < 0.4:
            self.take_savepoint(random)
        if not self.savepoints:
            return
        branch = self.branch
        pointer, moments, is_noted = random.choice(self.savepoints)
        moves = name == "move"
        if moves and moments != branch.moments[: len(moments)]:
            return  # its history was rolled back
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
        """Begin a new query with the state of a savepoint. Its batch ids begin at 0."""
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
        """Run another batch of each query, and compare its sinks with the output of its batches."""
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


def run_case(case: HistoryCase) -> Comparisons:
    """Perform all events, and compare each batch and the sinks with the model."""
    compared = Comparisons()
    root = f"file://{QUICK_DISK}/{uuid.uuid4().hex}"
    file_system_for(root).prepare_directory(root)
    history = History(case, root, compared)
    try:
        with mock.patch("holdfast.spark.sessions.is_application_alive", return_value=False):
            history.begin()
            for event in case.events:
                history.apply(event)
            history.end()
    except _EndedError:
        pass
    finally:
        for branch in history.branches:
            branch.query.stop()
        file_system_for(root).delete_tree(root)
    return compared
