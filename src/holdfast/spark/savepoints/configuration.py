"""The parts of Spark's configuration that savepoints use: the stores, and the directory of savepoints."""

from collections.abc import Mapping
from os import PathLike

from holdfast.common import checkpoint_directory
from holdfast.errors import InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.settings import Settings, Stores, check_known, is_of_stores


def configuration_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """Spark's configuration: what was given, or that of the session, if there is one.

    Raises:
        InvalidRequestError: A key looks like a setting of Holdfast and is none.
    """
    configuration = sessions.configuration() if given is None else dict(given)
    check_known(configuration)
    return configuration


def use_stores(configuration: Mapping[str, str], *uris: str | None) -> None:
    """Reach what is at those URIs as Spark's configuration says, if it says anything of stores."""
    if any(is_of_stores(key) for key in configuration):
        Stores.parse(configuration, *uris).use()


def savepoint_directory(
    target: str | PathLike[str] | None, configuration: Mapping[str, str]
) -> str:
    """The directory to make a savepoint in: the target, or what Spark's configuration names.

    Raises:
        InvalidRequestError: Neither names one, or it can't be a directory of savepoints.
    """
    directory = target or Settings.parse(configuration).savepoint_dir
    if directory is None:
        message = "no savepoint directory: name one, or set spark.holdfast.savepoint.dir"
        raise InvalidRequestError(message)
    return checkpoint_directory(directory)
