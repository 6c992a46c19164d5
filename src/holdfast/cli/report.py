"""`holdfast report`: the history of checkpoints as an HTML page."""

import argparse
import json
import sys

import msgspec

from holdfast.cli.options import STORES, command, configure_stores, json_option, option
from holdfast.cli.report_values import gather_report
from holdfast.common import replace_file
from holdfast.errors import InvalidRequestError


@command(
    "report",
    help="write a page with the history of checkpoints",
    description="Write one HTML file with the history of checkpoints of all jobs below a checkpoint\n"
    "directory: durations, sizes, rows, subtasks, failures, gaps, savepoints, and what a\n"
    "sweep would delete. The file is self-contained, without scripts.",
    examples="""
        holdfast report file:///data/holdfast -o report.html
        holdfast report s3://bucket/checkpoints --savepoint-dir s3://bucket/savepoints -o report.html
        holdfast report file:///data/holdfast --json
    """,
    options=[
        option(
            "directory",
            metavar="DIRECTORY",
            help="URI of the directory, such as file:///data/holdfast",
        ),
        option("-o", "--output", metavar="FILE", help="the file to write; stdout if not given"),
        option("--savepoint-dir", metavar="URI", help="another directory to search for savepoints"),
        json_option("the values of the page"),
        STORES,
    ],
)
def report_command(options: argparse.Namespace) -> int:
    """Write the page."""
    configure_stores(options, options.directory, options.savepoint_dir)
    now_ms = options.clock.now_ms()
    if options.json:
        report = gather_report(options.directory, options.savepoint_dir, now_ms=now_ms)
        content = json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False) + "\n"
    else:
        try:
            from holdfast.cli.report_page import render_page  # noqa: PLC0415  # Jinja is an extra
        except ModuleNotFoundError as error:
            message = f"the page needs {error.name}; pip install 'holdfast[report]'"
            raise InvalidRequestError(message) from error
        report = gather_report(options.directory, options.savepoint_dir, now_ms=now_ms)
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
