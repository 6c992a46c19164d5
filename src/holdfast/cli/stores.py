"""How commands reach stores: as jobs do, by Spark's settings, or by the environment alone."""

import argparse
from pathlib import Path

from holdfast.cli.command import complete_files
from holdfast.cli.properties_file import parsed
from holdfast.cli.spark import spark_needed
from holdfast.errors import InvalidRequestError


def add_stores(command: argparse.ArgumentParser) -> None:
    """Add the options that say how stores are reached."""
    group = command.add_argument_group(
        "stores", "without these, S3 is reached as the AWS tools do, HDFS by HADOOP_CONF_DIR"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the job's Spark, such as spark.hadoop.fs.s3a.endpoint; may be repeated",
    )
    complete_files(
        group.add_argument(
            "--properties-file",
            metavar="FILE",
            help="more of them, in a file like spark-defaults.conf",
        )
    )


def configuration(options: argparse.Namespace) -> dict[str, str]:
    """Spark's configuration as the options give it.

    Raises:
        InvalidRequestError: An option is not KEY=VALUE, or a setting of Holdfast is not valid;
            the file can't be read; or PySpark, which knows the settings, isn't installed.
    """
    settings = {} if options.properties_file is None else _properties(Path(options.properties_file))
    for pair in options.conf:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            # Not the text itself: it may be a secret.
            raise InvalidRequestError("--conf takes KEY=VALUE, such as --conf spark.key=value")
        settings[key.strip()] = value.strip()
    if settings:
        with spark_needed():
            from holdfast.spark.settings import check_settings  # noqa: PLC0415
        check_settings(settings)
    return settings


def use_stores(options: argparse.Namespace, *uris: str | None) -> dict[str, str]:
    """Reach the stores of some URIs as the options say, and return the configuration.

    Raises:
        InvalidRequestError: As `configuration`, or a value can't be used.
    """
    settings = configuration(options)
    if settings:
        from holdfast.spark.settings import Stores  # noqa: PLC0415  # needs PySpark

        Stores.parse(settings, *uris).use()
    return settings


def _properties(file: Path) -> dict[str, str]:
    """The settings in a file such as spark-defaults.conf."""
    try:
        return parsed(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"settings can't be read ({error})", str(file)) from error
