"""Shared streams that a task refers to by placeholders: the driver puts what they stand for into the checkpoint."""

from collections.abc import Mapping

import msgspec
import pytest
from contracts.metadata import seal

from holdfast.errors import CheckpointCorruptedError, CheckpointDeclinedError, InvalidRequestError
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.adapters import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.coordination import owns_shared_files, without_placeholders
from holdfast.locations.handles import PlaceholderStreamStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import decode_metadata, encode_metadata

JOB = "file:///data/job"
A, B, C = "a" * 32, "b" * 32, "c" * 32
OLD = FileStateHandle(f"{JOB}/shared/old", 10)
NEW = FileStateHandle(f"{JOB}/shared/new", 20)
SMALL = ByteStreamStateHandle(b"small")
MANIFEST = ByteStreamStateHandle(b"manifest")


def keyed(segments: Mapping[str, StreamStateHandle]) -> StoredSubtask:
    return StoredSubtask(managed_keyed=(SegmentsStateHandle((0, 7), dict(segments), MANIFEST),))


def placeholder(name: str, stream: StreamStateHandle) -> PlaceholderStreamStateHandle:
    return PlaceholderStreamStateHandle(name, stream.size)


def operator(*subtasks: StoredSubtask) -> StoredOperator:
    return StoredOperator(len(subtasks), 8, dict(enumerate(subtasks)))


def test_streams_of_files_and_inline_take_the_place_of_their_placeholders() -> None:
    reported = operator(keyed({A: placeholder(A, OLD), B: placeholder(B, SMALL), C: NEW}))
    resolved = without_placeholders("counts", reported, [keyed({A: OLD, B: SMALL})], may_refer=True)
    assert resolved == operator(keyed({A: OLD, B: SMALL, C: NEW}))


def test_subtasks_of_another_parallelism_share_a_stream() -> None:
    reported = operator(*[keyed({A: placeholder(A, OLD)})] * 2)
    resolved = without_placeholders("counts", reported, [keyed({A: OLD})] * 2, may_refer=True)
    assert resolved == operator(*[keyed({A: OLD})] * 2)


@pytest.mark.parametrize(
    ("restored", "may_refer"),
    [
        pytest.param([keyed({B: OLD}), keyed({A: OLD})], True, id="of another subtask"),
        pytest.param([StoredSubtask(), StoredSubtask()], True, id="of nobody"),
        pytest.param([keyed({A: NEW}), StoredSubtask()], True, id="of another size"),
        pytest.param([keyed({A: OLD}), StoredSubtask()], False, id="of another job"),
    ],
)
def test_a_stream_that_a_subtask_may_not_refer_to_is_declined(
    *, restored: list[StoredSubtask], may_refer: bool
) -> None:
    reported = operator(keyed({A: placeholder(A, OLD)}), StoredSubtask())
    message = f"subtask 0 of operator 'counts' refers to shared stream '{A}' of 10 bytes"
    with pytest.raises(CheckpointDeclinedError, match=message):
        without_placeholders("counts", reported, restored, may_refer=may_refer)


def test_a_report_whose_handles_contradict_themselves_is_declined() -> None:
    """It would be stored, and be found damaged when it is needed."""
    with pytest.raises(CheckpointDeclinedError, match="in subtask 0: a segment of the name 'x'"):
        without_placeholders(
            "counts", operator(keyed({"x": NEW})), [StoredSubtask()], may_refer=True
        )


@pytest.mark.parametrize(
    ("streams", "own"),
    [
        ((), True),
        ((SMALL,), True),
        ((OLD, SMALL), True),
        ((OLD, FileStateHandle("file:///data/job-2/shared/old", 10)), False),
        ((FileStateHandle("file:///data/savepoint-job-0123456789ab/x", 10),), False),
        ((FileStateHandle(f"{JOB}/chk-3/01234567-x", 10),), False),
    ],
)
def test_a_state_is_its_jobs_own_if_all_its_shared_files_are_those_of_the_job(
    *, streams: tuple[StreamStateHandle, ...], own: bool
) -> None:
    segments = {f"{number:032x}": stream for number, stream in enumerate(streams)}
    assert owns_shared_files([StoredSubtask(), keyed(segments)], JOB) is own


def test_spread_files_are_the_jobs_own() -> None:
    spread = FileStateHandle("s3://bucket/.a3/job/shared/a3", 10)
    assert owns_shared_files([keyed({A: spread})], "s3://bucket/job")


def metadata(state: StoredSubtask) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        checkpoint_id=7,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators={"counts": operator(state)},
    )


def test_a_placeholder_is_never_stored() -> None:
    with pytest.raises(InvalidRequestError, match=f"placeholder, of shared stream '{A}'"):
        encode_metadata(metadata(keyed({A: placeholder(A, OLD)})), f"{JOB}/chk-7")


def test_stored_metadata_with_a_placeholder_is_damaged() -> None:
    body = msgspec.msgpack.encode(metadata(keyed({A: placeholder(A, OLD)})))
    with pytest.raises(CheckpointCorruptedError, match=f"it has a placeholder, of '{A}'"):
        decode_metadata(seal(body), f"{JOB}/chk-7", uri=f"{JOB}/chk-7/_metadata")


def test_what_a_placeholder_stands_for_was_not_written_again() -> None:
    reported = keyed({A: placeholder(A, OLD), B: NEW})
    assert reported.written_bytes == NEW.size + MANIFEST.size


def test_bytes_that_subtasks_share_are_stored_once() -> None:
    """As they are after a job was rescaled."""
    state = keyed({A: OLD, B: SMALL})
    shared = msgspec.structs.replace(metadata(state), operators={"counts": operator(state, state)})
    assert shared.state_bytes == OLD.size + 2 * (SMALL.size + MANIFEST.size)
