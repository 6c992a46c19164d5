"""`holdfast show`."""

import json
from pathlib import Path

import pytest
from contracts.elements import Order
from jobs.kept import Kept, write_checkpoint
from jobs.stopped import remove

from holdfast import take_savepoint
from holdfast.cli.command_line import main
from holdfast.locations.handles import files_of


def test_json_has_everything(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(kept.directory, 1)
    newest = write_checkpoint(kept.directory, 2, elements=5)
    assert main(["show", kept.directory, "--json", *kept.options]) == 0
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
    assert shown == {
        "kind": "checkpoint",
        "job": "job",
        "checkpoint": 2,
        "pointer": f"{kept.directory}/job/chk-2",
        "batch": 1,
        "query_name": "",
        "completed": "2023-11-14T22:13:20+00:00",
        "completed_ms": 1_700_000_000_000,
        "rows_in": 6,
        "rows_late": 0,
        "rows_out": 8,
        "operators": {
            "visits": {
                "parallelism": 2,
                "max_parallelism": 128,
                "key": ["user"],
                "key_hash": "hash",
                "key_types": ["string"],
                "states": [
                    {
                        "state": "seen",
                        "kind": "list",
                        "subtasks": 2,
                        "stored_elements": 6,
                        "bytes": sum(section["seen"].length for section in sections),
                        "type": "int64",
                        "arrow_type": "int64",
                        "stored_as": "arrow",
                        "columns": [
                            {
                                "name": "value",
                                "type": "int64",
                                "arrow_type": "int64",
                                "stored_as": "arrow",
                            }
                        ],
                        "failure": None,
                    },
                    {
                        "state": "rules",
                        "kind": "broadcast",
                        "subtasks": 2,
                        "stored_elements": 1,
                        "bytes": sum(section["rules"].length for section in sections),
                        "type": "string to dict[str, int]",
                        "arrow_type": "string to map<string, int64>",
                        "stored_as": "arrow to arrow",
                        "columns": [
                            {
                                "name": "key",
                                "type": "string",
                                "arrow_type": "string",
                                "stored_as": "arrow",
                            },
                            {
                                "name": "value",
                                "type": "dict[str, int]",
                                "arrow_type": "map<string, int64>",
                                "stored_as": "arrow",
                            },
                        ],
                        "failure": None,
                    },
                ],
                "subtasks": [
                    {
                        "subtask": index,
                        "stored_bytes": sizes[index],
                        "rows_in": count,
                        "rows_late": 0,
                        "rows_out": count + 1,
                        "state_bytes": sizes[index],
                        "restore_ms": 1.0,
                        "process_ms": 20.0,
                        "sync_ms": 0.25,
                        "async_ms": 1500.0,
                        "restored_from": "worker",
                        "backend_metrics": {},
                    }
                    for index, count in enumerate((5, 1))
                ],
            }
        },
        "new_bytes": sum(sizes) + newest.metadata_bytes,
        "referenced_bytes": 0,
        "total_bytes": sum(sizes) + newest.metadata_bytes,
        "state_bytes": sum(sizes),
        "metadata_bytes": newest.metadata_bytes,
        "claimed_by": None,
        "has_claimed": [],
        "duration_ms": 12.5,
        "epoch": 1,
        "writer": "holdfast tests",
        "commit_token": newest.metadata.commit_token,
        "spark": {
            "query_id": "query",
            "run_id": "run",
            "batch_id": 1,
            "offsets": 'v1\n{"batchTimestampMs":2,"conf":{"a":"b"}}\n{"logOffset":2}',
            "checkpoint_location": "file:/spark",
            "spark_version": "4.3.0",
            "watermark": 0,
            "batch_time": 0,
            "query_name": "",
            "sources": [{"logOffset": 2}],
        },
        "spark_files": None,
        "coordinator_states": {"sink/visits": 4},
        "files": [
            {"uri": file.uri, "bytes": file.size} for file in files_of(newest.metadata.streams())
        ],
    }


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


def test_a_state_file_that_is_gone_hides_only_how_its_states_are_stored(
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
    told = capsys.readouterr().err
    assert "no completed checkpoint or savepoint here or below" in told
    assert directory in told
    for job in ("one", "two"):
        write_checkpoint(directory, 1, job=job)
    assert main(["show", directory]) == 2
    assert "name one of: one, two" in capsys.readouterr().err


@pytest.mark.usefixtures("as_without_spark")
def test_a_savepoint_shows_spark_s_own_files(
    stopped: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = take_savepoint(stopped, f"{directory}/savepoints")
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
