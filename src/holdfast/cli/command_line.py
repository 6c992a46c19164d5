"""The commands by purpose, the parser of the command line, and the entry point."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

import shtab

from holdfast.cli.cat import cat_command
from holdfast.cli.clean import clean_command
from holdfast.cli.copy import copy_command
from holdfast.cli.diff import diff_command
from holdfast.cli.explain import explain_command
from holdfast.cli.flink import FLINK
from holdfast.cli.listing import list_command
from holdfast.cli.options import (
    Command,
    CommandGroup,
    NothingFoundError,
    add_commands,
    command,
    option,
)
from holdfast.cli.output import print_status, printable
from holdfast.cli.probe import probe_command
from holdfast.cli.queries import restore_command, rollback_command, savepoint_command
from holdfast.cli.report import report_command
from holdfast.cli.serve import serve_command
from holdfast.cli.settings import settings_command
from holdfast.cli.show import show_command
from holdfast.cli.spark_state import IMPORT
from holdfast.cli.verify import verify_command
from holdfast.common import SYSTEM_CLOCK, Clock, shortage_of
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.redaction import redact

_EXIT_NOTHING_FOUND, _EXIT_USAGE, _EXIT_FAILURE = 1, 2, 3
_EXIT_INTERRUPTED, _EXIT_SIGPIPE = 130, 141

_EPILOG = """\
exit status:
  0  done
  1  nothing was found, or diff found a difference
  2  wrong usage
  3  the store failed, a file is corrupt, or an internal error
  130, 141  interrupted; the reader of the output has gone away

Commands that delete (clean, rollback) only print what they would delete until you add --yes.
An error ends with a code such as [HF-BATCH-GAP]; holdfast explain HF-BATCH-GAP prints the steps.
holdfast COMMAND --help has examples. Documentation: docs/index.md.
"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the flat list of commands out of the help, which lists them by purpose."""

    def add_argument(self, action: argparse.Action) -> None:
        if action.nargs != argparse.PARSER:
            super().add_argument(action)


class _Parser(argparse.ArgumentParser):
    """Parser of the whole command line, or of one command with its options in any position."""

    _is_intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        # Without this, Python 3.11 refuses optional arguments after an option.
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    def error(self, message: str) -> NoReturn:
        """Report the error without the secrets of URIs in the arguments."""
        for word in sorted(self._words, key=len, reverse=True):
            for text in (word, word.partition("=")[2]):
                if redact(text) != text:
                    message = message.replace(repr(text), repr(redact(text)))
                    message = message.replace(text, redact(text))
        if self._subparsers is not None and "arguments are required" in message:
            message = f"name one of the commands that `{self.prog} --help` lists"
        super().error(message)


@command(
    "completion",
    help="print a script that completes the command in a shell",
    description="Print a script for a shell that completes commands and options.\n\n"
    "bash: put the first line below into ~/.bashrc. zsh: run the second, with ~/.zfunc in\n"
    "$fpath before compinit.",
    examples="""
        eval "$(holdfast completion bash)"
        holdfast completion zsh >~/.zfunc/_holdfast
    """,
    options=[option("shell", metavar="SHELL", choices=("bash", "zsh"), help="bash or zsh")],
)
def completion_command(options: argparse.Namespace) -> int:
    """Print the script."""
    print(shtab.complete(options.parser, options.shell))
    return 0


COMMANDS: dict[str, tuple[Command | CommandGroup, ...]] = {
    "inspect": (
        list_command,
        show_command,
        cat_command,
        verify_command,
        diff_command,
        report_command,
        serve_command,
        explain_command,
    ),
    "protect": (savepoint_command, copy_command),
    "change": (restore_command, rollback_command, clean_command),
    "migrate": (IMPORT, FLINK),
    "set up": (probe_command, settings_command, completion_command),
}
"""The commands by purpose, in the order of the help."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = _Parser(
        prog="holdfast",
        description="Inspect, verify, back up, restore and clean up checkpoints of PySpark streaming queries.",
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {version('holdfast')}")
    add_commands(whole, "command", [each for group in COMMANDS.values() for each in group])
    for purpose, group in COMMANDS.items():
        whole.add_argument_group(purpose, "\n".join(f"{each.name:12}{each.help}" for each in group))
    whole.set_defaults(parser=whole)  # for completions
    return whole


def main(arguments: Sequence[str] | None = None, *, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the command.

    Args:
        arguments: The arguments; None for those of this process.
        clock: Clock for the age of checkpoints and files.

    Returns:
        Exit status: 0 done, 1 nothing found, or a difference, 2 wrong usage, 3 the store failed, a file is corrupt,
        or an internal error, 130 interrupted from the keyboard, 141 the reader of the output has gone away.
    """
    options = parser().parse_args(arguments, argparse.Namespace(clock=clock))
    status = _EXIT_SIGPIPE
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except NothingFoundError as error:
        print_status(str(error))
        return _EXIT_NOTHING_FOUND
    except InvalidRequestError as error:
        print_status(str(error))
        return _EXIT_USAGE
    except CheckpointError as error:
        print_status(str(error))
        return _EXIT_FAILURE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return status
    except Exception as error:  # noqa: BLE001  # Python's own status for it would be that of "nothing found"
        shortage = shortage_of(error)
        if shortage is not None:
            print_status(str(shortage))
            return _EXIT_FAILURE
        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return _EXIT_FAILURE
    return status


def _drop_output() -> None:
    """Prevent an error message when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
