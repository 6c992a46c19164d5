"""A Spark with Delta and Iceberg, in a separate process: tests share a Spark without them."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from contracts.patience import RUN_HANGS_S
from jobs.tables import start_spark
from servers import infra

P = ParamSpec("P")
T = TypeVar("T")


class TableSpark:
    """Calls functions in the process of the Spark."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that is found by its name; its error is raised here."""
        return self._pool.submit(function, *args, **kwargs).result(RUN_HANGS_S)


@contextmanager
def table_spark(jars: Path, warehouse: Path) -> Iterator[TableSpark]:
    """Start the process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, start_spark, (jars, warehouse)) as pool:
        yield TableSpark(pool)


@pytest.fixture(scope="session")
def table_jars() -> Path:
    """The directory of the jars of Delta and Iceberg, if they can be had."""
    built = infra.call("tables", "build")
    if built.returncode == infra.UNAVAILABLE:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip().removeprefix("jars="))
