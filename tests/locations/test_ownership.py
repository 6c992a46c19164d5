"""Who owns a job: claims, and commits by drivers that were thought dead."""

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from contracts.errors import of_kind
from contracts.patience import HANGS_S
from contracts.processes import python
from contracts.values import EXCLUSIVE

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    JobOwnership,
    checkpoint_storage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import METADATA_FILE, LocalFileSystem, RetryPolicy, file_system_for
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.testing import Faults, faulty_file_system, metadata_of

RACERS = 8


def job_in(directory: str) -> CheckpointStorageAccess:
    access = checkpoint_storage(directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return access


def begun(access: CheckpointStorageAccess, checkpoint_id: int) -> CheckpointStorageLocation:
    return access.initialize_location_for_checkpoint(checkpoint_id)


def commit(
    location: CheckpointStorageLocation,
    ownership: JobOwnership | None,
    checkpoint_id: int,
    token: str = "token",
) -> CompletedCheckpoint:
    """Complete a checkpoint with one file."""
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(30_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    metadata = metadata_of(handle, checkpoint_id=checkpoint_id, commit_token=token)
    return complete_checkpoint(location, metadata, ownership)


def run(access: CheckpointStorageAccess, ownership: JobOwnership, *checkpoint_ids: int) -> None:
    for checkpoint_id in checkpoint_ids:
        commit(begun(access, checkpoint_id), ownership, checkpoint_id)


def discard(access: CheckpointStorageAccess, checkpoint_id: int) -> None:
    load_checkpoint(access.completed_checkpoints()[checkpoint_id]).discard()


def claims(directory: str) -> set[str]:
    uri = f"{directory}/job/_epoch"
    return {entry.uri.removeprefix(f"{uri}/") for entry in file_system_for(uri).list(uri)}


def files_of(directory: str, checkpoint_id: int) -> set[str]:
    uri = f"{directory}/job/chk-{checkpoint_id}"
    return {entry.uri.removeprefix(f"{uri}/") for entry in file_system_for(uri).list(uri)}


def overwrite_claim(directory: str, epoch: int, data: bytes) -> None:
    uri = f"{directory}/job/_epoch/{epoch}"
    file_system = file_system_for(uri)
    file_system.delete([uri])
    stream = file_system.create(uri)
    stream.write(data)
    stream.commit()


def owns(ownership: JobOwnership) -> bool:
    try:
        ownership.check()
    except CheckpointConflictError:
        return False
    return True


class TestClaims:
    def test_each_claim_has_the_next_number_and_fences_those_before(
        self, memory_directory: str
    ) -> None:
        access = job_in(memory_directory)
        owners = [access.claim_job() for _ in range(4)]
        assert [one.epoch for one in owners] == [1, 2, 3, 4]
        assert [owns(one) for one in owners] == [False, False, False, True]

    def test_a_fenced_driver_learns_both_numbers(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        older = access.claim_job()
        access.claim_job()
        access.claim_job()
        with pytest.raises(CheckpointConflictError, match="its epoch is 3, this driver's is 1"):
            older.check()

    def test_claims_of_one_job_are_nothing_to_another(self, memory_directory: str) -> None:
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

    def test_numbers_go_on_after_older_claims_are_forgotten_in_another_process_too(
        self, local_directory: str
    ) -> None:
        access = job_in(local_directory)
        for _ in range(11):  # 10 sorts before 9 as text
            last = access.claim_job()
        assert last.epoch == 11
        assert job_in(local_directory).claim_job().epoch == 12
        assert claims(local_directory) == {"12"}

    def test_what_is_no_number_beside_the_claims_is_ignored_and_left_alone(
        self, memory_directory: str
    ) -> None:
        access = job_in(memory_directory)
        access.claim_job()
        foreign = ("notes.txt", "-7", "1e9", "²", ".3.tmp")
        for name in foreign:
            uri = f"{memory_directory}/job/_epoch/{name}"
            stream = file_system_for(uri).create(uri)
            stream.commit()
        assert access.claim_job().epoch == 2
        assert claims(memory_directory) == {"2", *foreign}

    def test_a_claim_is_possible_when_older_ones_cannot_be_forgotten(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        access.claim_job()
        faults.before("delete", StorageUnavailableError("as planned"))
        owner = access.claim_job()
        owner.check()
        assert claims(faults.behind) == {"1", "2"}
        assert access.claim_job().epoch == 3
        assert claims(faults.behind) == {"3"}

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"epoch": "x"}', b"\xff" * 100])
    def test_a_damaged_claim_is_named_and_can_be_topped(
        self, memory_directory: str, damage: bytes
    ) -> None:
        access = job_in(memory_directory)
        owner = access.claim_job()
        overwrite_claim(memory_directory, 1, damage)
        with pytest.raises(CheckpointCorruptedError, match="claim") as caught:
            owner.is_past(1, "token")
        assert caught.value.location == f"{memory_directory}/job/_epoch/1"
        assert access.claim_job().epoch == 2
        assert not owns(owner)

    def test_a_driver_whose_job_was_deleted_and_begun_again_is_not_its_owner(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        old = job_in(local_directory).claim_job()
        shutil.rmtree(tmp_path / "job")
        new = job_in(local_directory).claim_job()
        os.utime(tmp_path / "job" / "_epoch" / "1", (1, 1))  # files of one millisecond look alike
        assert new.epoch == old.epoch
        new.check()
        with pytest.raises(CheckpointConflictError, match="deleted"):
            old.check()

    def test_a_store_that_fails_fails_the_claim_and_leaves_the_owner_in_place(
        self, faults: Faults
    ) -> None:
        owner = job_in(faults.behind).claim_job()
        faults.before("publish", StorageUnavailableError("as planned"), nth="every")
        access = checkpoint_storage(faults.directory).create_checkpoint_storage("job")
        with pytest.raises(StorageUnavailableError):
            access.claim_job()
        owner.check()


class TestClaimsThatRace:
    def test_of_eight_threads_one_owns_the_job_in_the_end(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        start = threading.Barrier(RACERS)

        def claim(_: int) -> JobOwnership:
            start.wait()
            return access.claim_job()

        with ThreadPoolExecutor(RACERS) as pool:
            owners = list(pool.map(claim, range(RACERS)))
        epochs = sorted(one.epoch for one in owners)
        assert len(set(epochs)) == RACERS
        assert [one.epoch for one in owners if owns(one)] == epochs[-1:]
        assert str(epochs[-1]) in claims(memory_directory)

    def test_of_eight_processes_one_owns_the_job_in_the_end(self, local_directory: str) -> None:
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
                with suppress(BrokenPipeError):  # it failed; what it said comes below
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

    def test_a_claim_is_never_lost_while_another_one_forgets_older_ones(
        self, faults: Faults
    ) -> None:
        access = job_in(faults.directory)
        access.claim_job()
        younger: list[JobOwnership] = []
        faults.before("delete", lambda: younger.append(job_in(faults.behind).claim_job()))
        older = access.claim_job()
        assert (older.epoch, younger[0].epoch) == (2, 3)
        assert not owns(older)
        assert owns(younger[0])
        assert claims(faults.behind) == {"3"}

    def test_a_claim_that_is_topped_before_it_is_published_tries_again(
        self, faults: Faults
    ) -> None:
        access = job_in(faults.directory)
        others: list[JobOwnership] = []
        faults.calls.clear()
        faults.before("publish", lambda: others.append(job_in(faults.behind).claim_job()), nth=1)
        owner = access.claim_job()
        assert (others[0].epoch, owner.epoch) == (1, 2)
        assert owns(owner)
        assert not owns(others[0])

    def test_a_claim_that_meets_one_that_is_forgotten_right_then_tries_again(
        self, faults: Faults
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        faults.calls.clear()

        def be_topped() -> None:
            other.claim_job()
            faults.before("open", other.claim_job)  # forgets the one that was in the way

        faults.before("publish", be_topped, nth=1)
        owner = access.claim_job()
        owner.check()
        assert owner.epoch == 3

    def test_a_number_that_was_forgotten_makes_nobody_an_owner(self, faults: Faults) -> None:
        """Another driver took the number that this one is about to, and a third forgot it."""
        access, other = job_in(faults.directory), job_in(faults.behind)
        others: list[JobOwnership] = []

        def claim_twice() -> None:
            others.extend((other.claim_job(), other.claim_job()))

        faults.calls.clear()
        faults.before("publish", claim_twice, nth=1)
        owner = access.claim_job()
        assert owner.epoch == 3
        assert [owns(one) for one in (*others, owner)] == [False, False, True]

    def test_a_claim_that_is_topped_without_end_gives_up(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        other = job_in(faults.behind)
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
    def test_a_claim_whose_answer_was_lost_counts_once(
        self, memory_directory: str, lose: Callable[[Faults], None]
    ) -> None:
        policy = RetryPolicy(deadline_s=HANGS_S, first_wait_s=1e-6, longest_wait_s=1e-6)
        with faulty_file_system(memory_directory, retries=policy) as faults:
            access = job_in(faults.directory)
            lose(faults)
            owner = access.claim_job()
            assert owner.epoch == 1
            assert claims(faults.behind) == {"1"}
            owner.check()

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_checkpoint_that_is_completed_while_a_driver_claims_is_known_to_the_claim(
        self, faults: Faults, moment: str
    ) -> None:
        """The younger driver goes on from it, so nobody may take it back."""
        access = job_in(faults.directory)
        older = job_in(faults.behind)
        ownership = older.claim_job()
        faults.calls.clear()

        def commit_meanwhile() -> None:
            try:
                commit(begun(older, 1), ownership, 1)
            except CheckpointConflictError:
                assert moment == "after"

        getattr(faults, moment)("publish", commit_meanwhile, nth=1)
        owner = access.claim_job()
        adopted = sorted(access.completed_checkpoints())
        assert adopted == ([1] if moment == "before" else [])
        run(access, owner, *range(len(adopted) + 1, 4))
        assert not any(owner.is_past(one, "token") for one in adopted)


def line_of(racer: object) -> str:
    stdout = getattr(racer, "stdout")  # noqa: B009  # a Popen whose streams are pipes
    return str(stdout.readline()).strip()


class TestIsPast:
    @pytest.fixture
    def access(self, memory_directory: str) -> CheckpointStorageAccess:
        return job_in(memory_directory)

    def test_a_job_without_checkpoints_is_past_none(self, access: CheckpointStorageAccess) -> None:
        owner = access.claim_job()
        assert not any(owner.is_past(one, "token") for one in range(4))

    def test_an_id_that_the_owner_found_is_not_past(self, access: CheckpointStorageAccess) -> None:
        run(access, access.claim_job(), 1, 2, 3)
        owner = access.claim_job()
        assert not any(owner.is_past(one, "token") for one in (1, 2, 3))

    def test_an_id_below_one_that_the_owner_found_is_past(
        self, access: CheckpointStorageAccess
    ) -> None:
        run(access, access.claim_job(), 1, 3)
        owner = access.claim_job()
        assert [owner.is_past(one, "token") for one in range(5)] == [
            True,
            False,
            True,
            False,
            False,
        ]

    def test_an_id_below_one_that_the_owner_made_is_past(
        self, access: CheckpointStorageAccess
    ) -> None:
        owner = access.claim_job()
        run(access, owner, 2)
        assert [owner.is_past(one, "token") for one in range(4)] == [True, True, False, False]

    def test_an_id_above_the_newest_is_not_past(self, access: CheckpointStorageAccess) -> None:
        run(access, access.claim_job(), 1, 2)
        assert not access.claim_job().is_past(3, "token")

    def test_an_id_that_was_cleaned_up_is_past(self, access: CheckpointStorageAccess) -> None:
        owner = access.claim_job()
        run(access, owner, 1, 2, 3)
        discard(access, 1)
        discard(access, 2)
        assert [owner.is_past(one, "token") for one in (1, 2, 3)] == [True, True, False]

    def test_it_goes_by_the_newest_claim_whoever_asks(
        self, access: CheckpointStorageAccess
    ) -> None:
        oldest = access.claim_job()
        run(access, access.claim_job(), 1, 2, 3)
        discard(access, 1)
        access.claim_job()
        assert [oldest.is_past(one, "token") for one in (1, 2, 3, 4)] == [True, False, False, False]

    def test_an_id_stays_past_when_all_that_the_owner_found_was_cleaned_up(
        self, access: CheckpointStorageAccess
    ) -> None:
        run(access, access.claim_job(), 5)
        owner = access.claim_job()
        discard(access, 5)
        assert owner.is_past(4, "token")


class TestCommits:
    def test_the_owner_completes_a_checkpoint(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        run(access, access.claim_job(), 1)
        found = load_latest_checkpoint(access)
        assert found is not None
        assert found.checkpoint_id == 1

    def test_a_driver_that_was_fenced_before_writes_nothing(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        older = access.claim_job()
        access.claim_job()
        location = begun(access, 1)
        metadata = metadata_of(checkpoint_id=1)
        faults.calls.clear()
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            complete_checkpoint(location, metadata, older)
        assert set(faults.calls) == {"list"}
        assert files_of(faults.behind, 1) == set()

    def test_a_driver_that_cannot_see_whether_it_is_fenced_writes_nothing(
        self, faults: Faults
    ) -> None:
        access = job_in(faults.directory)
        owner = access.claim_job()
        location = begun(access, 1)
        faults.before("list", StorageUnavailableError("as planned"))
        with pytest.raises(StorageUnavailableError):
            complete_checkpoint(location, metadata_of(checkpoint_id=1), owner)
        assert files_of(faults.behind, 1) == set()

    def test_a_late_commit_of_an_id_that_the_job_has_left_behind_is_taken_back(
        self, faults: Faults
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie, location = access.claim_job(), begun(access, 1)

        def go_on() -> None:
            owner = other.claim_job()
            run(other, owner, 1, 2, 3)
            discard(other, 1)
            begun(other, 1)  # as on a store without directories, where nothing is in the way

        faults.before("publish", go_on)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(location, zombie, 1, "the zombie's")
        assert sorted(other.completed_checkpoints()) == [2, 3]
        assert METADATA_FILE not in files_of(faults.behind, 1)

    def test_a_late_commit_of_an_id_that_was_found_and_then_cleaned_up_is_taken_back(
        self, faults: Faults
    ) -> None:
        """The owner found another one's checkpoint of that id, so this one is nobody's."""
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie, location = access.claim_job(), begun(access, 1)

        def go_on() -> None:
            run(other, other.claim_job(), 1)
            run(other, other.claim_job(), 2, 3)
            discard(other, 1)
            begun(other, 1)

        faults.before("publish", go_on)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(location, zombie, 1, "the zombie's")
        assert sorted(other.completed_checkpoints()) == [2, 3]

    @pytest.mark.parametrize("checkpoints", [(), (1,), (1, 2)])
    def test_a_late_commit_that_the_job_goes_on_from_is_left(
        self, faults: Faults, checkpoints: tuple[int, ...]
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie = access.claim_job()
        run(access, zombie, *checkpoints)
        checkpoint_id = len(checkpoints) + 1
        faults.before("publish", other.claim_job)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begun(access, checkpoint_id), zombie, checkpoint_id)
        assert sorted(other.completed_checkpoints()) == [*checkpoints, checkpoint_id]

    def test_a_commit_that_a_younger_driver_has_found_is_left(self, faults: Faults) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie = access.claim_job()

        def go_on() -> None:
            owner = other.claim_job()  # finds checkpoint 1
            run(other, owner, 2, 3)

        faults.after("publish", go_on)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begun(access, 1), zombie, 1)
        assert sorted(other.completed_checkpoints()) == [1, 2, 3]

    def test_a_store_that_fails_right_after_the_commit_leaves_its_outcome_unknown(
        self, faults: Faults
    ) -> None:
        access = job_in(faults.directory)
        owner = access.claim_job()
        location = begun(access, 1)
        faults.after(
            "publish", lambda: faults.before("list", StorageUnavailableError("as planned"))
        )
        with pytest.raises(OutcomeUnknownError) as caught:
            commit(location, owner, 1)
        assert caught.value.location == f"{faults.directory}/job/chk-1"
        assert sorted(access.completed_checkpoints()) == [1]
        location.dispose_on_failure()
        assert len(files_of(faults.behind, 1)) == 2

    def test_permissions_that_vanish_right_after_the_commit_leave_its_outcome_unknown(
        self, faults: Faults
    ) -> None:
        """It says that nothing was done, and the checkpoint is there."""
        access = job_in(faults.directory)
        owner = access.claim_job()
        faults.after("publish", lambda: faults.before("list", InvalidRequestError("as planned")))
        with pytest.raises((OutcomeUnknownError, CheckpointConflictError)):
            commit(begun(access, 1), owner, 1)
        assert sorted(access.completed_checkpoints()) == [1]

    @pytest.mark.parametrize("call", ["list", "open", "delete", "delete_tree"])
    @pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
    def test_a_store_that_fails_a_fenced_driver_never_says_that_nothing_was_written(
        self, faults: Faults, call: str, *, lands: bool
    ) -> None:
        """Unavailable would mean that it never was there."""
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie = access.claim_job()
        location = begun(access, 1)

        def go_on() -> None:
            run(other, other.claim_job(), 1, 2)
            discard(other, 1)
            begun(other, 1)
            faults.calls.clear()  # the first of these looks who owns the job, then it looks on
            plan = faults.after if lands else faults.before
            plan(call, StorageUnavailableError("as planned"), nth=2 if call == "list" else 1)

        faults.before("publish", go_on)
        with pytest.raises((CheckpointConflictError, OutcomeUnknownError)):
            commit(location, zombie, 1)

    def test_a_fenced_driver_learns_that_although_claims_are_forgotten_meanwhile(
        self, faults: Faults
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie = access.claim_job()

        def go_on() -> None:
            other.claim_job()
            faults.before("open", other.claim_job)  # the claim that is about to be read goes

        faults.before("publish", go_on)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begun(access, 1), zombie, 1)

    def test_a_damaged_claim_does_not_hide_from_a_driver_that_it_is_fenced(
        self, faults: Faults
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.behind)
        zombie = access.claim_job()

        def go_on() -> None:
            other.claim_job()
            overwrite_claim(faults.behind, 2, b"{")

        faults.before("publish", go_on)
        with pytest.raises(CheckpointError) as caught:
            commit(begun(access, 1), zombie, 1)
        assert isinstance(
            caught.value, CheckpointConflictError | CheckpointCorruptedError | OutcomeUnknownError
        )
        assert sorted(other.completed_checkpoints()) == [1]  # not known to be past: left

    def test_a_driver_that_fails_leaves_the_directory_in_which_another_one_begins(
        self, local_directory: str
    ) -> None:
        """Tasks make no directories: without this one all that they write fails."""
        access = job_in(local_directory)
        access.claim_job()
        failed = begun(access, 1)
        owner = access.claim_job()
        pending = begun(access, 1)
        failed.dispose_on_failure()
        commit(pending, owner, 1)

    def test_the_latest_is_found_while_the_job_goes_on(self, faults: Faults) -> None:
        """It was listed, then a newer one was completed, and the one that was listed deleted."""
        access, other = job_in(faults.directory), job_in(faults.behind)
        owner = other.claim_job()
        run(other, owner, 1)

        def go_on() -> None:
            run(other, owner, 2)
            discard(other, 1)

        faults.before("open", go_on)
        try:
            found = load_latest_checkpoint(access)
        except CheckpointNotFoundError:
            pytest.fail("the job had a completed checkpoint at every moment")
        assert found is not None
        assert found.checkpoint_id == 2


class _Overwriting(LocalFileSystem):
    """A store that can't tell whether a name is taken."""

    def publish(self, uri: str, data: bytes, /) -> None:
        path = "/" + uri.partition("://")[2].lstrip("/")
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)


def test_a_single_writer_claims_and_commits_where_nothing_is_exclusive(
    local_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.locations import FileSystemCheckpointStorage
    from holdfast.locations.adapters import register_file_system, unregister_file_system

    register_file_system("overwriting", _Overwriting)
    try:
        directory = local_directory.replace("file:", "overwriting:")
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = cast("CheckpointStorageAccess", storage.create_checkpoint_storage("job"))
        access.initialize_base_locations_for_checkpoint()
        first = access.claim_job()
        run(access, first, 1, 2)
        second = access.claim_job()
        assert (first.epoch, second.epoch) == (1, 2)
        assert not owns(first)
        with pytest.raises(CheckpointConflictError, check=of_kind("exists")):
            commit(begun(access, 2), second, 2, token="another")
        run(access, second, 3)
    finally:
        unregister_file_system("overwriting")
