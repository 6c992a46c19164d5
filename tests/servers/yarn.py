"""A ResourceManager and a NodeManager of YARN on loopback.

If they can't run, the tests that request them are skipped with the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers import infra


@dataclass(frozen=True, slots=True)
class YarnCluster:
    """A cluster of one node.

    Attributes:
        conf_dir: Directory of `core-site.xml` and `yarn-site.xml`, for `HADOOP_CONF_DIR`.
        directory: All files of the servers and the containers; the logs of the servers are `resources.log`
            and `node.log`, those of containers are in `logs/`.
    """

    conf_dir: Path
    directory: Path

    def logs(self) -> str:
        """Return the last lines of what each container has written on stderr."""
        files = sorted(self.directory.glob("logs/*/*/stderr"))
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)


@pytest.fixture(scope="session")
def yarn() -> Iterator[YarnCluster]:
    with infra.running("yarn") as known:
        yield YarnCluster(Path(known["conf_dir"]), Path(known["directory"]))
