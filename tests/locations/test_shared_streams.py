"""Placeholders of shared streams in reports of tasks: the driver resolves them."""

from collections.abc import Mapping

import msgspec
import pytest
from contracts.metadata import seal

from holdfast.errors import CheckpointCorruptedError, CheckpointDeclinedError, InvalidRequestError
from holdfast.locations import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.adapters import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.coordination import has_only_job_files, without_placeholders
from holdfast.locations.handles import PlaceholderStreamStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import decode_metadata, encode_metadata

JOB = "file:///data/job"
A, B, C = "a" * 32, "b" * 32, "c" * 32
OLD = FileStateHandle(f"{JOB}/shared/old", 10)
NEW = FileStateHandle(f"{JOB}/shared/new", 20)
SMALL = ByteStreamStateHandle(b"small")
MANIFEST = ByteStreamStateHandle(b"manifest")


def keyed_state(segments: Mapping[str, StreamStateHandle]) -> StoredSubtask:
    return StoredSubtask(managed_keyed=(SegmentsStateHandle((0, 7), dict(segments), MANIFEST),))


def placeholder(name: str, stream: StreamStateHandle) -> PlaceholderStreamStateHandle:
    return PlaceholderStreamStateHandle(name, stream.size)


def operator(*subtasks: StoredSubtask) -> StoredOperator:
    return StoredOperator(len(subtasks), 8, dict(enumerate(subtasks)))


def test_streams_of_files_and_inline_take_the_place_of_their_placeholders() -> None:
    reported = operator(keyed_state({A: placeholder(A, OLD), B: placeholder(B, SMALL), C: NEW}))
    resolved = without_placeholders(
        "counts", reported, [keyed_state({A: OLD, B: SMALL})], may_refer=True
    )
    assert resolved == operator(keyed_state({A: OLD, B: SMALL, C: NEW}))


def test_subtasks_of_another_parallelism_share_a_stream() -> None:
    reported = operator(*[keyed_state({A: placeholder(A, OLD)})] * 2)
    resolved = without_placeholders("counts", reported, [keyed_state({A: OLD})] * 2, may_refer=True)
    assert resolved == operator(*[keyed_state({A: OLD})] * 2)


@pytest.mark.parametrize(
    ("restored", "may_refer"),
    [
        pytest.param([keyed_state({B: OLD}), keyed_state({A: OLD})], True, id="of another subtask"),
        pytest.param([StoredSubtask(), StoredSubtask()], True, id="without state"),
        pytest.param([keyed_state({A: NEW}), StoredSubtask()], True, id="of another size"),
        pytest.param([keyed_state({A: OLD}), StoredSubtask()], False, id="of another job"),
    ],
)
def test_reference_to_an_unknown_stream_is_declined(
    *, restored: list[StoredSubtask], may_refer: bool
) -> None:
    reported = operator(keyed_state({A: placeholder(A, OLD)}), StoredSubtask())
    message = f"subtask 0 of operator 'counts' refers to shared stream '{A}' of 10 bytes"
    with pytest.raises(CheckpointDeclinedError, match=message):
        without_placeholders("counts", reported, restored, may_refer=may_refer)


def test_report_with_inconsistent_handles_is_declined() -> None:
    """Otherwise it would be stored, and be found damaged when it is needed."""
    with pytest.raises(CheckpointDeclinedError, match="in subtask 0: a segment of the name 'x'"):
        without_placeholders(
            "counts", operator(keyed_state({"x": NEW})), [StoredSubtask()], may_refer=True
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
def test_only_shared_files_of_the_job_belong_to_it(
    *, streams: tuple[StreamStateHandle, ...], own: bool
) -> None:
    segments = {f"{number:032x}": stream for number, stream in enumerate(streams)}
    assert has_only_job_files(keyed_state(segments).shared_streams().values(), JOB) is own


def test_spread_files_are_the_jobs_own() -> None:
    spread = FileStateHandle("s3://bucket/.a3/job/shared/a3", 10)
    assert has_only_job_files([spread], "s3://bucket/job")


def metadata(state: StoredSubtask) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        checkpoint_id=7,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators={"counts": operator(state)},
    )


def test_placeholder_is_never_stored() -> None:
    with pytest.raises(InvalidRequestError, match=f"placeholder, of shared stream '{A}'"):
        encode_metadata(metadata(keyed_state({A: placeholder(A, OLD)})), f"{JOB}/chk-7")


def test_stored_metadata_with_a_placeholder_is_damaged() -> None:
    body = msgspec.msgpack.encode(metadata(keyed_state({A: placeholder(A, OLD)})))
    with pytest.raises(CheckpointCorruptedError, match=f"it has a placeholder, of '{A}'"):
        decode_metadata(seal(body), f"{JOB}/chk-7", uri=f"{JOB}/chk-7/_metadata")


def test_stream_of_a_placeholder_does_not_count_as_written() -> None:
    reported = keyed_state({A: placeholder(A, OLD), B: NEW})
    assert reported.written_bytes == NEW.size + MANIFEST.size


def test_bytes_shared_by_subtasks_count_once() -> None:
    """A rescaled job has such subtasks."""
    state = keyed_state({A: OLD, B: SMALL})
    shared = msgspec.structs.replace(metadata(state), operators={"counts": operator(state, state)})
    assert shared.state_bytes == OLD.size + 2 * (SMALL.size + MANIFEST.size)
