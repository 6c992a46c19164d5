"""`holdfast report`: the history of checkpoints as a page."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import add_command, add_json
from holdfast.cli.report import page_maker, report_of
from holdfast.cli.stores import add_stores, use_stores
from holdfast.common import replace_file
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "report",
        report_command,
        help="write a page with the history of checkpoints",
        description=(
            "Write one HTML file with the history of checkpoints of all jobs below a checkpoint\n"
            "directory: durations, sizes, rows, subtasks, failures, gaps, savepoints, and what a\n"
            "sweep would delete. The file needs nothing else, no network and no script."
        ),
        examples="""
            holdfast report file:///data/holdfast -o report.html
            holdfast report s3://bucket/checkpoints --savepoints s3://bucket/savepoints -o report.html
            holdfast report file:///data/holdfast --json
        """,
    )
    command.add_argument("directory", help="URI of the directory, such as file:///data/holdfast")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write; stdout if not given"
    )
    command.add_argument(
        "--savepoints",
        metavar="URI",
        help="a directory to look for savepoints in, besides the checkpoint directory",
    )
    add_json(command, "what the page shows, instead of the page")
    add_stores(command)


def report_command(options: argparse.Namespace) -> int:
    """Write the page.

    Raises:
        InvalidRequestError: Jinja is not installed, or the file can't be written.
        CheckpointError: A directory can't be listed.
    """
    use_stores(options, options.directory, options.savepoints)
    now_ms = options.clock.now_ms()
    if options.json:
        report = report_of(options.directory, options.savepoints, now_ms=now_ms)
        content = json.dumps(dataclasses.asdict(report), indent=2, ensure_ascii=False) + "\n"
    else:
        try:
            page = page_maker()
        except ModuleNotFoundError as error:
            message = f"the page needs {error.name}; pip install 'holdfast[report]'"
            raise InvalidRequestError(message) from error
        report = report_of(options.directory, options.savepoints, now_ms=now_ms)
        content = page(report)
    # A name on a disk may hold bytes that are no UTF-8.
    data = content.encode("utf-8", "backslashreplace")
    if options.output is None:
        sys.stdout.write(data.decode())
    else:
        _replace(options.output, data)
    return 0 if report.jobs else 1


def _replace(file: str, data: bytes) -> None:
    """Write a file in one step: somebody may be reading the last one."""
    try:
        with replace_file(file) as unfinished, open(unfinished, "xb") as stream:
            stream.write(data)
    except OSError as error:
        message = f"report can't be written ({error.strerror}); name another file with -o"
        raise InvalidRequestError(message, file) from error
