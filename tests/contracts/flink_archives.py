"""The golden files of real jobs of Flink: `tests/data/flink`, which `infra/flink` makes."""

import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).parents[1] / "data" / "flink"


def extracted(directory: Path, *names: str) -> Path:
    """The directory, with the files of these archives in it."""
    for name in names:
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
    return directory
