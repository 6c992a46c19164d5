"""The `holdfast` command."""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.stores import write_checkpoint

from holdfast.cli.command_line import COMMANDS as ALL_COMMANDS
from holdfast.cli.command_line import main, parser
from holdfast.cli.settings import settings_command
from holdfast.errors import InvalidRequestError
from holdfast.spark.settings import Settings, settings_table


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A directory with two checkpoints of one job."""
    for number in (2, 10):
        write_checkpoint(f"file://{tmp_path}", number)
    return f"file://{tmp_path}"


def test_a_bad_directory_is_status_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "/data"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert "file:///" in streams.err


@pytest.mark.parametrize(
    "setting",
    [
        "spark.holdfast.s3.secret-key",  # no equals sign
        "spark.holdfast.s3.secret-key=s3cr3t",  # without the name of the credentials
        "spark.holdfast.s3.session-token=s3cr3t",
        "spark.holdfast.s3.endpoint=key:s3cr3t@store:9000",
        "spark.holdfast.s3.endpoint=http://key:s3cr3t@store:9000",
        "spark.hadoop.fs.s3a.endpoint=key:s3cr3t@store:9000",
        "spark.holdfast.s3.part-size=none",
        "spark.holdfast.s3.secret=s3cr3t",
        "spark.holdfast.checkpoint.dir=s3://key:s3cr3t@bucket/checkpoints",
    ],
)
def test_no_error_about_settings_shows_a_secret(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "--conf=spark.hadoop.fs.s3a.secret.key=s3cr3t"
    main(["list", "s3://bucket/checkpoints", secret, "--conf", setting])
    streams = capsys.readouterr()
    assert "holdfast: " in streams.err
    assert "s3cr3t" not in streams.out + streams.err


def test_wrong_setting_is_refused_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "spark.holdfast.checkpoint.num-retained=0"
    assert main(["list", "file:///nothing", "--conf", wrong]) == 2
    assert "num-retained' must be a number, at least 1, got '0'" in capsys.readouterr().err


STORE = "file:///holdfast-tests/nothing-is-here"

COMMANDS = [
    ["list", STORE],
    ["show", STORE],
    ["cat", STORE],
    ["verify", STORE],
    ["diff", STORE, STORE],
    ["report", STORE],
    ["serve", STORE],
    ["clean", STORE],
    ["copy", STORE, STORE],
    ["savepoint", STORE, STORE],
    ["restore", STORE, STORE],
    ["rollback", STORE],
    ["probe", STORE],
]


@pytest.mark.parametrize(
    ("mixed", "in_order"),
    [
        (["cat", "A", "--json", "B", "C"], ["cat", "--json", "A", "B", "C"]),
        (["diff", "A", "--json", "B"], ["diff", "--json", "A", "B"]),
        (["verify", "A", "--all", "B"], ["verify", "--all", "A", "B"]),
        (["copy", "A", "--conf=a=b", "B"], ["copy", "--conf=a=b", "A", "B"]),
        (["savepoint", "A", "--job", "C", "B"], ["savepoint", "--job", "C", "A", "B"]),
        (["restore", "A", "--paths", "C", "D", "B"], ["restore", "--paths", "C", "D", "A", "B"]),
        (["flink", "import", "A", "--dry-run", "B"], ["flink", "import", "--dry-run", "A", "B"]),
        (["settings", "a", "--json", "b"], ["settings", "--json", "a", "b"]),
        (["flink", "cat", "A", "--json", "B", "C"], ["flink", "cat", "--json", "A", "B", "C"]),
    ],
)
def test_options_between_positional_arguments_are_parsed(
    mixed: list[str], in_order: list[str]
) -> None:
    expected = vars(parser().parse_args(in_order))
    assert vars(parser().parse_args(mixed)) | {"parser": None} == expected | {"parser": None}


@pytest.mark.parametrize("in_file", [False, True], ids=["conf", "file"])
@pytest.mark.parametrize("command", COMMANDS, ids=[words[0] for words in COMMANDS])
def test_commands_refuse_an_unknown_setting_as_jobs_do(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], *, in_file: bool
) -> None:
    key, value = "spark.holdfast.s3.endpont", "http://store:9000"
    file = tmp_path / "job.conf"
    file.write_text(f"{key} {value}\n")
    options = ["--properties-file", str(file)] if in_file else ["--conf", f"{key}={value}"]
    with pytest.raises(InvalidRequestError) as refused:
        Settings.parse({key: value})
    assert "did you mean 'spark.holdfast.s3.endpoint'?" in str(refused.value)
    assert main([*command, *options]) == 2
    assert capsys.readouterr() == ("", f"holdfast: {refused.value}\n")


def test_every_command_with_settings_is_asked_for_wrong_ones() -> None:
    known = argparse.ArgumentParser().add_subparsers()
    for commands in ALL_COMMANDS.values():
        for command in commands:
            command.add_to(known)
    with_settings = {
        name for name, command in known.choices.items() if "--conf" in command.format_help()
    }
    assert with_settings == {words[0] for words in COMMANDS}


def test_the_command_runs_as_a_module_without_spark(directory: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "holdfast", "list", directory],
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.split()[-1].partition(".")[0] for line in ran.stderr.splitlines()}
    assert not loaded & {"pyspark", "pyarrow", "pandas", "rich"}


def test_settings_prints_every_key_to_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    keys = [line for line in lines if line and not line.startswith(" ")]
    assert keys == [f"spark.holdfast.{setting.key}" for setting in settings_table()]
    assert all(len(line) <= 60 for line in lines if line not in keys)  # a key is in one piece


def test_settings_prints_those_with_all_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "S3", "part"]) == 0
    groups = capsys.readouterr().out.split("\n\n")
    assert [group.split("\n")[0] for group in groups] == [
        "spark.holdfast.s3.part-size",
        "spark.holdfast.s3.concurrency",
    ]


def test_settings_with_words_of_no_setting_is_status_1_and_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["settings", "S3", "bananas"]) == 1
    assert capsys.readouterr() == ("", "holdfast: no setting contains 'S3' and 'bananas'\n")
    assert main(["settings", "--json", "bananas"]) == 1
    assert json.loads(capsys.readouterr().out) == []


def test_example_of_settings_prints_one() -> None:
    words = settings_command.examples.split("holdfast settings ")[-1].split()
    assert main(["settings", *words]) == 0


def test_help_lists_each_command_once_below_a_purpose() -> None:
    text = parser().format_help()
    lines = [line for line in text.splitlines() if re.match(r"  [a-z]+  ", line)]
    commands = [command for group in ALL_COMMANDS.values() for command in group]
    assert [line.split()[0] for line in lines] == [command.name for command in commands]
    for purpose in ALL_COMMANDS:
        assert f"\n{purpose}:\n" in text


@pytest.mark.parametrize("words", [[], ["flink"], ["import"]])
def test_a_missing_command_leads_to_the_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert f"`{' '.join(['holdfast', *words])} --help`" in capsys.readouterr().err


def test_positional_arguments_are_in_capitals_in_every_help() -> None:
    for name, each in subcommands(parser()):
        for action in each._get_positional_actions():  # noqa: SLF001  # there is no public list
            shown = str(action.metavar or action.dest)
            assert shown == shown.upper(), name


def subcommands(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command with its name, also those of groups."""
    for action in of._get_positional_actions():  # noqa: SLF001  # there is no public list
        if action.nargs == argparse.PARSER and isinstance(action.choices, dict):
            for name, each in action.choices.items():
                yield name, each
                yield from subcommands(each)


def test_settings_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--json", "s3.part-size"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "key": "spark.holdfast.s3.part-size",
            "value": "size, at least 5m",
            "default": "8m",
            "meaning": "Size of the parts of a large file; grows with the file.",
            "argument": "s3_part_size",
            "flink": "s3.upload.min.part.size",
            "hadoop": None,
        }
    ]
    assert main(["settings", "--json", "s3.endpoint"]) == 0
    [endpoint] = json.loads(capsys.readouterr().out)
    assert endpoint["default"] is None
    assert endpoint["hadoop"] == "spark.hadoop.fs.s3a.endpoint"


def test_settings_without_pyspark_name_the_package_to_install(
    directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["settings"]) == 2
    assert "pip install 'holdfast[spark]'" in capsys.readouterr().err
    assert main(["list", directory]) == 0
