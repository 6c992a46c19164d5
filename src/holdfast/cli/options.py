"""Options that commands share: how a command is added, and how its stores and checkpoints are found."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import shtab

from holdfast.cli.output import print_status
from holdfast.cli.properties_file import parse_properties
from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import find_checkpoint, is_gone, read_claim
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import directories_of, iso_time

if TYPE_CHECKING:  # argparse has no public name for it
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

_Result = TypeVar("_Result")

_MAX_ATTEMPTS = 20

POINTER_HELP = (
    "URI of the directory of a checkpoint or savepoint, or of its _metadata; of a job or a "
    "checkpoint directory, for the newest checkpoint there"
)


def add_command(
    commands: "Commands",
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,  # as argparse calls it
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a command, and return it, so that its options can be added.

    Args:
        commands: The command line's list of commands.
        name: Name of the command.
        run: Runs the command; returns the exit status.
        help: A line for the help of all commands.
        description: Text of the command's own help.
        examples: Command lines, one a line, shown after the options.
    """
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_json(command: argparse.ArgumentParser, content: str) -> None:
    """Add `--json`; the content is described as in `one object a checkpoint`."""
    command.add_argument("--json", action="store_true", help=f"print JSON, {content}")


def add_job(command: argparse.ArgumentParser, default: str) -> None:
    """Add the options for the checkpoints of a query's operators, with a description of their default."""
    group = command.add_argument_group("state of operators", default)
    group.add_argument("--checkpoint-dir", metavar="URI", help="directory of their checkpoints")
    group.add_argument("--job-id", metavar="JOB", help="their job")


def add_no_operators(command: argparse.ArgumentParser) -> None:
    """Add `--no-operators`."""
    command.add_argument(
        "--no-operators",
        dest="operators",
        action="store_false",
        help="ignore operators that the query had once and no longer has (operators=False in Python)",
    )


def add_stores(command: argparse.ArgumentParser) -> None:
    """Add the options with settings of stores."""
    group = command.add_argument_group(
        "stores", "without these, S3 is configured as for the AWS tools, HDFS by HADOOP_CONF_DIR"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the job's Spark, such as spark.hadoop.fs.s3a.endpoint; may be repeated",
    )
    file = group.add_argument(
        "--properties-file",
        metavar="FILE",
        help="a file with such settings, like spark-defaults.conf",
    )
    file.complete = shtab.FILE  # type: ignore[attr-defined]  # as shtab has it


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
            f"the command is for queries on Spark, and {error.name} is not installed; "
            "pip install 'holdfast[spark]'"
        )
        raise InvalidRequestError(message) from error
    except ImportError as error:
        raise InvalidRequestError(str(error)) from error


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
            from holdfast.spark.settings import check_settings  # noqa: PLC0415
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
    """Use a checkpoint; start over with a newer one each time that its job deletes it in the meantime.

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
            return use(checkpoint)
        except CheckpointNotFoundError as error:
            if not is_gone(checkpoint):
                raise
            deleted = checkpoint.location.external_pointer
            try:
                checkpoint = resolve_checkpoint(options, pointer)
            except CheckpointNotFoundError:
                message = (
                    "the job deleted this checkpoint while it was read; name the job's directory "
                    f"for its newest checkpoint, {uripath.parent(deleted)}"
                )
                raise CheckpointNotFoundError(message, deleted) from error
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
