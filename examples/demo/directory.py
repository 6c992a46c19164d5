"""The directory that the demo works in: the user's, or a temporary one."""

import shutil
import tempfile
from pathlib import Path

_MARKER = ".holdfast-demo"
"""A file that marks the directory as the demo's, so that it may be reused."""


class DirectoryInUseError(Exception):
    """The directory holds something that is not the demo's."""


def make_directory(directory: Path | None) -> Path:
    """Make the demo's directory, empty except for its marker.

    Args:
        directory: One that is absent, empty, or an earlier demo's, whose files are deleted; None
            for a temporary one.

    Raises:
        DirectoryInUseError: It contains other files, or is not a directory.
    """
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="holdfast-demo-")).resolve()
    else:
        root = directory.resolve()
        _clear(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / _MARKER).write_text("python -m examples.demo may delete what is in this directory\n")
    return root


def _clear(root: Path) -> None:
    if not root.exists():
        return
    if not root.is_dir():
        raise DirectoryInUseError(f"{root} is not a directory")
    marker = root / _MARKER
    if any(root.iterdir()) and not marker.exists():
        message = (
            f"{root} is not empty and no earlier demo's; name another directory, which is "
            "absent or empty"
        )
        raise DirectoryInUseError(message)
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:  # the marker is kept
            path.unlink()
