"""`holdfast report`: the history of checkpoints as an HTML page."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.options import add_command, add_json, add_stores, configure_stores
from holdfast.cli.report import gather_report, load_renderer
from holdfast.common import replace_file
from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


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
            "sweep would delete. The file is self-contained, without scripts."
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
        help="another directory to search for savepoints",
    )
    add_json(command, "the values of the page")
    add_stores(command)


def report_command(options: argparse.Namespace) -> int:
    """Write the page.

    Raises:
        InvalidRequestError: Jinja is not installed, or the file can't be written.
        CheckpointError: A directory can't be listed.
    """
    configure_stores(options, options.directory, options.savepoints)
    now_ms = options.clock.now_ms()
    if options.json:
        report = gather_report(options.directory, options.savepoints, now_ms=now_ms)
        content = json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False) + "\n"
    else:
        try:
            render_page = load_renderer()
        except ModuleNotFoundError as error:
            message = f"the page needs {error.name}; pip install 'holdfast[report]'"
            raise InvalidRequestError(message) from error
        report = gather_report(options.directory, options.savepoints, now_ms=now_ms)
        content = render_page(report)
    # A name on a disk may have bytes that are not UTF-8.
    data = content.encode("utf-8", "backslashreplace")
    if options.output is None:
        sys.stdout.write(data.decode())
    else:
        _replace(options.output, data)
    return 0 if report.jobs else 1


def _replace(file: str, data: bytes) -> None:
    """Replace a file atomically."""
    try:
        with replace_file(file) as unfinished, open(unfinished, "xb") as stream:
            stream.write(data)
    except OSError as error:
        message = f"report can't be written ({error.strerror}); name another file with -o"
        raise InvalidRequestError(message, file) from error
