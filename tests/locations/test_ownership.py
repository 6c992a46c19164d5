"""The owner of a job: claims, races between them, and superseded checkpoints."""

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from contracts.checkpointed_jobs import job_in
from contracts.claims import begin_checkpoint, claims, commit, discard, overwrite_claim, owns, run
from contracts.errors import of_kind
from contracts.patience import HANGS_S
from contracts.processes import python

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    StorageUnavailableError,
)
from holdfast.locations import checkpoint_storage
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    JobOwnership,
    RetryPolicy,
    file_system_for,
)
from holdfast.testing import Faults, faulty_file_system

RACERS = 8


class TestClaims:
    def test_each_claim_has_the_next_number_and_fences_those_before(
        self, memory_directory: str
    ) -> None:
        access = job_in(memory_directory)
        owners = [access.claim_job() for _ in range(4)]
        assert [owner.epoch for owner in owners] == [1, 2, 3, 4]
        assert [owns(owner) for owner in owners] == [False, False, False, True]

    def test_fenced_driver_learns_both_numbers(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        older = access.claim_job()
        access.claim_job()
        access.claim_job()
        with pytest.raises(CheckpointConflictError, match="its epoch is 3, this driver's is 1"):
            older.check()

    def test_claims_of_one_job_do_not_affect_another(self, memory_directory: str) -> None:
        owner = job_in(memory_directory).claim_job()
        other = checkpoint_storage(memory_directory).create_checkpoint_storage("other")
        other.initialize_base_locations_for_checkpoint()
        assert other.claim_job().epoch == 1
        owner.check()

    def test_older_claims_are_forgotten_and_the_newest_stays(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        for epoch in range(1, 6):
            access.claim_job()
            assert claims(memory_directory) == {str(epoch)}

    def test_numbers_increase_after_older_claims_were_deleted(self, local_directory: str) -> None:
        access = job_in(local_directory)
        for _ in range(11):  # 10 sorts before 9 as text
            last = access.claim_job()
        assert last.epoch == 11
        assert job_in(local_directory).claim_job().epoch == 12
        assert claims(local_directory) == {"12"}

    def test_files_without_a_number_are_ignored_and_kept(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        access.claim_job()
        foreign = ("notes.txt", "-7", "1e9", "²", ".3.tmp")
        for name in foreign:
            uri = f"{memory_directory}/job/_epoch/{name}"
            stream = file_system_for(uri).create(uri)
            stream.commit()
        assert access.claim_job().epoch == 2
        assert claims(memory_directory) == {"2", *foreign}

    def test_claim_succeeds_although_older_ones_can_not_be_deleted(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        access.claim_job()
        faults.before("delete", StorageUnavailableError("as planned"))
        owner = access.claim_job()
        owner.check()
        assert claims(faults.inner_directory) == {"1", "2"}
        assert access.claim_job().epoch == 3
        assert claims(faults.inner_directory) == {"3"}

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"epoch": "x"}', b"\xff" * 100])
    def test_damaged_claim_is_reported_and_can_be_superseded(
        self, memory_directory: str, damage: bytes
    ) -> None:
        access = job_in(memory_directory)
        owner = access.claim_job()
        overwrite_claim(memory_directory, 1, damage)
        with pytest.raises(CheckpointCorruptedError, match="claim") as caught:
            owner.is_superseded(1, "token")
        assert caught.value.location == f"{memory_directory}/job/_epoch/1"
        assert access.claim_job().epoch == 2
        assert not owns(owner)

    def test_driver_of_a_deleted_and_restarted_job_is_not_its_owner(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        old = job_in(local_directory).claim_job()
        shutil.rmtree(tmp_path / "job")
        new = job_in(local_directory).claim_job()
        os.utime(
            tmp_path / "job" / "_epoch" / "1", (1, 1)
        )  # files of one millisecond have equal times
        assert new.epoch == old.epoch
        new.check()
        with pytest.raises(CheckpointConflictError, match="deleted"):
            old.check()

    def test_failed_claim_leaves_the_owner(self, faults: Faults) -> None:
        owner = job_in(faults.inner_directory).claim_job()
        faults.before("publish", StorageUnavailableError("as planned"), nth="every")
        access = checkpoint_storage(faults.directory).create_checkpoint_storage("job")
        with pytest.raises(StorageUnavailableError):
            access.claim_job()
        owner.check()


class TestRacingClaims:
    def test_one_of_eight_threads_owns_the_job(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        start = threading.Barrier(RACERS)

        def claim(_: int) -> JobOwnership:
            start.wait()
            return access.claim_job()

        with ThreadPoolExecutor(RACERS) as pool:
            owners = list(pool.map(claim, range(RACERS)))
        epochs = sorted(owner.epoch for owner in owners)
        assert len(set(epochs)) == RACERS
        assert [owner.epoch for owner in owners if owns(owner)] == epochs[-1:]
        assert str(epochs[-1]) in claims(memory_directory)

    def test_one_of_eight_processes_owns_the_job(self, local_directory: str) -> None:
        job_in(local_directory)
        source = """
import sys
from holdfast.errors import CheckpointConflictError
from holdfast.locations import checkpoint_storage
access = checkpoint_storage(sys.argv[1]).create_checkpoint_storage("job")
print("ready", flush=True)
sys.stdin.readline()
ownership = access.claim_job()
print(ownership.epoch, flush=True)
sys.stdin.readline()
try:
    ownership.check()
except CheckpointConflictError:
    print("lost")
else:
    print("owns")
"""
        racers = [python(source, local_directory) for _ in range(RACERS)]
        answers = [[line_of(racer) for racer in racers]]
        for _ in range(2):
            for racer in racers:
                with suppress(BrokenPipeError):  # it failed; its output is shown below
                    assert racer.stdin
                    racer.stdin.write("go\n")
                    racer.stdin.flush()
            answers.append([line_of(racer) for racer in racers])
        failed = [racer.communicate(timeout=HANGS_S)[1] for racer in racers]
        assert failed == [""] * RACERS
        ready, numbers, results = answers
        assert ready == ["ready"] * RACERS
        epochs = [int(number) for number in numbers]
        assert len(set(epochs)) == RACERS
        assert sorted(results) == ["lost"] * (RACERS - 1) + ["owns"]
        assert results.index("owns") == epochs.index(max(epochs))
        assert job_in(local_directory).claim_job().epoch == max(epochs) + 1

    def test_claim_is_never_lost_while_older_ones_are_deleted(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        access.claim_job()
        younger: list[JobOwnership] = []
        faults.before("delete", lambda: younger.append(job_in(faults.inner_directory).claim_job()))
        older = access.claim_job()
        assert (older.epoch, younger[0].epoch) == (2, 3)
        assert not owns(older)
        assert owns(younger[0])
        assert claims(faults.inner_directory) == {"3"}

    def test_claim_below_a_newer_one_is_tried_again(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        others: list[JobOwnership] = []
        faults.calls.clear()
        faults.before(
            "publish", lambda: others.append(job_in(faults.inner_directory).claim_job()), nth=1
        )
        owner = access.claim_job()
        assert (others[0].epoch, owner.epoch) == (1, 2)
        assert owns(owner)
        assert not owns(others[0])

    def test_claim_meeting_a_deleted_one_is_tried_again(self, faults: Faults) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        faults.calls.clear()

        def be_topped() -> None:
            other.claim_job()
            faults.before("open", other.claim_job)  # deletes the conflicting one

        faults.before("publish", be_topped, nth=1)
        owner = access.claim_job()
        owner.check()
        assert owner.epoch == 3

    def test_deleted_number_makes_no_driver_an_owner(self, faults: Faults) -> None:
        """Another driver has taken the number that this one is about to take, and a third one deleted it."""
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        others: list[JobOwnership] = []

        def claim_twice() -> None:
            others.extend((other.claim_job(), other.claim_job()))

        faults.calls.clear()
        faults.before("publish", claim_twice, nth=1)
        owner = access.claim_job()
        assert owner.epoch == 3
        assert [owns(candidate) for candidate in (*others, owner)] == [False, False, True]

    def test_claim_without_a_win_fails(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        other = job_in(faults.inner_directory)
        faults.before("publish", other.claim_job, nth="every")
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            access.claim_job()

    @pytest.mark.parametrize(
        "lose",
        [
            lambda faults: faults.lose_answer("publish"),
            lambda faults: faults.after("publish", CheckpointConflictError("as planned")),
        ],
        ids=["the answer was lost", "the store itself repeated it"],
    )
    def test_claim_with_a_lost_answer_counts_once(
        self, memory_directory: str, lose: Callable[[Faults], None]
    ) -> None:
        policy = RetryPolicy(deadline_s=HANGS_S, first_wait_s=1e-6, max_wait_s=1e-6)
        with faulty_file_system(memory_directory, retries=policy) as faults:
            access = job_in(faults.directory)
            lose(faults)
            owner = access.claim_job()
            assert owner.epoch == 1
            assert claims(faults.inner_directory) == {"1"}
            owner.check()

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_claim_knows_a_checkpoint_completed_during_it(
        self, faults: Faults, moment: str
    ) -> None:
        """The newer driver resumes from it, so no one may revoke it."""
        access = job_in(faults.directory)
        older = job_in(faults.inner_directory)
        ownership = older.claim_job()
        faults.calls.clear()

        def commit_concurrently() -> None:
            try:
                commit(begin_checkpoint(older, 1), ownership, 1)
            except CheckpointConflictError:
                assert moment == "after"

        getattr(faults, moment)("publish", commit_concurrently, nth=1)
        owner = access.claim_job()
        adopted = sorted(access.completed_checkpoints())
        assert adopted == [1]
        run(access, owner, 2, 3)
        assert not any(owner.is_superseded(number, "token") for number in adopted)


def line_of(racer: object) -> str:
    stdout = getattr(racer, "stdout")  # noqa: B009  # a Popen whose streams are pipes
    return str(stdout.readline()).strip()


class TestSuperseded:
    @pytest.fixture
    def access(self, memory_directory: str) -> CheckpointStorageAccess:
        return job_in(memory_directory)

    def test_job_without_checkpoints_supersedes_no_id(
        self, access: CheckpointStorageAccess
    ) -> None:
        owner = access.claim_job()
        assert not any(owner.is_superseded(number, "token") for number in range(4))

    def test_id_found_by_the_owner_is_not_superseded(self, access: CheckpointStorageAccess) -> None:
        run(access, access.claim_job(), 1, 2, 3)
        owner = access.claim_job()
        assert not any(owner.is_superseded(number, "token") for number in (1, 2, 3))

    def test_id_below_one_found_by_the_owner_is_superseded(
        self, access: CheckpointStorageAccess
    ) -> None:
        run(access, access.claim_job(), 1, 3)
        owner = access.claim_job()
        assert [owner.is_superseded(number, "token") for number in range(5)] == [
            True,
            False,
            True,
            False,
            False,
        ]

    def test_id_below_one_made_by_the_owner_is_superseded(
        self, access: CheckpointStorageAccess
    ) -> None:
        owner = access.claim_job()
        run(access, owner, 2)
        assert [owner.is_superseded(number, "token") for number in range(4)] == [
            True,
            True,
            False,
            False,
        ]

    def test_id_above_the_newest_is_not_superseded(self, access: CheckpointStorageAccess) -> None:
        run(access, access.claim_job(), 1, 2)
        assert not access.claim_job().is_superseded(3, "token")

    def test_cleaned_up_id_is_superseded(self, access: CheckpointStorageAccess) -> None:
        owner = access.claim_job()
        run(access, owner, 1, 2, 3)
        discard(access, 1)
        discard(access, 2)
        assert [owner.is_superseded(number, "token") for number in (1, 2, 3)] == [True, True, False]

    def test_newest_claim_decides_for_every_driver(self, access: CheckpointStorageAccess) -> None:
        oldest = access.claim_job()
        run(access, access.claim_job(), 1, 2, 3)
        discard(access, 1)
        access.claim_job()
        assert [oldest.is_superseded(number, "token") for number in (1, 2, 3, 4)] == [
            True,
            False,
            False,
            False,
        ]

    def test_id_stays_superseded_after_the_found_ones_were_cleaned_up(
        self, access: CheckpointStorageAccess
    ) -> None:
        run(access, access.claim_job(), 5)
        owner = access.claim_job()
        discard(access, 5)
        assert owner.is_superseded(4, "token")
