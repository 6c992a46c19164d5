"""The golden files of real Flink jobs in `tests/data/flink`, which `infra/flink` writes."""

import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).parents[1] / "data" / "flink"


def extract(directory: Path, *names: str) -> Path:
    """Extract archives into a directory, and return it."""
    for name in names:
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
    return directory
