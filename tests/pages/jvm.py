"""One JVM for the programs of all pages. Each is a driver of its own in it, one after the other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

from jobs.job import LOCAL
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class SharedJvm:
    """A JVM without a Spark in it.

    Attributes:
        environment: Variables of a program that starts its Spark here, instead of in a JVM of its own.
    """

    environment: dict[str, str]
    _gateway: Any

    def stop_spark(self) -> None:
        """Stop what the last program has left running, as the end of its JVM would."""
        sessions = self._gateway.jvm.org.apache.spark.sql.classic.SparkSession
        session = sessions.getDefaultSession()
        if session.isDefined():
            session.get().sparkContext().stop()


@contextmanager
def shared_jvm(directory: Path) -> Iterator[SharedJvm]:
    """A JVM for the block; what it says is in a file `jvm.log` of the directory."""
    settings = SparkConf(loadDefaults=False)
    for key, value in LOCAL.items():
        settings.set(key, value)
    python_path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
    with open(directory / "jvm.log", "wb") as log:
        with mock.patch.dict(os.environ, PYTHONPATH=python_path):
            gateway = cast("Any", launch_gateway)(
                settings, popen_kwargs={"cwd": directory, "stdout": log, "stderr": log}
            )
        try:
            yield SharedJvm(
                {
                    "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
                    "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
                },
                gateway,
            )
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM ends
            gateway.proc.wait()
