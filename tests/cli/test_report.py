"""`holdfast report`, without a browser."""

import json
import os
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from contracts.golden import golden
from contracts.histories import HOSTILE, checkpoint_metadata, write_checkpoints
from servers.s3 import S3Bucket, settings_of

from holdfast.cli.command_line import main
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint, use_s3
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    file_system_for,
    unregister_file_system,
)
from holdfast.testing import metadata_of

LONG_AGO_MS = 1_700_000_000_000


class Page(HTMLParser):
    """The text of a page, and its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def page_of(directory: Path, *options: str) -> Page:
    file = directory.parent / "report.html"
    assert main(["report", f"file://{directory}", "-o", str(file), *options]) == 0
    return Page(file.read_text(encoding="utf-8"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty checkpoint directory."""
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


def test_the_json_has_every_value_of_the_page(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoints(directory, [3, 5], newest_ms=LONG_AGO_MS)
    (directory / "job" / "chk-4").mkdir()
    (directory / "job" / "chk-4" / ("0" * 32)).write_bytes(b"12345")
    assert main(["report", f"file://{directory}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [job] = report.pop("jobs")
    assert abs(report.pop("made_ms") - time.time() * 1000) < 60_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", report.pop("made"))
    assert report.pop("made_by").startswith("holdfast ")
    assert report == {"directory": f"file://{directory}", "savepoint_directory": None}
    older, newest = job.pop("checkpoints")
    assert older["checkpoint"] == 3
    metadata_bytes = newest["metadata_bytes"]
    assert metadata_bytes > 300
    assert newest == golden(
        "report_checkpoint", directory=f"file://{directory}", metadata_bytes=metadata_bytes
    )
    before, last = job.pop("history")
    assert last == golden("report_history", metadata_bytes=metadata_bytes)
    assert before["checkpoint"] == 3
    [failure] = job.pop("failures")
    assert failure.pop("modified") is not None
    assert failure == {
        "checkpoint": 4,
        "pointer": f"file://{directory}/job/chk-4",
        "reason": "incomplete",
        "error": "",
        "files": 1,
        "bytes": 5,
    }
    assert job == {
        "job": "job",
        "query_name": "",
        "state": "healthy",  # two checkpoints don't tell how far apart they usually are
        "median_interval_ms": None,
        "gaps": [[4, 4]],
        "savepoints": [],
        "unreadable_savepoints": [],
        "sweep": {"error": "", "files": [], "directories": [], "bytes": 0, "within_grace": 1},
        "failed_attempts": [],
        "history_error": "",
    }


def test_the_page_shows_the_state_of_each_job(directory: Path) -> None:
    write_checkpoints(directory, [1, 2, 3], job_id="runs")
    write_checkpoints(directory, [1, 2, 3], job_id="ended", newest_ms=LONG_AGO_MS)
    write_checkpoints(directory, [1, 2], job_id="damaged")
    (directory / "damaged" / "chk-2" / "_metadata").write_bytes(b"no metadata")
    write_checkpoints(directory, [1, 2], job_id="older")
    (directory / "older" / "chk-1" / "_metadata").write_bytes(b"no metadata")
    (directory / "new" / "shared").mkdir(parents=True)
    text = page_of(directory).text
    assert re.search(r"runs Healthy last checkpoint (just now|\d+ s ago), 12 ms", text)
    assert re.search(r"ended Quiet last checkpoint \d+ days.* before that, one every 1\.0 s", text)
    assert "damaged Damaged the newest checkpoint can't be read" in text
    assert re.search(r"older Attention last checkpoint .* 1 older can't be read", text)
    assert "new No checkpoint nothing was completed yet" in text
    assert text.count("not a holdfast metadata file") >= 2
    assert "A sweep would delete nothing now" in text


def test_an_old_incomplete_checkpoint_needs_attention(
    directory: Path,
) -> None:
    write_checkpoints(directory, [1, 2, 3])
    incomplete = directory / "job" / "chk-4"
    incomplete.mkdir()
    assert "job Healthy : last checkpoint" in page_of(directory).text
    os.utime(incomplete, (1, 1))
    page = page_of(directory)
    assert re.search("job Attention : .*; a newer one was started and not completed", page.text)


def test_referenced_bytes_are_separate_from_new_ones(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = FileSystemCheckpointStorage(f"file://{directory}", inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    handles = []
    for number, size in ((1, 1000), (2, 10)):
        location = access.initialize_location_for_checkpoint(number)
        stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        with stream:
            stream.write(bytes(size))
            handle = stream.close_and_get_handle()
        assert handle is not None
        handles.append(handle)
        # The second one leads to the file of the first too, from two subtasks.
        complete_checkpoint(location, metadata_of(*handles, handles[0], checkpoint_id=number))
    assert main(["report", f"file://{directory}", "--json"]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    sizes = [
        (checkpoint["new_bytes"] - checkpoint["metadata_bytes"], checkpoint["referenced_bytes"])
        for checkpoint in job["checkpoints"]
    ]
    assert sizes == [(1000, 0), (10, 1000)]
    assert re.search("#2: .* newly written, 1000 B referenced", page_of(directory).text)


def test_a_bucket_is_looked_at_as_a_directory_is(memory_bucket: S3Bucket, tmp_path: Path) -> None:
    use_s3(settings_of(memory_bucket.server))
    directory = f"s3://{memory_bucket.name}/data"
    try:
        write_checkpoints(directory, [2, 4])
        assert main(["report", directory, "-o", str(tmp_path / "report.html")]) == 0
    finally:
        unregister_file_system("s3")
        unregister_file_system("s3a")
    html = (tmp_path / "report.html").read_text()
    assert "job Healthy : last checkpoint" in Page(html).text
    assert "Missing between them: #3" in Page(html).text
    assert memory_bucket.server.secret_key not in html


def test_the_page_shows_subtasks_failures_gaps_savepoints_and_leftovers(
    directory: Path, tmp_path: Path
) -> None:
    storage = write_checkpoints(directory, [3, 9], parallelism=4)
    (directory / "job" / "chk-10").mkdir()
    savepoints = tmp_path / "savepoints"
    savepoints.mkdir()
    location = storage.create_checkpoint_storage("job").initialize_location_for_savepoint(
        9, f"file://{savepoints}"
    )
    metadata = checkpoint_metadata(
        9, job_id="job", uids=["operator"], parallelism=4, created_ms=LONG_AGO_MS
    )
    complete_checkpoint(location, metadata)
    page = page_of(directory, "--savepoint-dir", f"file://{savepoints}")
    assert "#9 batch 8" in page.text
    assert "State subtask 3: 1.6 times the mean" in page.text
    assert "Rows in subtask 3: 1.6 times the mean" in page.text
    assert "Not completed #10 has no metadata" in page.text
    assert "Missing between them: #4 to #8" in page.text
    assert f"batch 8 file://{savepoints}/savepoint-job-" in page.text
    assert "a sweep would delete Nothing." in page.text
    titles = [
        attributes for tag, attributes in page.elements if tag == "svg" and "role" in attributes
    ]
    assert all(title["role"] == "img" and title["aria-label"] for title in titles)
    assert len(titles) == 6


def test_names_are_text_whatever_they_are(directory: Path) -> None:
    write_checkpoints(directory, [1], uids=HOSTILE)
    page = page_of(directory)
    for name in HOSTILE:
        assert " ".join(name.split()) in page.text
    assert not page.tags & {"script", "img", "iframe", "object"}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_a_page_needs_nothing_from_outside(directory: Path) -> None:
    write_checkpoints(directory, [1, 2])
    page = page_of(directory)
    links = {
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data")
    }
    assert links == {"data:,"}
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_long_histories_are_folded_and_cut(directory: Path) -> None:
    write_checkpoints(directory, [5], job_id="wide", parallelism=600)
    write_checkpoints(directory, range(1, 201), job_id="long", parallelism=1)
    page = page_of(directory)
    assert "492 more subtasks" in page.text
    assert "100 more subtasks are left out" in page.text
    assert "192 older" in page.text
    assert "Each bar is the highest of 3 neighbours" in page.text


def test_names_of_users_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    directory = "memory://AKIAKEY@host/report"
    file_system_for(directory).prepare_directory(f"{directory}/job/chk-1")
    try:
        assert main(["report", directory, "--json"]) == 0
        out = capsys.readouterr().out
    finally:
        file_system_for(directory).delete_tree(directory)
    assert "AKIAKEY" not in out
    assert "memory://host/report/job/chk-1" in out


def test_an_empty_directory_is_a_page_and_status_1(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", f"file://{directory}"]) == 1
    assert "No job has a checkpoint" in Page(capsys.readouterr().out).text


def test_a_directory_of_something_else_is_not_written_into(directory: Path) -> None:
    (directory / "offsets").mkdir()
    before = (directory / "offsets").stat().st_mtime_ns
    assert main(["report", f"file://{directory}"]) == 1
    assert (directory / "offsets").stat().st_mtime_ns == before


def test_an_unwritable_file_is_status_2(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", f"file://{directory}", "-o", f"{directory}/none/report.html"]) == 2
    assert "name another file with -o" in capsys.readouterr().err


def test_without_jinja_json_works_and_the_page_names_the_package(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoints(directory, [1])
    monkeypatch.delitem(sys.modules, "holdfast.cli.report_page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", f"file://{directory}"]) == 2
    assert "pip install 'holdfast[report]'" in capsys.readouterr().err
    assert main(["report", f"file://{directory}", "--json"]) == 0
