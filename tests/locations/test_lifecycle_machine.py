"""Drivers that begin, commit, fail, die and come back, and readers, in any order: no needed file is lost.

Each driver does what a coordinator does, with the public calls of `holdfast.locations`. The store
is `memory://` with faults, and a clock that the machine moves. The rules of the game:

- Time passes only while no driver writes: the grace period is longer than any checkpoint takes.
- A sweep without a grace period comes only then, too.
- Readers lease the newest checkpoint, renew the lease, end or are killed; no sweep without a grace period comes while they
  read.
- Files that a driver's cleaner has not deleted when its process dies stay, or some of them.
"""

import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import pytest
from contracts.files import files_below
from contracts.values import EXCLUSIVE, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    complete_checkpoint,
    load_checkpoint,
    sweep,
)
from holdfast.locations.adapters import (
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    FileStateHandle,
    JobOwnership,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    acquire_lease,
    load_latest_checkpoint,
)
from holdfast.locations.coordination.leases import LEASE_S, CheckpointLease
from holdfast.testing import (
    ANY_CALL,
    ManualClock,
    faulty_file_system,
    metadata_of,
)

GRACE = 3600.0

Event = Literal["nothing", "driver", "claim", "sweep", "clean", "commit"]
"""A change by others between the steps of a commit or a sweep."""

events = st.sampled_from(["nothing", "driver", "claim", "sweep", "clean", "commit"])
Moment = Literal["before", "after"]
moments = st.sampled_from(["before", "after"])
Fault = Literal["none", "before", "lost", "repeated"]
faulty = st.sampled_from(["none", "none", "none", "before", "lost", "repeated"])
scope_lists = st.sampled_from(
    [tuple(CheckpointedStateScope), (CheckpointedStateScope.SHARED,), (EXCLUSIVE,), ()]
)
reuses = st.sampled_from([9, 1, 0])
"""Maximum number of shared files to take over from the previous checkpoint."""


class QueueingCleaner(CheckpointsCleaner):
    """Queues deletions until the machine runs them, as a thread would some time later."""

    def __init__(self) -> None:
        super().__init__()
        self.close()  # no threads: deletions run at once
        self.queue: list[tuple[Callable[[], object], str]] = []

    def run(self, delete: Callable[[], object], name: str) -> None:
        self.queue.append((delete, name))

    def work(self, count: int | None = None) -> None:
        """Run the first ones, or all."""
        for _ in range(len(self.queue) if count is None else min(count, len(self.queue))):
            super().run(*self.queue.pop(0))

    def cut_short(self, done: Sequence[bool]) -> None:
        """End the process; some of its queued deletions were done."""
        queue, self.queue = self.queue, []
        for (delete, _), is_done in zip(queue, done, strict=False):
            if is_done:
                delete()


@dataclass
class Pending:
    checkpoint_id: int
    location: CheckpointStorageLocation
    base: str
    """Token of the checkpoint that it resumes from."""
    streams: list[FileStateHandle] = field(default_factory=list)
    written: list[FileStateHandle] = field(default_factory=list)
    """The streams written for this checkpoint."""


@dataclass(eq=False)
class Driver:
    access: CheckpointStorageAccess
    cleaner: QueueingCleaner
    num_retained: int
    ownership: JobOwnership
    store: CompletedCheckpointStore
    """Ids of the checkpoints that it found when it started."""
    pending: Pending | None = None

    def __repr__(self) -> str:
        return f"driver {self.ownership.epoch}"


@dataclass(eq=False)
class Reader:
    checkpoint: CompletedCheckpoint
    lease: CheckpointLease
    end_ms: int
    """The lease counts before this time."""


class LifecycleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.block = ExitStack()
        self.clock = ManualClock(tick_ms=1)
        register_file_system("memory", lambda: MemoryFileSystem(self.clock))
        self.block.callback(unregister_file_system, "memory")
        root = f"memory:///{uuid.uuid4().hex}"
        file_system_for(root).prepare_directory(root)
        self.block.callback(file_system_for(root).delete_tree, root)
        self.faults = self.block.enter_context(faulty_file_system(root))
        self.drivers: list[Driver] = []
        self.readers: list[Reader] = []
        self.owner: Driver | None = None
        """The driver that claimed the job last; it counts although it may be dead."""
        self.contents: dict[str, bytes] = {}
        """The written bytes, by URI."""
        self.succeeded: dict[int, str] = {}
        """Token of each checkpoint that a driver resumes from, by id."""
        self.head = ""
        """Token of the last of them."""
        self.forks: set[str] = set()
        """Tokens of late commits of superseded ids that no driver revoked."""

    # Drivers

    def start(self, num_retained: int, survives: Sequence[bool] = ()) -> Driver:
        # The cleaners of earlier drivers have been interrupted, each deletion done or not. Their later
        # deletions are not tested here: nothing fences them.
        for driver in self.drivers:
            driver.cleaner.cut_short(survives)
        storage = FileSystemCheckpointStorage(self.faults.directory, inline_threshold=0)
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        ownership = access.claim_job()
        checkpoints = [
            load_checkpoint(location) for location in access.completed_checkpoints().values()
        ]
        self.check_lineage(checkpoints)
        latest = load_latest_checkpoint(access)
        assert (latest and latest.checkpoint_id) == (
            checkpoints[-1].checkpoint_id if checkpoints else None
        )
        cleaner = QueueingCleaner()
        store = CompletedCheckpointStore(num_retained, cleaner, checkpoints)
        driver = Driver(access, cleaner, num_retained, ownership, store)
        assert all(ownership.epoch > other.ownership.epoch for other in self.drivers)
        self.drivers.append(driver)
        self.owner = driver
        return driver

    def check_lineage(self, checkpoints: list[CompletedCheckpoint]) -> None:
        """Check that a driver that starts resumes from the latest success, or from an unknown one."""
        if not checkpoints:
            assert not self.succeeded, "all checkpoints are gone"
            return
        last = checkpoints[-1]
        token = last.metadata.commit_token
        if token != self.head:
            assert last.checkpoint_id > max(self.succeeded, default=0), "went backwards"
            assert last.metadata.coordinator_states["base"].decode() == self.head
            self.note_success(last.checkpoint_id, token)
        for checkpoint in checkpoints[:-1]:
            token = checkpoint.metadata.commit_token
            if self.succeeded.setdefault(checkpoint.checkpoint_id, token) != token:
                # The driver never learned that it was late, as the answer got lost. It is older
                # than the checkpoint that the job resumes from.
                assert token in self.forks
        for checkpoint in checkpoints:
            self.verify(checkpoint)

    def note_success(self, checkpoint_id: int, token: str) -> None:
        assert checkpoint_id not in self.succeeded, "an id was used twice"
        self.succeeded[checkpoint_id] = token
        self.head = token

    def begin(self, driver: Driver) -> None:
        try:
            driver.ownership.check()
        except CheckpointConflictError:
            assert driver is not self.owner
            return
        latest = driver.store.latest
        checkpoint_id = latest.checkpoint_id + 1 if latest else 1
        driver.pending = Pending(
            checkpoint_id,
            driver.access.initialize_location_for_checkpoint(checkpoint_id),
            latest.metadata.commit_token if latest else "",
        )

    def write(self, driver: Driver, scopes: Iterable[CheckpointedStateScope], reused: int) -> None:
        """Write new files, and take over shared ones of the previous checkpoint."""
        assert driver.pending
        for scope in scopes:
            data = uuid.uuid4().bytes
            try:
                with driver.pending.location.create_checkpoint_state_output_stream(scope) as stream:
                    stream.write(data)
                    handle = stream.close_and_get_handle()
            except CheckpointNotFoundError:
                # Another driver that failed has removed the directory: the batch fails.
                driver.pending = None
                return
            assert isinstance(handle, FileStateHandle)
            assert handle.uri not in self.contents
            self.contents[handle.uri] = data
            driver.pending.streams.append(handle)
            driver.pending.written.append(handle)
        latest = driver.store.latest
        shared = [] if latest is None else shared_streams(latest)
        known = {held.uri for held in driver.pending.streams}
        driver.pending.streams += [
            shared_stream for shared_stream in shared[:reused] if shared_stream.uri not in known
        ]

    def plan(
        self, driver: Driver, pending: Pending, fault: Fault, event: Event, moment: Moment
    ) -> None:
        """Plan the event and the fault around the publication of its metadata."""
        faults = self.faults
        faults.calls.clear()

        def happen() -> None:
            self.happen(event, but=driver)
            # As on a store without directories, where a file needs none.
            file_system_for(faults.inner_directory).prepare_directory(
                pending.location.external_pointer.replace(faults.directory, faults.inner_directory)
            )

        # In their order: the event, then the fault.
        if event != "nothing":
            plan = faults.before if moment == "before" else faults.after
            plan("publish", happen, nth=1)
        if fault == "before":
            faults.before("publish", StorageUnavailableError("as planned"))
        elif fault == "lost":
            faults.lose_answer("publish")
        elif fault == "repeated":  # by a proxy, whose first attempt took effect
            faults.after("publish", CheckpointConflictError("as planned"))

    def commit(
        self,
        driver: Driver,
        fault: Fault = "none",
        event: Event = "nothing",
        moment: Moment = "before",
    ) -> None:
        pending = driver.pending
        assert pending
        token = uuid.uuid4().hex
        metadata = metadata_of(
            *pending.streams, checkpoint_id=pending.checkpoint_id, commit_token=token
        )
        states = {"base": pending.base.encode()}
        metadata = msgspec.structs.replace(metadata, coordinator_states=states)
        self.plan(driver, pending, fault, event, moment)
        driver.pending = None
        try:
            completed = complete_checkpoint(pending.location, metadata, driver.ownership)
        except CheckpointConflictError:
            self.after_conflict(driver, pending, token)
        except CheckpointNotFoundError:
            # The directory is gone: the job has passed this id, and cleaned up; or a driver
            # that failed there has removed it, as nothing was in it.
            assert driver is not self.owner or not any(
                stream.uri.startswith(f"{pending.location.external_pointer}/")
                for stream in pending.streams
            )
            pending.location.dispose_on_failure()
        except StorageUnavailableError:
            assert fault == "before"
            pending.location.dispose_on_failure()
        except OutcomeUnknownError:
            assert fault == "lost"
            if driver is not self.owner:
                self.forks.add(token)
            self.forget(driver)  # it stops, and deletes nothing
        else:
            assert driver is self.owner
            assert pending.base == self.head, "its state lacks what others have committed"
            self.note_success(pending.checkpoint_id, token)
            expected_ids = [checkpoint.checkpoint_id for checkpoint in driver.store.checkpoints]
            expected_ids.append(pending.checkpoint_id)
            driver.store.add(completed, has_readers=driver.ownership.has_readers)
            kept = [checkpoint.checkpoint_id for checkpoint in driver.store.checkpoints]
            assert kept == expected_ids[-driver.num_retained :]
        finally:
            self.faults.clear()

    def after_conflict(self, driver: Driver, pending: Pending, token: str) -> None:
        """Check the cleanup of an attempt after another driver took the job or the id."""
        stored_token = self.token_of(pending.checkpoint_id)
        assert driver is not self.owner or (stored_token and stored_token != token)
        if stored_token == token:  # too late, but the job may resume from it
            expected = self.succeeded.get(pending.checkpoint_id, token)
            assert expected == token, "came back, though superseded"
        pending.location.dispose_on_failure()
        if stored_token is not None:
            assert self.token_of(pending.checkpoint_id) == stored_token

    def token_of(self, checkpoint_id: int) -> str | None:
        """Return the commit token of the completed checkpoint with that id, or None."""
        assert self.owner
        location = self.owner.access.completed_checkpoints().get(checkpoint_id)
        return load_checkpoint(location).metadata.commit_token if location else None

    def forget(self, driver: Driver) -> None:
        """End a driver as if its process was gone."""
        if driver in self.drivers:
            self.drivers.remove(driver)

    def batch(self, driver: Driver, scopes: Iterable[CheckpointedStateScope], reused: int) -> None:
        if driver.pending is None:
            self.begin(driver)
        if driver.pending is not None:
            self.write(driver, scopes, reused)
        if driver.pending is not None:
            self.commit(driver)

    def happen(self, event: Event, *, but: Driver | None = None) -> None:
        """Let others change the job, except for one driver."""
        directory = self.faults.directory
        if event == "claim":
            self.start(2)
        elif event == "driver":
            driver = self.start(1)
            for _ in range(3):
                self.batch(driver, CheckpointedStateScope, 9)
                driver.cleaner.work()
        elif event == "sweep":
            sweep(directory, "job", grace_s=GRACE)
        elif event == "clean":
            for driver in self.drivers:
                driver.cleaner.work(1)
        elif event == "commit" and self.owner in self.drivers and self.owner is not but:
            assert self.owner
            self.batch(self.owner, CheckpointedStateScope, 9)
            self.owner.cleaner.work()

    # Rules

    @initialize(num_retained=st.integers(1, 3))
    def first(self, num_retained: int) -> None:
        self.start(num_retained)

    @precondition(lambda self: len(self.drivers) < 4)
    @rule(num_retained=st.integers(1, 3), survives=st.lists(st.booleans(), max_size=6))
    def a_driver_starts(self, num_retained: int, survives: list[bool]) -> None:
        self.start(num_retained, survives)

    @precondition(lambda self: any(driver.pending is None for driver in self.drivers))
    @rule(data=st.data())
    def a_driver_begins(self, data: st.DataObject) -> None:
        self.begin(
            data.draw(st.sampled_from([driver for driver in self.drivers if not driver.pending]))
        )

    @precondition(lambda self: any(driver.pending for driver in self.drivers))
    @rule(
        data=st.data(),
        scopes=scope_lists,
        reused=reuses,
    )
    def a_driver_writes(
        self, data: st.DataObject, scopes: tuple[CheckpointedStateScope, ...], reused: int
    ) -> None:
        self.write(self.pending_driver(data), scopes, reused)

    @precondition(lambda self: any(driver.pending for driver in self.drivers))
    @rule(data=st.data(), fault=faulty, event=events, moment=moments)
    def a_driver_commits(
        self, data: st.DataObject, fault: Fault, event: Event, moment: Moment
    ) -> None:
        self.commit(self.pending_driver(data), fault, event, moment)

    @precondition(lambda self: self.owner in self.drivers)
    @rule(fault=faulty, event=events, moment=moments)
    def the_owner_runs_an_eventful_batch(self, fault: Fault, event: Event, moment: Moment) -> None:
        owner = self.owner
        assert owner
        if owner.pending is None:
            self.begin(owner)
        self.write(owner, CheckpointedStateScope, 9)
        if owner.pending is not None:
            self.commit(owner, fault, event, moment)

    @precondition(lambda self: self.owner in self.drivers)
    @rule(scopes=scope_lists, reused=reuses, count=st.integers(1, 3))
    def the_owner_runs_batches(
        self, scopes: tuple[CheckpointedStateScope, ...], reused: int, count: int
    ) -> None:
        assert self.owner
        for _ in range(count):
            self.batch(self.owner, scopes, reused)

    @precondition(lambda self: any(driver.pending for driver in self.drivers))
    @rule(data=st.data())
    def a_driver_fails_and_cleans_up(self, data: st.DataObject) -> None:
        driver = self.pending_driver(data)
        assert driver.pending
        driver.pending.location.dispose_on_failure()
        for handle in driver.pending.written:
            with pytest.raises(CheckpointNotFoundError):
                read(handle)
        driver.pending = None

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), survives=st.lists(st.booleans(), max_size=6))
    def a_driver_dies(self, data: st.DataObject, survives: list[bool]) -> None:
        driver = data.draw(st.sampled_from(self.drivers))
        driver.cleaner.cut_short(survives)
        self.forget(driver)

    @precondition(lambda self: self.owner in self.drivers)
    @rule()
    def the_job_ends(self) -> None:
        """The retained checkpoints stay."""
        assert self.owner
        retained = self.owner.store.checkpoints
        self.owner.cleaner.work()
        self.forget(self.owner)
        for checkpoint in retained:
            self.verify(checkpoint)

    @rule(count=st.integers(1, 3))
    def cleaners_work(self, count: int) -> None:
        # Only the owner's: those of older ones are cut short when it starts.
        if self.owner in self.drivers:
            assert self.owner
            self.owner.cleaner.work(count)

    @precondition(lambda self: not any(driver.pending for driver in self.drivers))
    @rule(hours=st.sampled_from([0.5, 2, 30]))
    def time_passes(self, hours: float) -> None:
        self.clock.advance(hours * 3600)

    @rule(dry_run=st.booleans())
    def sweep_at_any_time(self, *, dry_run: bool) -> None:
        sweep(self.faults.directory, "job", grace_s=GRACE, dry_run=dry_run)

    # Readers

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def a_reader_begins(self) -> None:
        assert self.owner
        latest = load_latest_checkpoint(self.owner.access)
        if latest is not None:
            end_ms = self.clock.now_ms() + LEASE_S * 1000
            lease = acquire_lease(latest.location.external_pointer)
            assert lease is not None
            self.readers.append(Reader(latest, lease, end_ms))

    @precondition(lambda self: self.owner in self.drivers and len(self.readers) < 3)
    @rule(count=st.integers(1, 4))
    def the_owner_runs_batches_under_a_reader(self, count: int) -> None:
        self.a_reader_begins()
        assert self.owner
        for _ in range(count):
            self.batch(self.owner, CheckpointedStateScope, 1)
            self.owner.cleaner.work()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def a_reader_renews_its_lease(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        end_ms = self.clock.now_ms() + LEASE_S * 1000
        if self.clock.now_ms() < reader.end_ms:
            reader.lease.renew()
            reader.end_ms = end_ms

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), is_killed=st.booleans())
    def a_reader_ends(self, data: st.DataObject, *, is_killed: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        if not is_killed:
            reader.lease.release()

    @invariant()
    def leased_checkpoints_are_complete(self) -> None:
        now_ms = self.clock.now_ms()
        for reader in self.readers:
            if now_ms < reader.end_ms:
                self.verify(reader.checkpoint)

    # Sweeps

    @precondition(
        lambda self: not self.readers and not any(driver.pending for driver in self.drivers)
    )
    @rule()
    def sweep_all_without_writers(self) -> None:
        sweep(self.faults.directory, "job", grace_s=0)

    @rule(number=st.integers(1, 25), event=events)
    def sweep_while_others_act(self, number: int, event: Event) -> None:
        if not any(driver.pending for driver in self.drivers):
            self.clock.advance(2 * GRACE)  # so that all files are old
        self.faults.calls.clear()
        self.faults.before(ANY_CALL, lambda: self.happen(event), nth=number)
        try:
            sweep(self.faults.directory, "job", grace_s=GRACE)
        except CheckpointConflictError:
            assert event in ("driver", "claim")
        finally:
            self.faults.clear()

    @rule(number=st.integers(1, 40), lands=st.booleans())
    def sweep_while_the_store_fails(self, number: int, *, lands: bool) -> None:
        self.faults.calls.clear()
        plan = self.faults.after if lands else self.faults.before
        plan(ANY_CALL, StorageUnavailableError("as planned"), nth=number)
        try:
            sweep(self.faults.directory, "job", grace_s=GRACE)
        except (StorageUnavailableError, OutcomeUnknownError):
            pass
        finally:
            self.faults.clear()

    # Invariants

    @invariant()
    def retained_checkpoints_are_complete(self) -> None:
        if self.owner is None:
            return
        for checkpoint in self.owner.store.checkpoints:
            self.verify(checkpoint)

    @invariant()
    def latest_is_the_last_success_or_an_unknown_one(self) -> None:
        if self.owner is None or not self.succeeded:
            return
        latest = load_latest_checkpoint(self.owner.access)
        assert latest is not None
        assert latest.checkpoint_id >= max(self.succeeded)

    def verify(self, checkpoint: CompletedCheckpoint) -> None:
        """Check that a checkpoint is found in its place, and that every byte is as written."""
        if checkpoint.metadata.commit_token in self.forks - {self.head}:
            return
        loaded = load_checkpoint(checkpoint.location)
        assert loaded.metadata == checkpoint.metadata
        for stream in loaded.metadata.streams():
            assert isinstance(stream, FileStateHandle)
            assert read(stream) == self.contents[stream.uri]

    def pending_driver(self, data: st.DataObject) -> Driver:
        return data.draw(st.sampled_from([driver for driver in self.drivers if driver.pending]))

    def teardown(self) -> None:
        """After all writers: a driver resumes once more, and a sweep leaves its retained checkpoints."""
        try:
            if self.owner is not None and sys.exc_info()[0] is None:
                self.faults.clear()
                self.end()
        finally:
            self.block.close()

    def end(self) -> None:
        self.readers.clear()
        self.clock.advance(LEASE_S)
        last = self.start(2)
        for _ in range(2):
            self.batch(last, CheckpointedStateScope, 1)
        last.cleaner.work()
        sweep(self.faults.directory, "job", grace_s=0)
        kept = last.store.checkpoints
        assert sorted(last.access.completed_checkpoints()) == [
            checkpoint.checkpoint_id for checkpoint in kept
        ]
        expected = {f"{self.faults.directory}/job/_epoch/{last.ownership.epoch}"}
        for checkpoint in kept:
            self.verify(checkpoint)
            expected.add(f"{checkpoint.location.external_pointer}/{METADATA_FILE}")
            expected |= {
                stream.uri
                for stream in checkpoint.metadata.streams()
                if isinstance(stream, FileStateHandle)
            }
        assert files_below(self.faults.directory) == expected


def shared_streams(checkpoint: CompletedCheckpoint) -> list[FileStateHandle]:
    return [
        stream
        for stream in checkpoint.metadata.streams()
        if isinstance(stream, FileStateHandle) and "/shared/" in stream.uri
    ]


TestLifecycle = LifecycleMachine.TestCase
TestLifecycle.settings = settings(stateful_step_count=30)
