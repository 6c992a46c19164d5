"""Metadata with right checksums that names files where its checkpoint can't have any."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from contracts.checkpointed_jobs import files_of, job_in, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckpointCorruptedError, CheckpointError, InvalidRequestError
from holdfast.locations import CompletedCheckpoint, load_checkpoint
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    ClaimedCheckpoints,
    CompletedCheckpointStore,
    sweep,
)
from holdfast.locations.metadata import ClaimedCheckpoint, encode_metadata
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import metadata_of

NAME = "0123456789abcdef" * 2
VICTIMS = (
    "victim.txt",
    f"{NAME}",
    f"shared/{NAME}",
    f"other/shared/{NAME}",
    f"other/chk-1/{NAME}",
    f"job/{NAME}",
    f"job/shared/below/{NAME}",
    f"savepoint-other-0123456789ab/{NAME}",
    f"job-2/shared/{NAME}",
    f"café/job/shared/{NAME}",
)
"""Files of other programs, by their paths in a checkpoint directory with the job `job`."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return with_victims(tmp_path / "checkpoints")


def with_victims(directory: Path) -> Path:
    for victim in VICTIMS:
        (directory / victim).parent.mkdir(parents=True, exist_ok=True)
        (directory / victim).write_text("precious")
    return directory


def victims_in(directory: Path) -> set[str]:
    return {victim for victim in VICTIMS if (directory / victim).exists()}


def publish_metadata(
    directory: Path, uri: str, claimed: tuple[ClaimedCheckpoint, ...] = ()
) -> Path:
    """Complete checkpoint 1 of a job, whose metadata names that file too."""
    checkpoint = write_checkpoint(job_in(f"file://{directory}"), 1)
    pointer = Path(checkpoint.location.external_pointer.removeprefix("file://"))
    streams = (*checkpoint.metadata.streams(), FileStateHandle(uri, 8))
    metadata = msgspec.structs.replace(metadata_of(*streams, checkpoint_id=1), claimed=claimed)
    content = encode_metadata(metadata, f"file://{pointer}")
    (pointer / "_metadata").write_bytes(content)
    return pointer


def complete_two_more(directory: Path, checkpoint: CompletedCheckpoint) -> None:
    """Let a driver find a checkpoint, and continue until nothing of it is retained."""
    cleaner = CheckpointsCleaner()
    access = job_in(f"file://{directory}")
    claims = ClaimedCheckpoints.restore(
        f"file://{directory}/job", checkpoint, lambda each: each.metadata.streams()
    )
    store = CompletedCheckpointStore(1, cleaner, [checkpoint], claims)
    for number in (2, 3):
        store.add(write_checkpoint(access, number))
    cleaner.close()


@pytest.mark.parametrize(
    "uri",
    [
        "file://{directory}/job/shared/../../victim.txt",
        "file://{directory}/job/shared/../../job/shared/{name}",
        "file://{directory}/job/shared//{name}",
        "file://{directory}/job/shared/./{name}",
        "file://localhost{directory}/job/shared/{name}",
        "FILE://{directory}/job/shared/{name}",
        "file:{directory}/job/shared/{name}",
        "file://{directory}/job/shared/{name}/",
        "file://{directory}/job/shared/%2e%2e/%2e%2e/victim.txt",
        "file://{directory}/job/shared/..%2f..%2fvictim.txt",
        "file://{directory}/job/shared./{name}",
        "file://{directory}/job/shared/{name}.",
        "file://{directory}/job /shared/{name}",
        "file://{directory}/victim.txt",
        "file://{directory}/job/{name}",
        "file://{directory}/job/shared/below/{name}",
        "file://{directory}/other/shared/{name}",
        "file://{directory}/shared/{name}",
        "s3://bucket/{name}",
        "s3://user:secret@bucket/job/shared/{name}",
        "file://{directory}/savepoint-other-0123456789ab/{name}",
        "../victim.txt",
        "../../victim.txt",
        "../savepoint-other-0123456789ab/../victim.txt",
        "../savepoint-x/../../victim.txt",
        "..",
        ".",
        "",
        "/etc/passwd",
        "file:///",
    ],
)
def test_metadata_naming_a_stray_file_is_corrupt(directory: Path, uri: str) -> None:
    pointer = publish_metadata(directory, uri.format(directory=directory, name=NAME))
    with pytest.raises(CheckpointCorruptedError, match="metadata names"):
        load_checkpoint(resolve_pointer(pointer))
    assert victims_in(directory) == set(VICTIMS)
    with pytest.raises(CheckpointCorruptedError, match="metadata names"):
        sweep(directory, "job", grace_s=0)
    assert (pointer / "_metadata").exists()


@pytest.mark.parametrize(
    "uri",
    [
        "file://{directory}/job/shared/{name}",
        "file://{directory}/job/chk-0/{name}",
        "file://{directory}/elsewhere/job/shared/01234567-{name}",
        "s3a://bucket/.a3/job/shared/{name}",
    ],
)
def test_metadata_may_name_files_of_its_job_by_other_paths(directory: Path, uri: str) -> None:
    expected = uri.format(directory=directory, name=NAME)
    loaded = load_checkpoint(resolve_pointer(publish_metadata(directory, expected)))
    assert files_of(loaded)[-1].uri == expected


@pytest.mark.parametrize(
    ("pointer", "file"),
    [
        ("{directory}/gone", "{directory}/victim.txt"),
        ("{directory}/gone", "{directory}/{name}"),
        ("{directory}/gone", "{directory}/gone/../{name}"),
        ("{directory}/gone", "{directory}/gone/below/{name}"),
        ("{directory}", "{directory}/victim.txt"),
        ("{directory}/gone/..", "{directory}/{name}"),
        ("{directory}/other/chk-7", "{directory}/shared/{name}"),
        ("/", "/{name}"),
    ],
)
def test_claim_with_a_stray_file_is_damage(directory: Path, pointer: str, file: str) -> None:
    """The claimed checkpoint is gone except for this file and the record of the claim, as after a crash."""
    paths = [path.format(directory=directory, name=NAME) for path in (pointer, file)]
    claim = ClaimedCheckpoint(f"file://{paths[0]}", "token", (f"file://{paths[1]}",))
    stored = publish_metadata(directory, f"file://{paths[1]}", (claim,))
    with pytest.raises(CheckpointCorruptedError, match="metadata names"):
        load_checkpoint(resolve_pointer(stored))
    if pointer != "/":
        Path(paths[0]).mkdir(parents=True, exist_ok=True)
        holder = {"job_id": "job", "directory": f"file://{directory}/job", "claimed_ms": 1}
        (Path(paths[0]) / "_claimed").write_text(json.dumps(holder))
    (stored / "_metadata").unlink()  # otherwise nothing is released while it can't be read
    with suppress(CheckpointError):
        ClaimedCheckpoints(f"file://{directory}/job", [claim]).release(claim)
    assert victims_in(directory) == set(VICTIMS)


def test_checkpoint_with_a_stray_file_is_not_completed(directory: Path) -> None:
    with pytest.raises(InvalidRequestError, match="where it can't have a file"):
        write_checkpoint(
            job_in(f"file://{directory}"), 1, FileStateHandle(f"file://{directory}/victim.txt", 8)
        )


PIECES = (
    *VICTIMS,
    *("", ".", "..", "/", "%2e%2e", "..%2f", "job", "shared", "chk-1", "_entropy_", ".a3", NAME),
    *("savepoint-x-0123456789ab", "shared.", "shared ", "cafe\u0301", "caf\xe9", "\\..", "..\\"),
    *("\0", "\n", "\x7f", "\ud800", "?x", "#y", "a@b", "file://", "link"),
)


@st.composite
def uris(draw: st.DrawFn) -> str:
    """URIs that lead into or near a job's directory, `{}` for the checkpoint directory."""
    head = draw(
        st.sampled_from(
            (
                "file://{}/job/shared/",
                "file://{}/job/",
                "file://{}/",
                "file://localhost{}/",
                "{}/",
                "",
            )
        )
        | st.sampled_from(("../", "../savepoint-x-0123456789ab/", "s3://bucket/job/shared/"))
    )
    return head + "/".join(draw(st.lists(st.sampled_from(PIECES), max_size=5)))


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with TemporaryDirectory() as scratch:
        yield Path(scratch)


@given(uri=uris(), pointer=uris(), file=uris())
def test_no_metadata_makes_retention_delete_elsewhere(
    scratch: Path, uri: str, pointer: str, file: str
) -> None:
    directory = with_victims(scratch / os.urandom(8).hex())
    (directory / "job/link").symlink_to(directory)
    uri, pointer, file = (text.replace("{}", str(directory)) for text in (uri, pointer, file))
    try:
        claim = ClaimedCheckpoint(pointer, "token", (file,))
        stored = publish_metadata(directory, uri, (claim,))
        checkpoint = load_checkpoint(resolve_pointer(stored))
    except (CheckpointError, UnicodeEncodeError):
        checkpoint = None
    if checkpoint is not None:
        complete_two_more(directory, checkpoint)
    assert victims_in(directory) == set(VICTIMS)  # no place has a record of the claim
