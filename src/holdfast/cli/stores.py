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
        InvalidRequestError: One is no KEY=VALUE, or no setting of Holdfast's though it looks like
            one; the file can't be read; or PySpark isn't there to say which settings there are.
    """
    found = {} if options.properties_file is None else _properties(Path(options.properties_file))
    for one in options.conf:
        key, equals, value = one.partition("=")
        if not equals or not key.strip():
            # Not the text itself: it may be a secret.
            raise InvalidRequestError("--conf takes KEY=VALUE, such as --conf spark.key=value")
        found[key.strip()] = value.strip()
    if found:
        with spark_needed():
            from holdfast.spark.settings import check_known  # noqa: PLC0415
        check_known(found)
    return found


def use_stores(options: argparse.Namespace, *uris: str | None) -> dict[str, str]:
    """Reach the stores of some URIs as the options say; the configuration.

    Raises:
        InvalidRequestError: As `configuration`, or a value can't be used.
    """
    found = configuration(options)
    if found:
        from holdfast.spark.settings import Stores  # noqa: PLC0415  # needs PySpark

        Stores.parse(found, *uris).use()
    return found


def _properties(file: Path) -> dict[str, str]:
    """Settings in a file of Spark's."""
    try:
        return parsed(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"settings can't be read ({error})", str(file)) from error
