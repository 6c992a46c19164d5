"""The jars of Delta and Iceberg."""

from pathlib import Path

import pytest
from servers import infra


@pytest.fixture(scope="session")
def table_jars() -> Path:
    """The directory of the jars of Delta and Iceberg, if they can be had."""
    built = infra.call("tables", "build")
    if built.returncode == infra.UNAVAILABLE:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip().removeprefix("jars="))
