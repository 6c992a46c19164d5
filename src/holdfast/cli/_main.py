"""Parses the command line and picks the command."""

import argparse
import sys
from collections.abc import Sequence

from holdfast.cli._list import list_command
from holdfast.cli._settings import settings_command
from holdfast.errors import CheckpointError, InvalidRequestError

_DONE, _WRONG_USAGE, _STORE_FAILED = 0, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words behind the program's name; None takes those of this process.

    Returns:
        Exit status: 0 done, 1 nothing found, 2 wrong usage, 3 the store failed.
    """
    parser = argparse.ArgumentParser(
        prog="holdfast", description="Look at the checkpoints of PySpark jobs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list",
        help="list the completed checkpoints below a checkpoint directory",
        description="List the completed checkpoints of all jobs below a checkpoint directory.",
    )
    listing.add_argument("directory", help="URI of the directory, such as file:///data/holdfast")
    listing.add_argument("--json", action="store_true", help="print JSON, one object a checkpoint")
    listing.set_defaults(run=list_command)
    settings = commands.add_parser(
        "settings",
        help="print the settings of jobs",
        description="Print every spark.holdfast.* key, its default and what it means.",
    )
    settings.add_argument("words", nargs="*", metavar="WORD", help="only settings with these words")
    settings.add_argument("--json", action="store_true", help="print JSON, one object a setting")
    settings.set_defaults(run=settings_command)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except InvalidRequestError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return _WRONG_USAGE
    except CheckpointError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return _STORE_FAILED
