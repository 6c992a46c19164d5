"""The stored files of a stopped query, written without Spark: its checkpointLocation and its job."""

import json
from collections.abc import Iterable
from functools import partial

import pytest
from jobs.coordinator import acknowledge, begin_checkpoint, coordinator, progress
from msgspec import structs

from holdfast.locations.adapters import file_system_for
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import LINK_FILE, Link, encode_link
from holdfast.testing import Faults

QUERY = "6f0c3c4e-5f65-4c8e-9a1a-0d4b5f3f9d1c"
UID = "operator"


def put(uri: str, text: str) -> None:
    """Write a file, and the directories that it needs."""
    file_system = file_system_for(uri)
    file_system.prepare_directory(uri.rpartition("/")[0])
    stream = file_system.create(uri)
    stream.write(text.encode(errors="surrogateescape"))
    stream.commit()


def text_of(uri: str) -> str:
    """Return the contents of a file."""
    with file_system_for(uri).open(uri) as stream:
        return stream.read().decode(errors="surrogateescape")


def all_files(directory: str) -> dict[str, str]:
    """Return the contents of all files below a directory, by relative path."""
    files: dict[str, str] = {}
    for entry in file_system_for(directory).list(directory):
        name = entry.uri.rpartition("/")[2]
        if entry.is_directory:
            files |= {f"{name}/{path}": text for path, text in all_files(entry.uri).items()}
        else:
            files[name] = text_of(entry.uri)
    return files


def write_query(location: str, *, batches: int, source: str = "file:///in") -> str:
    """Write and return a checkpointLocation with this many finished batches, of a query with state in two partitions."""
    put(f"{location}/metadata", json.dumps({"id": QUERY}))
    put(f"{location}/state/0/_metadata/metadata", 'v1\n{"operatorInfo":{}}')
    for partition in range(2):
        put(f"{location}/state/0/{partition}/_metadata/schema", "v3 schema")
    add_batches(location, range(batches), source=source)
    return location


def add_batches(location: str, batches: Iterable[int], *, source: str = "file:///in") -> None:
    """Add finished batches to a checkpointLocation."""
    for batch in batches:
        pinned = {
            "batchTimestampMs": 1_700_000_000_000 + 60_000 * batch,
            "conf": {"spark.sql.shuffle.partitions": "2"},
        }
        put(f"{location}/offsets/{batch}", f'v1\n{json.dumps(pinned)}\n{{"logOffset":{batch}}}')
        entry = {"path": f"{source}/{batch}", "timestamp": 1, "batchId": batch}
        put(f"{location}/sources/0/{batch}", f"v1\n{json.dumps(entry)}")
        for partition in range(2):
            put(f"{location}/state/0/{partition}/{batch + 1}.delta", f"{partition} {batch}" * 2000)
        put(f"{location}/commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')


def write_job(directory: str, location: str, *, batches: int) -> None:
    """Write checkpoints of an operator of that query, with two state files each."""
    driver = coordinator(directory, job_id=QUERY, query_id=QUERY, num_retained=100)
    for batch in range(batches):
        pending = begin_checkpoint(driver, batch)
        reports = acknowledge(pending, state_of=partial(state_of, batch=batch))
        of_query = {"query_id": QUERY, "checkpoint_location": location}
        driver.complete(pending, reports, structs.replace(progress(batch), **of_query))
    link = Link(checkpoint_dir=directory, job_id=QUERY, storage="filesystem")
    put(f"{location}/{LINK_FILE}", encode_link(link))


def write_stopped(directory: str) -> str:
    """Write a query with an operator and four finished batches, and return its checkpointLocation."""
    location = write_query(f"{directory}/original", batches=4)
    write_job(f"{directory}/checkpoints", location, batches=4)
    return location


def remove(*uris: str) -> None:
    """Delete files of one store."""
    file_system_for(uris[0]).delete(uris)


def replace(uri: str, text: str) -> None:
    """Replace the contents of a file."""
    remove(uri)
    put(uri, text)


def state_of(subtask: int, batch: int) -> bytes:
    """Return a subtask's state after a batch."""
    return b"state of %d after %d;" % (subtask, batch) * 500


def states_after(batch: int) -> list[bytes]:
    """Return the states of both subtasks after a batch."""
    return [state_of(subtask, batch) for subtask in range(2)]


@pytest.fixture
def directory(faults: Faults) -> str:
    """Return an empty directory whose scheme the settings accept as shared with executors."""
    return faults.directory


@pytest.fixture
def stopped_query(directory: str) -> str:
    """Return the checkpointLocation of a query with an operator and four finished batches."""
    return write_stopped(directory)


@pytest.fixture
def plain_query(directory: str) -> str:
    """Return the checkpointLocation of a query without operators and four finished batches."""
    return write_query(f"{directory}/plain", batches=4)


@pytest.fixture
def as_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make queries look as if no application ran them, although tests in this process have Spark."""
    monkeypatch.setattr(sessions, "is_application_alive", lambda: False)
