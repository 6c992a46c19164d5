"""The directory that the demo works in: the user's, or a temporary one."""

import shutil
import tempfile
from pathlib import Path

from examples._places import Places


class DirectoryInUseError(Exception):
    """The directory holds something that is not the demo's."""


def make_places(directory: Path | None) -> Places:
    """Make the demo's directory, empty but for its marker.

    Args:
        directory: One that is absent, empty, or an earlier demo's, whose files are deleted; None
            for a temporary one.

    Raises:
        DirectoryInUseError: It holds something else, or is no directory.
    """
    if directory is None:
        places = Places(Path(tempfile.mkdtemp(prefix="holdfast-demo-")).resolve())
    else:
        places = Places(directory.resolve())
        _clear(places)
    places.root.mkdir(parents=True, exist_ok=True)
    places.marker.write_text("python -m examples.demo may delete what is in this directory\n")
    return places


def _clear(places: Places) -> None:
    if not places.root.exists():
        return
    if not places.root.is_dir():
        raise DirectoryInUseError(f"{places.root} is no directory")
    if any(places.root.iterdir()) and not places.marker.exists():
        message = (
            f"{places.root} is not empty and no earlier demo's; name another directory, which is "
            "absent or empty"
        )
        raise DirectoryInUseError(message)
    for path in places.root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != places.marker:  # it goes on saying whose it is
            path.unlink()
