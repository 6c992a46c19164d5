"""Parses the command line and picks the command."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from holdfast.cli.commands import COMMANDS
from holdfast.cli.output import printable, say
from holdfast.common import SYSTEM_CLOCK, Clock, shortage_of
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.redaction import redact

_WRONG_USAGE, _STORE_FAILED, _INTERRUPTED, _NOBODY_READS = 2, 3, 130, 141

_EPILOG = """\
exit status:
  0  done
  1  nothing was found, or what was found is not as it should be
  2  wrong usage
  3  the store failed, a file is damaged, or something went wrong that should not
  130, 141  interrupted; broken off because nobody reads the output any more
"""


class _Parser(argparse.ArgumentParser):
    """Parses the whole command line, or the words of one command, whose options may be anywhere."""

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
        """Say what is wrong, without secrets of URIs among the words that it is about."""
        for word in sorted(self._words, key=len, reverse=True):
            for text in (word, word.partition("=")[2]):
                if redact(text) != text:
                    message = message.replace(repr(text), repr(redact(text)))
                    message = message.replace(text, redact(text))
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = _Parser(
        prog="holdfast",
        description="Look at, check, copy, clean up and go back to the checkpoints of PySpark jobs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {version('holdfast')}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add_to(commands)
    whole.set_defaults(parser=whole)  # completions are made of it
    return whole


def main(arguments: Sequence[str] | None = None, *, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the command.

    Args:
        arguments: The words behind the program's name; None takes those of this process.
        clock: Says how old things are.

    Returns:
        Exit status: 0 done, 1 nothing found or not as it should be, 2 wrong usage, 3 the store
        failed, a file is damaged, or something else went wrong that should not, 130 interrupted
        from the keyboard, 141 nobody reads the output, which was broken off.
    """
    options = parser().parse_args(arguments, argparse.Namespace(clock=clock))
    status = _NOBODY_READS
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except InvalidRequestError as error:
        say(str(error))
        return _WRONG_USAGE
    except CheckpointError as error:
        say(str(error))
        return _STORE_FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # who read has seen enough
        return status
    except Exception as error:  # noqa: BLE001  # Python's own status for it would be that of "nothing found"
        shortage = shortage_of(error)
        if shortage is not None:
            say(str(shortage))
            return _STORE_FAILED
        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return _STORE_FAILED
    return status


def _drop_output() -> None:
    """Keep Python from complaining when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
