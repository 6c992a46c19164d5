"""Jobs that claim each other's checkpoints and savepoints, die, come back and are swept, in any order.

Each driver is a coordinator without tasks, and states are arbitrary bytes. Two rules hold all the time:

- a checkpoint with a `_metadata` file has all its files: no referenced file is ever deleted;
- in the end, when all jobs that can were resumed and all were swept, every file is referenced.
"""

import sys
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from contracts.files import files_below
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from jobs.coordinator import coordinator
from jobs.segments import Backend, Change, add_segment, change_nothing, run_batch

from holdfast.errors import (
    BatchGapError,
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations import CompletedCheckpoint, copy_checkpoint, load_checkpoint, sweep
from holdfast.locations.adapters import (
    METADATA_FILE,
    FileStateHandle,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import CLAIMED, CheckpointsCleaner, load_checkpoints
from holdfast.locations.storages import JobDirectory, resolve_pointer
from holdfast.spark.query import CheckpointCoordinator
from holdfast.testing import ANY_CALL, ManualClock, faulty_file_system

JOBS = ("a", "b", "c")


class Death(BaseException):
    """No handler in the code under test may run."""


def merge_or_add(_: int, backend: Backend) -> None:
    merged = b"".join(backend.segments.values())
    backend.segments.clear()
    backend.add(merged or b"none")


changes = st.sampled_from(
    [add_segment(b"rows"), add_segment(b"more"), merge_or_add, change_nothing]
)
jobs = st.sampled_from(JOBS)


@dataclass(frozen=True)
class Disturbance:
    """An event at a call to the store."""

    kind: Literal["none", "dies", "claims", "runs", "sweeps"]
    moment: Literal["before", "after"]
    call: int
    job: str


disturbances = st.builds(
    Disturbance,
    kind=st.sampled_from(["none", "none", "dies", "claims", "runs", "sweeps"]),
    moment=st.sampled_from(["before", "after"]),
    call=st.integers(1, 60),
    job=jobs,
)


class ClaimsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.block = ExitStack()
        clock = ManualClock(tick_ms=1)
        register_file_system("memory", lambda: MemoryFileSystem(clock))
        self.block.callback(unregister_file_system, "memory")
        root = f"memory:///{uuid.uuid4().hex}"
        file_system_for(root).prepare_directory(root)
        self.faults = self.block.enter_context(faulty_file_system(root))
        self.root = self.faults.directory
        self.cleaner = CheckpointsCleaner()
        self.cleaner.close()  # so it runs its tasks at once
        self.drivers: list[CheckpointCoordinator] = []
        self.savepoints = 0

    @rule(
        job=jobs,
        claims=st.booleans(),
        start=st.integers(0, 9),
        num_retained=st.integers(1, 2),
        change=changes,
        disturbance=disturbances,
    )
    def start_driver(
        self,
        *,
        job: str,
        claims: bool,
        start: int,
        num_retained: int,
        change: Change,
        disturbance: Disturbance,
    ) -> None:
        """Start a driver of a job, and run a batch."""
        driver = self.driver(job, start, claims=claims, num_retained=num_retained)
        self.drivers.append(driver)
        self.run_disturbed(driver, job, change, disturbance)

    @rule(number=st.integers(0, 9), change=changes, disturbance=disturbances)
    def resume_driver(self, number: int, change: Change, disturbance: Disturbance) -> None:
        """Run a batch of a driver; others may have taken its job in the meantime."""
        if self.drivers:
            driver = self.drivers[number % len(self.drivers)]
            latest = driver.latest
            if latest is not None:
                self.run_disturbed(driver, latest.metadata.job_id, change, disturbance)

    @rule(job=jobs)
    def copy_newest(self, job: str) -> None:
        checkpoints = self.checkpoints(job)
        if checkpoints:
            copy_checkpoint(checkpoints[-1], f"{self.root}/savepoints")

    @rule(job=jobs)
    def sweep_job(self, job: str) -> None:
        if self.exists(job):
            sweep(self.root, job, grace_s=0)

    @invariant()
    def every_checkpoint_has_all_its_files(self) -> None:
        there = files_below(self.root)
        for checkpoint in self.all_checkpoints(there):
            assert streams_of(checkpoint) <= there, checkpoint.location.external_pointer

    def driver(
        self, job: str, start: int, *, claims: bool, num_retained: int
    ) -> CheckpointCoordinator:
        candidates = [
            checkpoint.location.external_pointer
            for checkpoint in self.all_checkpoints(files_below(self.root))
            if f"/{job}/chk-" not in checkpoint.location.external_pointer
        ]
        return coordinator(
            self.root,
            job_id=job,
            start=candidates[start % len(candidates)] if candidates else None,
            claims_start=claims,
            num_retained=num_retained,
            cleaner=self.cleaner,
            allow_non_restored_state=True,
        )

    def run_disturbed(
        self, driver: CheckpointCoordinator, job: str, change: Change, disturbance: Disturbance
    ) -> None:
        def disturb() -> None:
            if disturbance.kind == "dies":
                raise Death
            if disturbance.kind == "sweeps":
                self.sweep_idle(disturbance.job, running=job)
                return
            other = self.driver(
                disturbance.job, 0, claims=disturbance.kind == "claims", num_retained=1
            )
            self.drivers.append(other)
            self.run(other, disturbance.job, merge_or_add)

        self.faults.calls.clear()
        if disturbance.kind != "none":
            plan = self.faults.before if disturbance.moment == "before" else self.faults.after
            plan(ANY_CALL, disturb, nth=disturbance.call)
        try:
            self.run(driver, job, change)
        except Death:
            self.drivers.remove(driver)
        finally:
            self.faults.clear()

    def sweep_idle(self, job: str, *, running: str) -> None:
        """Sweep a job that is not writing: in reality the grace period exceeds the duration of any checkpoint."""
        if job != running and self.exists(job):
            with suppress(CheckpointConflictError):
                sweep(self.root, job, grace_s=0)

    def run(self, driver: CheckpointCoordinator, job: str, change: Change) -> None:
        """Run the batch after the job's newest checkpoint, unless it is refused."""
        checkpoints = self.checkpoints(job)
        with suppress(
            CheckpointConflictError,  # another driver owns the job, or has claimed the start
            CheckpointNotFoundError,  # the start, or its directory, was deleted
            InvalidRequestError,  # the start can't be claimed
            BatchGapError,  # the driver has lost its job
        ):
            run_batch(driver, checkpoints[-1].checkpoint_id if checkpoints else 0, change)

    def checkpoints(self, job: str) -> list[CompletedCheckpoint]:
        return load_checkpoints(JobDirectory(f"{self.root}/{job}", single_writer=False))

    def exists(self, job: str) -> bool:
        return bool(list(file_system_for(self.root).list(f"{self.root}/{job}")))

    def all_checkpoints(self, there: set[str]) -> list[CompletedCheckpoint]:
        return [
            load_checkpoint(resolve_pointer(uri))
            for uri in sorted(there)
            if uri.endswith(f"/{METADATA_FILE}")
        ]

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.end()
        finally:
            self.block.close()

    def end(self) -> None:
        """Resume all jobs that can be, merge their states, and sweep all jobs."""
        for job in JOBS:
            driver = coordinator(self.root, job_id=job, num_retained=1, cleaner=self.cleaner)
            for _ in range(3):
                self.run(driver, job, merge_or_add)
        for job in JOBS:
            sweep(self.root, job, grace_s=0)
        there = files_below(self.root)
        checkpoints = self.all_checkpoints(there)
        expected = {uri for checkpoint in checkpoints for uri in streams_of(checkpoint)}
        expected |= {f"{each.location.external_pointer}/{METADATA_FILE}" for each in checkpoints}
        claimed = {uri for uri in there if uri.endswith(f"/{CLAIMED}")}
        assert {uri for uri in there if "/_epoch/" not in uri} - claimed == expected
        assert {uri.replace(CLAIMED, METADATA_FILE) for uri in claimed} <= expected
        for checkpoint in checkpoints:
            assert checkpoint.metadata.claimed == ()


def streams_of(checkpoint: CompletedCheckpoint) -> set[str]:
    return {
        stream.uri
        for stream in checkpoint.metadata.streams()
        if isinstance(stream, FileStateHandle)
    }


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(stateful_step_count=12)
