"""Shared by commands for queries on Spark."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import InvalidRequestError


@contextmanager
def spark_needed() -> Iterator[None]:
    """Say what to install if an import in the block fails.

    Commands import PySpark in such a block, and not at the top: the other commands need none.

    Raises:
        InvalidRequestError: PySpark is not installed, or too old.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = (
            f"this is about queries on Spark, and there is no {error.name} here; "
            "pip install 'holdfast[spark]'"
        )
        raise InvalidRequestError(message) from error
    except ImportError as error:
        raise InvalidRequestError(str(error)) from error


def add_job(command: argparse.ArgumentParser, where: str) -> None:
    """Add options that say where the operators of a query have their checkpoints.

    Args:
        command: The command.
        where: Text for the help: where checkpoints are looked for without the options.
    """
    group = command.add_argument_group("state of operators", where)
    group.add_argument("--checkpoint-dir", metavar="URI", help="directory of their checkpoints")
    group.add_argument("--job-id", metavar="JOB", help="their job")


def add_no_operators(command: argparse.ArgumentParser) -> None:
    """Add `--no-operators`."""
    command.add_argument(
        "--no-operators",
        dest="operators",
        action="store_false",
        help="pass over operators that the query had once, and has gone on without "
        "(operators=False in Python)",
    )
