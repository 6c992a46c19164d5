"""`holdfast show`."""

import json
from pathlib import Path

import pytest
from contracts.elements import Order
from contracts.golden import golden
from jobs.stopped_query import remove
from jobs.stores import Store, write_checkpoint

from holdfast import take_savepoint
from holdfast.cli.command_line import main
from holdfast.locations.handles import files_of


def test_json_has_everything(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(store.directory, 1)
    newest = write_checkpoint(store.directory, 2, elements=5)
    assert main(["show", store.directory, "--json", *store.options]) == 0
    shown = json.loads(capsys.readouterr().out)
    sizes = [
        subtask.managed_operator[0].size
        for subtask in newest.metadata.operators["visits"].subtasks.values()
    ]
    sections = [
        handle.states
        for subtask in newest.metadata.operators["visits"].subtasks.values()
        for handle in subtask.managed_operator
    ]
    assert shown == golden(
        "show",
        directory=store.directory,
        seen_bytes=sum(section["seen"].length for section in sections),
        rules_bytes=sum(section["rules"].length for section in sections),
        stored_bytes_0=sizes[0],
        stored_bytes_1=sizes[1],
        state_bytes=sum(sizes),
        metadata_bytes=newest.metadata_bytes,
        total_bytes=sum(sizes) + newest.metadata_bytes,
        commit_token=newest.metadata.commit_token,
        files=[
            {"uri": file.uri, "bytes": file.size} for file in files_of(newest.metadata.streams())
        ],
    )


def test_offsets_are_shown_by_topic_and_the_watermark_as_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = ['{"orders":{"0":12,"1":7},"refunds":{"0":3}}', '{"logOffset":4}', "-"]
    checkpoint = write_checkpoint(
        f"file://{tmp_path}",
        1,
        query_name="totals",
        sources="\n".join(sources),
        watermark=1_700_000_000_000,
    )
    pointer = checkpoint.location.external_pointer
    assert main(["show", pointer]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("offsets"))
    assert lines[at - 1].split() == ["watermark", "2023-11-14T22:13:20+00:00"]
    assert lines[at].split(maxsplit=1)[1] == "orders: partition 0 at 12, partition 1 at 7"
    assert lines[at + 1 : at + 4] == ["refunds: partition 0 at 3", '{"logOffset":4}', "-"]
    assert ["query", "totals,"] in [line.split()[:2] for line in lines]
    assert main(["show", pointer, "--json"]) == 0
    spark = json.loads(capsys.readouterr().out)["spark"]
    assert (spark["watermark"], spark["query_name"]) == (1_700_000_000_000, "totals")
    assert spark["sources"] == [
        {"orders": {"0": 12, "1": 7}, "refunds": {"0": 3}},
        {"logOffset": 4},
        "-",
    ]


def test_text_shows_the_skew_or_every_subtask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1, elements=7, parallelism=3, element_type=Order)
    assert main(["show", f"{directory}/job"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "checkpoint 1 of job job"
    words = [line.split() for line in lines]
    assert ["seen", "list", "9"] in [line[:3] for line in words]
    assert ["rows", "in", "1", "1", "7", "0"] in words
    assert ["async", "1.5", "s", "1.5", "s", "1.5", "s", "0"] in words
    assert ["offsets", '{"logOffset":1}'] in words
    assert main(["show", f"{directory}/job/chk-1/_metadata", "--subtasks"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in words][-3:] == [["0", "7", "8"], ["1", "1", "2"], ["2", "1", "2"]]


def test_text_shows_bytes_fetched_from_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(f"file://{tmp_path}", 1, fetched_bytes=3 << 20)
    assert main(["show", f"file://{tmp_path}/job"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fetched", "bytes", *["3.0", "MiB"] * 3, "0"] in words
    assert ["fetch", "requests", "1", "1", "1", "0"] in words
    assert main(["show", f"file://{tmp_path}/job", "--subtasks"]) == 0
    assert capsys.readouterr().out.count("3.0 MiB") == 2


def test_a_missing_state_file_hides_only_the_types_of_its_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = write_checkpoint(f"file://{tmp_path}", 1)
    missing = files_of(completed.metadata.streams())[0].uri
    remove(missing)
    assert main(["show", f"file://{tmp_path}"]) == 0
    streams = capsys.readouterr()
    assert streams.out.count("can't be read") == 2
    assert missing in streams.err


def test_several_jobs_are_status_2_and_none_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    assert main(["show", directory]) == 1
    errors = capsys.readouterr().err
    assert "no completed checkpoint or savepoint here or below" in errors
    assert directory in errors
    for job in ("one", "two"):
        write_checkpoint(directory, 1, job=job)
    assert main(["show", directory]) == 2
    assert "name one of: one, two" in capsys.readouterr().err


@pytest.mark.usefixtures("as_without_spark")
def test_a_savepoint_shows_spark_s_own_files(
    stopped_query: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    assert main(["show", f"{directory}/savepoints", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["pointer"]) == ("savepoint", pointer)
    files = shown["spark_files"].pop("files")
    assert shown["spark_files"] == {
        "is_committed": True,
        "settings": {},
        "bytes": sum(file["bytes"] for file in files),
    }
    deltas = [file for file in files if file["path"].endswith(".delta")]
    assert deltas
    assert all(delta["uri"].startswith(f"{pointer}/") for delta in deltas)
    assert main(["show", pointer]) == 0
    assert "Spark's files" in capsys.readouterr().out
