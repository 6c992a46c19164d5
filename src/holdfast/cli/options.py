"""Commands as declarations, their common options, and the checkpoints and stores that options name."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import shtab

from holdfast.cli.output import ROW_LIMIT, print_status
from holdfast.cli.properties_file import parse_properties
from holdfast.common import parse_duration_s
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import (
    deleted_error,
    find_checkpoint,
    hold_checkpoint,
    is_gone,
    read_claim,
)
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import directories_of, iso_time

Option: TypeAlias = Callable[[Any], object]
"""Adds an argument, or a group of them, to a parser of argparse or to a group of its arguments."""

Run: TypeAlias = Callable[[argparse.Namespace], int]
"""Runs a command; returns the exit status."""

_Result = TypeVar("_Result")

_MAX_ATTEMPTS = 20

POINTER_HELP = (
    "URI of the directory of a checkpoint or savepoint, or of its _metadata; of a job or a "
    "checkpoint directory, for the newest checkpoint there"
)


@dataclass(frozen=True)
class Command:
    """A command; see `command`."""

    name: str
    run: Run
    help: str
    description: str
    examples: str
    options: Sequence[Option]

    def add_to(self, commands: Any) -> None:
        """Add the command to the subparsers of a parser."""
        lines = "\n".join(f"  {line.strip()}" for line in self.examples.strip().splitlines())
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(run=self.run)
        for add_option in self.options:
            add_option(parser)


@dataclass(frozen=True)
class CommandGroup:
    """Commands after a common first word; `kind` is the word for them in the help."""

    name: str
    help: str
    kind: str
    commands: Sequence[Command]

    def add_to(self, commands: Any) -> None:
        """Add the group to the subparsers of a parser."""
        add_commands(commands.add_parser(self.name, help=self.help), self.kind, self.commands)


def add_commands(
    parser: argparse.ArgumentParser, kind: str, commands: Sequence[Command | CommandGroup]
) -> None:
    """Let a parser take one of these commands."""
    subparsers = parser.add_subparsers(required=True, metavar=kind.upper(), title=f"{kind}s")
    for each in commands:
        each.add_to(subparsers)


def command(
    name: str, *, help: str, description: str, examples: str, options: Sequence[Option]
) -> Callable[[Run], Command]:
    """Make a command of the function that runs it.

    `help` is its line in the help of all commands; `examples` has a command line in each line.
    """
    return lambda run: Command(name, run, help, description, examples, options)


def option(*names: str, **settings: Any) -> Option:
    """Return an argument with the settings of `add_argument`."""
    return lambda parser: parser.add_argument(*names, **settings)


def flag(name: str, help: str) -> Option:
    """Return an option without a value."""
    return option(name, action="store_true", help=help)


def list_option(name: str, metavar: str | None, help: str) -> Option:
    """Return an option that may be given several times."""
    return option(name, action="append", default=[], metavar=metavar, help=help)


def delete_options(deletion: str) -> Option:
    """Return `--yes`, which performs a deletion, and `--dry-run`, which is the default."""

    def add(parser: Any) -> None:
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--yes", action="store_true", help=deletion)
        either.add_argument(
            "--dry-run",
            action="store_true",
            help="delete nothing, and print the files that --yes would delete; the default",
        )

    return add


def group(title: str, description: str, *options: Option) -> Option:
    """Return options with a separate heading in the help."""

    def add(parser: argparse.ArgumentParser) -> None:
        heading = parser.add_argument_group(title, description)
        for add_option in options:
            add_option(heading)

    return add


def json_option(content: str) -> Option:
    """Return `--json`; the content is described as in `one object a checkpoint`."""
    return flag("--json", f"print JSON, {content}")


def job_options(default: str) -> Option:
    """Return the options for the checkpoints of a query's operators, with a description of their default."""
    return group(
        "state of operators",
        default,
        option("--checkpoint-dir", metavar="URI", help="URI of Holdfast's checkpoint directory"),
        option("--job", metavar="JOB", help="id of the job in that directory"),
    )


def _properties_file(parser: Any) -> None:
    file = parser.add_argument(
        "--properties-file",
        metavar="FILE",
        help="file with such settings, in the format of spark-defaults.conf",
    )
    file.complete = shtab.FILE


POINTER = option("pointer", metavar="POINTER", help=POINTER_HELP)

SAVEPOINT_TARGET = option(
    "target",
    nargs="?",
    metavar="TARGET",
    help="URI of the directory for the savepoint; by default spark.holdfast.savepoint.dir of --conf",
)

CHECKPOINT_LOCATION = option(
    "checkpoint_location",
    metavar="CHECKPOINT_LOCATION",
    help="URI of the query's checkpointLocation",
)

NO_OPERATORS = option(
    "--no-operators",
    dest="operators",
    action="store_false",
    help="ignore operators that the query had once and no longer has (operators=False in Python)",
)


def duration_s(examples: str) -> Callable[[str], float]:
    """Return the parser of a duration in seconds; `examples` are for its error."""

    def parse(text: str) -> float:
        try:
            return parse_duration_s(text)
        except ValueError as error:
            message = f"invalid duration {text!r}; use e.g. {examples}"
            raise argparse.ArgumentTypeError(message) from error

    return parse


def _parse_count(text: str) -> int:
    """Parse a number of rows."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, got {text!r}")
    return int(text)


ROWS = (
    option(
        "--limit",
        type=_parse_count,
        metavar="N",
        help=f"maximum number of rows (default: {ROW_LIMIT}; all with --json)",
    ),
    json_option("one object a line"),
)
"""The options of `print_rows`."""

STORES = group(
    "stores",
    "settings to reach the store; by default S3, Google Cloud Storage and Azure are configured as for the tools of these clouds, HDFS by HADOOP_CONF_DIR",
    list_option(
        "--conf",
        "KEY=VALUE",
        "Spark setting of the job, such as spark.hadoop.fs.s3a.endpoint=https://store:9000; may be repeated",
    ),
    _properties_file,
)
"""The settings of stores."""


def split_pair(name: str, text: str, form: str, *, at_last: bool = False) -> tuple[str, str]:
    """Split the value of an option at its first or last `=`.

    `form` is for the error, as in `OLD=NEW, such as …`. Raises `InvalidRequestError` if a part is missing.
    """
    first, _, second = text.rpartition("=") if at_last else text.partition("=")
    if not first or not second:
        raise InvalidRequestError(f"{name} takes {form}, got {text!r}")
    return first, second


@contextmanager
def require_spark() -> Iterator[None]:
    """Explain how to install PySpark if an import in the block fails.

    Commands import PySpark in such a block, and not at the top of a module: most commands do not need it.

    Raises:
        InvalidRequestError: PySpark is not installed, or too old.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = (
            f"this command needs {error.name}, which is not installed: "
            "pip install 'holdfast[spark]'"
        )
        raise InvalidRequestError(message) from error
    except ImportError as error:
        raise InvalidRequestError(str(error)) from error


class NothingFoundError(Exception):
    """There is no such checkpoint: the command ends with the status for that."""


@contextmanager
def exit_if_missing() -> Iterator[None]:
    """End the command with the status for "nothing found" if the block finds no checkpoint."""
    try:
        yield
    except CheckpointNotFoundError as error:
        raise NothingFoundError(str(error)) from error


def configuration(options: argparse.Namespace) -> dict[str, str]:
    """Return the configuration of Spark in the options.

    Raises:
        InvalidRequestError: An option is not KEY=VALUE, or a key looks like a setting of Holdfast and does not exist;
            or the file can't be read; or PySpark, which has the list of settings, is not installed.
    """
    settings = {}
    if options.properties_file is not None:
        file = Path(options.properties_file)
        try:
            settings = parse_properties(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"settings can't be read ({error})", str(file)) from error
    for pair in options.conf:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            # The message must not have the text: it may be a secret.
            raise InvalidRequestError("--conf takes KEY=VALUE, such as --conf spark.key=value")
        settings[key.strip()] = value.strip()
    if settings:
        with require_spark():
            from holdfast.spark.settings import check_settings  # noqa: PLC0415  # only --conf needs it
        check_settings(settings)
    return settings


def configure_stores(options: argparse.Namespace, *uris: str | None) -> dict[str, str]:
    """Configure the stores of some URIs by the options, and return the configuration.

    Raises:
        InvalidRequestError: As for `configuration`, or a value is not valid.
    """
    settings = configuration(options)
    if settings:
        from holdfast.spark.settings import Stores  # noqa: PLC0415  # needs PySpark

        Stores.parse(settings, *uris).use()
    return settings


def resolve_checkpoint(options: argparse.Namespace, pointer: str) -> CompletedCheckpoint:
    """Return the checkpoint that a pointer refers to, and configure the stores of all its files.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        CheckpointError: The checkpoint can't be read.
    """
    configure_stores(options, pointer)
    checkpoint = find_checkpoint(pointer)
    configure_stores(options, *directories_of(checkpoint))
    return checkpoint


def retry_if_deleted(
    options: argparse.Namespace,
    pointer: str,
    checkpoint: CompletedCheckpoint,
    use: Callable[[CompletedCheckpoint], _Result],
) -> _Result:
    """Use a checkpoint, held by a lease; start over with a newer one each time that its job deletes it in the meantime.

    Args:
        options: The command's options.
        pointer: The pointer that the user gave.
        checkpoint: The checkpoint that it refers to.
        use: Reads the checkpoint. It must have no effect if a file is missing.

    Raises:
        CheckpointNotFoundError: The pointer refers to this checkpoint only, and it was deleted; or one of its files is
            missing; or the job deletes each newer checkpoint, too.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            with hold_checkpoint(checkpoint.location.external_pointer):
                return use(checkpoint)
        except CheckpointNotFoundError as error:
            if not is_gone(checkpoint):
                raise
            deleted = checkpoint.location.external_pointer
            try:
                checkpoint = resolve_checkpoint(options, pointer)
            except CheckpointNotFoundError:
                raise deleted_error(deleted) from error
            print_status(
                f"{deleted} was deleted by its job while it was read; starting over with the newest"
            )
    message = (
        "the job deletes checkpoints faster than they can be read; keep more of them "
        "(spark.holdfast.checkpoint.num-retained), or take a savepoint"
    )
    raise CheckpointNotFoundError(message, pointer)


def claimant_values(pointer: str) -> dict[str, Any] | None:
    """Return the job that has claimed a checkpoint, as in the JSON of all commands; None if it is not claimed."""
    claimant = read_claim(pointer)
    if claimant is None:
        return None
    return {
        "job": claimant.job_id,
        "directory": claimant.directory,
        "claimed": iso_time(claimant.claimed_ms),
    }
