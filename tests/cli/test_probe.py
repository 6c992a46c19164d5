"""`holdfast probe`: suitable stores, and stores that are exposed."""

import json

import pytest
from cli.stores import options_for
from servers.buckets import MemoryBucket

from holdfast.cli.command_line import main
from holdfast.locations.adapters import (
    FileSystem,
    MemoryFileSystem,
    register_file_system,
    unregister_file_system,
)


class Replacing(MemoryFileSystem):
    """Lets one writer replace another writer's file."""

    def publish(self, uri: str, data: bytes, /) -> None:
        self.delete([uri])
        super().publish(uri, data)


class Stale(MemoryFileSystem):
    """Does not list new files, nor notice deletions."""

    def list(self, uri: str, /) -> list:  # type: ignore[type-arg]  # of nothing
        return []

    def delete(self, uris: object, /) -> None:
        """Do nothing."""


def test_suitable_store_meets_all_requirements(
    memory_bucket: MemoryBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"s3://{memory_bucket.name}/new"
    assert main(["probe", uri, "--json", *options_for(memory_bucket)]) == 0
    assert set(json.loads(capsys.readouterr().out).values()) == {"yes"}
    assert (memory_bucket.keys(), memory_bucket.uploads()) == ([], [])


@pytest.mark.parametrize(
    ("adapter", "unmet"),
    [
        (Replacing, {"one of several writers of a name wins": "replace another writer's file"}),
        (
            Stale,
            {
                "a new file is listed at once": "a listing has {} instead of",
                "files are deleted, and missing ones ignored": "a deleted file can be read",
            },
        ),
    ],
)
def test_unsuitable_store_is_exposed(
    adapter: type[FileSystem], unmet: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    register_file_system("memory", adapter)
    assert main(["probe", "memory:///probe", "--json"]) == 3
    unregister_file_system("memory")
    results = json.loads(capsys.readouterr().out)
    assert {title for title, result in results.items() if result != "yes"} == unmet.keys()
    for title, reason in unmet.items():
        assert reason in results[title]


def test_missing_bucket_is_wrong_usage(
    memory_bucket: MemoryBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"s3://not-{memory_bucket.name}/new"
    assert main(["probe", uri, *options_for(memory_bucket)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bucket does not exist" in captured.err
