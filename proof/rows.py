"""The rows of the proof. Each row runs in a separate process, so that a crash is detected."""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest
from jobs.job import local_spark

from examples.demo.servers import SERVERS as SERVERS_OF_DEMO
from examples.demo.servers import NoServerError
from proof.bad_bytes import try_reader
from proof.crash_points import crash_everywhere
from proof.dying_commands import die_everywhere
from proof.endurance import BATCHES, NOTES, PICTURE, draw_run, endure, read_notes
from proof.faults import FAULTS, every_fault
from proof.killed_lives import kill_everywhere
from proof.lost_requests import LOSSES, lose_each_request
from proof.planted_secrets import search_for_planted_secrets
from proof.protocol import BROKEN, LONG, SHORT, explore_protocol
from proof.races import random_races
from proof.readers import READERS, readers
from proof.real_processes import disturb
from proof.stores import SERVERS, STORES, empty_directory, faulty_store
from proof.values.planted import PLANTED, misses
from proof.values.subjects import SUBJECTS, SUBJECTS_ON_SPARK, Subject, compare, subjects_on_spark

_SHORT_INPUTS = 80
_LONG_S = 600.0
_SHORT_CASES, _SHORT_CASES_ON_SPARK = 60, 2
_LONG_VALUES_S = 3_600.0
_SHORT_RACES, _LONG_RACES = 40, 2_000
_LONG_KILLS = 100
_KILLS_OF_A_QUERY = 10
_KILLS_OF_A_JOB = 25
_SHORT_EVERY = {"local": 10, "s3-memory": 40, "gcs-memory": 40}
_EVERY_OF_COMMANDS = 10
_MAIN_STORES = ("memory", "local", "minio", "hdfs")
_EVERY_FAULT = {"minio": 10, "hdfs": 10}
_LONG_EVERY = {"versitygw": 2, "azurite": 2, "hdfs": 2}
_EVERY_REQUEST = {"azurite": 3}
_STORES_WITH_REQUESTS = ("s3-memory", "gcs-memory", "azurite")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a row.

    Attributes:
        count: Number of its cases.
        failures: Violations as texts.
        skipped: Number of cases that can't run here, such as those on a server that is not installed.
    """

    count: int
    failures: list[str] = field(default_factory=list)
    skipped: int = 0


def combine(outcomes: Iterable[Outcome]) -> Outcome:
    """Combine the outcomes of several runs of a row."""
    runs = list(outcomes)
    return Outcome(
        sum(run.count for run in runs),
        [failure for run in runs for failure in run.failures],
        sum(run.skipped for run in runs),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: The action on Holdfast.
        unit: The unit of `count`.
        holds: The invariant.
        run: Runs it, in its short form or not, with a seed.
        is_long: Whether it has no short form.
        wanted: Minimum number of cases, by runs with consecutive seeds.
    """

    name: str
    unit: str
    holds: str
    run: Callable[[bool, int], Outcome]
    is_long: bool = False
    wanted: int = 1


def _crash_points(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # every point is taken, or every so many-th
    # A restart on local disks syncs files, which takes three times as long; on S3 it has many requests.
    every = _SHORT_EVERY.get(store, 1) if short else _LONG_EVERY.get(store, 1)
    with empty_directory(store) as directory:
        crashes = crash_everywhere(directory, every=every)
    return Outcome(crashes.restarts, crashes.failures)


def _dying_commands(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # every point is taken, or every so many-th
    with empty_directory(store) as directory:
        every = 1 if store == "memory" else _EVERY_OF_COMMANDS
        return Outcome(*die_everywhere(directory, every=60 if short else every))


def _killed_lives(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # every n-th call is taken
    with tempfile.TemporaryDirectory() as directory:
        crashes = kill_everywhere(Path(directory), every=100 if short else 8)
    return Outcome(crashes.restarts, crashes.failures)


def _every_fault(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # every call is taken, or every so many-th
    with empty_directory(store) as directory:
        faulted = every_fault(directory, every=30 if short else _EVERY_FAULT.get(store, 1))
    return Outcome(faulted.count, faulted.failures)


def _lost_requests(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # every request is taken, or every so many-th
    with faulty_store(store) as faulty:
        lost = lose_each_request(faulty, every=80 if short else _EVERY_REQUEST.get(store, 1))
    return Outcome(lost.count, lost.failures)


def _races(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    return Outcome(*random_races(seed, _SHORT_RACES if short else _LONG_RACES))


def _bad_bytes(name: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    with tempfile.TemporaryDirectory() as scratch:
        outcome = try_reader(
            readers(Path(scratch))[name],
            str(seed),
            inputs=_SHORT_INPUTS if short else None,
            seconds=None if short else _LONG_S,
        )
    return Outcome(outcome.inputs, outcome.escaped)


def _values(name: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    return _compare_values(SUBJECTS[name], _SHORT_CASES if short else None, seed)


def _values_on_spark(name: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    with local_spark() as spark:
        subject = subjects_on_spark(spark)[name]
        return _compare_values(subject, _SHORT_CASES_ON_SPARK if short else None, seed)


def _compare_values(subject: Subject, cases: int | None, seed: int) -> Outcome:
    end = time.monotonic() + _LONG_VALUES_S
    tally = compare(subject, seed, cases=cases, has_time=lambda: time.monotonic() < end)
    return Outcome(tally.comparisons, [*tally.descriptions.values()])


def _planted_faults(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del short
    return Outcome(len(PLANTED), misses(seed))


def _every_order(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del seed  # nothing is left to chance
    states = 0
    failures = []
    for protocol in SHORT if short else (*SHORT, *LONG):
        explored = explore_protocol(protocol)
        states += explored.states
        if explored.problem is not None:
            failures.append(f"{explored.problem}: {'; '.join(explored.trace)}")
    return Outcome(states, failures)


def _every_rule(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del short, seed
    failures = [
        f"nothing is lost: {rule}"
        for rule, protocol in BROKEN.items()
        if explore_protocol(protocol).problem is None
    ]
    return Outcome(len(BROKEN), failures)


def _real_processes(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del short
    try:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
            SERVERS_OF_DEMO.get(store, lambda: nullcontext(f"file://{name}/checkpoints"))() as uri,
        ):
            disturbed = disturb(Path(name), uri, Random(seed), _KILLS_OF_A_QUERY)  # noqa: S311  # not a secret
    except NoServerError:
        return Outcome(0, skipped=1)
    return Outcome(len(disturbed.disturbances), disturbed.failures)


def _endurance(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del short, seed  # nothing is left to chance
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        problems = endure(Path(name), BATCHES)
        draw_run(PICTURE, read_notes(Path(name) / NOTES))
    return Outcome(BATCHES, problems)


def _planted_secrets(short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    del short, seed  # secrets are new each time
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        searched = search_for_planted_secrets(Path(name))
    return Outcome(searched.places, searched.failures)


class _Counting:
    """Counts tests for pytest."""

    def __init__(self) -> None:
        self.outcome = Outcome(0)
        self._skipped = 0
        self._passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome.failures.append(f"{report.nodeid}: {report.longreprtext[-300:]}")
        elif report.skipped:
            self._skipped += 1
        elif report.when == "call":
            self._passed += 1
        self.outcome = Outcome(self._passed, self.outcome.failures, self._skipped)


def _tests(
    arguments: Sequence[str],
    short: bool,  # noqa: FBT001  # as `Row.run` is called
    seed: int,
) -> Outcome:
    """Run tests of the project that prove an invariant already."""
    os.environ["HYPOTHESIS_PROFILE"] = "quick" if short else "ci"
    counting = _Counting()
    options = [
        "-q",
        "-n",
        "0",
        "--no-header",
        "-p",
        "no:cacheprovider",
        f"--hypothesis-seed={seed}",
    ]
    status = pytest.main([*options, *arguments], plugins=[counting])
    outcome = counting.outcome
    if status and not outcome.failures:
        outcome.failures.append(f"pytest ended with status {int(status)}")
    return outcome


def _kills_of_demo(store: str, short: bool, seed: int) -> Outcome:  # noqa: FBT001  # as `Row.run` is called
    os.environ |= {"HOLDFAST_KILLS": str(_KILLS_OF_A_JOB), "HOLDFAST_SEED": str(seed)}
    tests = _tests(["integration_tests/test_random_kills.py", "-k", store], short, seed)
    # Each test has one job, and fails if there were fewer kills.
    return Outcome(tests.count * _KILLS_OF_A_JOB, tests.failures, tests.skipped)


ROWS = [
    Row(
        "drivers, tasks, cleaners and a sweep as a model, in every order of steps",
        "states",
        "a checkpoint that can be restored has all its files, and no driver resumes from another",
        _every_order,
    ),
    Row(
        "the model without a rule: no fence, no token, data deleted before metadata, …",
        "rules",
        "the checker finds the loss",
        _every_rule,
    ),
    *(
        Row(
            f"a crash around each call to a store, {place}",
            "stores as crashes left them",
            "the next driver resumes from the last checkpoint or the next one; a sweep leaves no garbage",
            partial(_crash_points, store),
            is_long=store in SERVERS,
        )
        for store, place in STORES.items()
    ),
    *(
        Row(
            f"savepoints, restores, rollbacks and imports from Flink crash before a call to a store, {STORES[store]}",
            "crashes",
            "nothing incomplete is considered complete; a repetition completes it, and another one changes nothing",
            partial(_dying_commands, store),
            is_long=store in SERVERS,
        )
        for store in _MAIN_STORES
    ),
    Row(
        "a process kills itself with SIGKILL around a call to a local disk",
        "processes",
        "another process resumes from the last checkpoint or the next one; a sweep leaves no garbage",
        _killed_lives,
    ),
    *(
        Row(
            f"each call to a store fails in {len(FAULTS)} ways, {STORES[store]}: fails, loses its answer, is throttled, …",
            "faults",
            "completed checkpoints are complete, and the next driver resumes; retried faults are not noticed",
            partial(_every_fault, store),
            is_long=store in SERVERS,
        )
        for store in _MAIN_STORES
    ),
    *(
        Row(
            f"each request to a store fails in {len(LOSSES)} ways, {STORES[store]}: it or its answer is lost, or the driver dies",
            "faults",
            "lost requests and answers are not noticed, and after a death the next driver resumes; a sweep leaves no garbage",
            partial(_lost_requests, store),
            is_long=store in SERVERS,
        )
        for store in _STORES_WITH_REQUESTS
    ),
    Row(
        "two drivers, a sweep, a savepoint and a reader in a random order of calls",
        "calls",
        "no success is lost or doubled, no batch has rows of two drivers, a sweep leaves no garbage; a seed gives one order",
        _races,
    ),
    Row(
        "drivers, zombies, cleaners and sweeps in random orders",
        "tests",
        "no success is lost, and retained checkpoints are complete",
        partial(
            _tests,
            [
                "tests/locations/test_lifecycle_machine.py",
                "tests/locations/test_ownership_commits.py",
                "tests/locations/test_sweep_meanwhile.py",
            ],
        ),
    ),
    *(
        Row(
            f"bad bytes, {name}",
            "inputs",
            "values or Holdfast errors; no hang, limited memory",
            partial(_bad_bytes, name),
        )
        for name in READERS
    ),
    *(
        Row(
            f"random types, rows, batches and changes: {name}",
            "values compared",
            "they are those of a model in plain Python, on every backend and at any parallelism",
            partial(_values, name),
        )
        for name in SUBJECTS
    ),
    *(
        Row(
            f"random types, rows, batches and settings of the session, on Spark: {name}",
            "values compared",
            "they are those of Spark's own operators and of a model in plain Python",
            partial(_values_on_spark, name),
        )
        for name in SUBJECTS_ON_SPARK
    ),
    Row(
        "the comparison of values with a fault planted in Holdfast: a sum that wraps, a window a millisecond longer, …",
        "faults",
        "the comparison finds it",
        _planted_faults,
        is_long=True,
    ),
    *(
        Row(
            f"SIGKILL of drivers, JVMs, Python workers, daemons and executors, and drivers that are stopped and resume, {place}",
            "kills and stops",
            "output and all states are the expected ones, at any parallelism; a resumed zombie ends",
            partial(_real_processes, store),
            is_long=True,
            wanted=_LONG_KILLS,
        )
        for store, place in (
            ("local", STORES["local"]),
            ("s3", STORES["minio"]),
            ("hdfs", STORES["hdfs"]),
        )
    ),
    Row(
        "thousands of batches with keyed and operator state, three checkpoints retained",
        "batches",
        "memory, files, descriptors, `_metadata` and the CPU time of a batch do not grow; the states are the expected ones",
        _endurance,
        is_long=True,
    ),
    Row(
        "secrets planted in the settings of a query on S3 that runs, fails and is refused",
        "files, objects and outputs",
        "they are not in any of them",
        _planted_secrets,
        is_long=True,
    ),
    Row(
        "secrets in URIs and settings",
        "tests",
        "they are not in any error, log or output",
        partial(_tests, ["tests/test_redaction.py"]),
        is_long=True,
    ),
    *(
        Row(
            f"`kill -9` of the demo's jobs, of their executors and workers at random moments, {place}",
            "kills",
            "the output is that of a job without kills, or of a plain query",
            partial(_kills_of_demo, store),
            is_long=True,
        )
        for store, place in (("local", STORES["local"]), ("s3", STORES["minio"]))
    ),
]
