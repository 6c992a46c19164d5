from pathlib import Path

import pytest

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations import FileSystemCheckpointStorage, checkpoint_storage
from holdfast.locations.adapters import MemoryFileSystem, file_system_for


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("file:///a/b", "file:///a/b"),
        ("file:/a", "file:///a"),
        ("FILE:///a", "file:///a"),
        ("file://localhost/a", "file:///a"),
        ("file:////a", "file:///a"),
        ("file:///a/", "file:///a"),
        ("file:///a///b//", "file:///a/b"),
        ("file:///a/./b/../c", "file:///a/c"),
        ("file:///../a", "file:///a"),
        ("file:///a%20b/c d", "file:///a%20b/c d"),
        ("file:///a:b?c#d", "file:///a:b?c#d"),
        ("file:///ä", "file:///ä"),
        ("memory:///a", "memory:///a"),
        ("memory://a/b/", "memory://a/b"),
        (Path("/a/b"), "file:///a/b"),
        (Path("/a/../b"), "file:///b"),
    ],
)
def test_location_is_normalized(given: str | Path, normal: str) -> None:
    storage = checkpoint_storage(given)
    assert isinstance(storage, FileSystemCheckpointStorage)
    assert storage.directory == normal
    assert checkpoint_storage(normal) == storage


def test_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkpoint_storage(Path("a")) == checkpoint_storage(f"file://{tmp_path}/a")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "no scheme"),
        ("/a/b", "no scheme"),
        ("a/b", "no scheme"),
        ("//a/b", "no scheme"),
        ("://a", "no scheme"),
        ("1:///a", "no scheme"),
        ("file:", "root"),
        ("file://", "root"),
        ("file:///", "root"),
        ("file:////", "root"),
        ("file:///a/..", "root"),
        ("memory://a", "root"),
        ("memory://a/", "root"),
        (Path("/"), "root"),
        ("file://tmp/x", "three slashes"),
        ("file:a/b", "absolute"),
        ("C:\\data", "absolute"),
        ("nothing://bucket/x", "no file system for nothing://"),
    ],
)
def test_uri_unfit_for_checkpoints_is_refused(given: str | Path, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        checkpoint_storage(given)


def test_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequestError, match="password") as caught:
        checkpoint_storage("sftp://me:hunter2@host:22/data")
    assert caught.value.location == "sftp://…@host:22/data"
    assert "hunter2" not in str(caught.value)


def test_password_with_a_slash_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidRequestError, match="password") as caught:
        checkpoint_storage("s3://AKIA:TOP/SE@CRET@bucket/data")
    assert caught.value.location == "s3://…@bucket/data"
    assert "TOP" not in str(caught.value)
    assert "SE@CRET" not in str(caught.value)


def test_path_with_a_line_break_is_a_path(tmp_path: Path) -> None:
    storage = checkpoint_storage(tmp_path / "a\nb")
    assert isinstance(storage, FileSystemCheckpointStorage)
    assert storage.directory == f"file://{tmp_path}/a\nb"


def test_scheme_picks_the_file_system() -> None:
    assert isinstance(file_system_for("memory:///a").inner, MemoryFileSystem)
    with pytest.raises(InvalidRequestError, match=r"file://, .*memory://"):
        file_system_for("nothing:///a")


CONTROLS = ["\x01", "\t", "\n", "\r", "\x1f", "\x7f", "\x85", "\ufffe", "\uffff"]


@pytest.mark.parametrize("scheme", ["s3", "S3A", "fsspec+s3", "hdfs", "viewfs", "gs", "sftp"])
@pytest.mark.parametrize("character", CONTROLS)
def test_control_character_in_a_path_is_refused_by_name(scheme: str, character: str) -> None:
    for path in (f"/a{character}b", f"/{character}", f"/a/b{character}"):
        with pytest.raises(
            InvalidRequestError, match=r"has the character.*can't have in names"
        ) as caught:
            uripath.normalize(f"{scheme}://host{path}")
        assert ascii(character) in str(caught.value)
        assert character not in str(caught.value)


@pytest.mark.parametrize("character", CONTROLS)
def test_control_character_in_a_local_path_is_kept(character: str) -> None:
    for scheme in ("file", "memory"):
        assert uripath.normalize(f"{scheme}:///a{character}b") == f"{scheme}:///a{character}b"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("hdfs://namenode/a:b", "':' in its path"),
        ("viewfs://cluster/a/b:", "':' in its path"),
        (f"s3://bucket/{'a' * 1024}", "1025 bytes"),
        (f"gs://bucket/{'a' * 1024}", "Google Cloud Storage takes at most"),
        (f"abfss://container@account/{'a' * 1024}", "Azure Storage takes at most"),
        (f"s3a://bucket/{'ä' * 600}", "1201 bytes"),
    ],
)
def test_path_rejected_by_the_store_is_refused(uri: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        checkpoint_storage(uri)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/a:b", "s3://bucket/a b%20ä~'", "hdfs://namenode:8020/a b"]
)
def test_path_accepted_by_the_store_is_unchanged(uri: str) -> None:
    assert uripath.normalize(uri) == uri
