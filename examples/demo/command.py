"""The command of a demonstration: its directory, its signals and its exit code."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from examples.demo.runs import JobFailedError
from examples.demo.servers import NoServerError

_MARKER = ".holdfast-demo"
"""A file that marks the directory as the demo's, so that it may be reused."""


class _DirectoryInUseError(Exception):
    """The directory holds something that is not the demo's."""


def run_demonstration(
    parser: argparse.ArgumentParser,
    directory: Path | None,
    demonstrate: Callable[[Path, Console], bool],
    *,
    kept: str,
) -> int:
    """Run a demonstration, and return the exit code.

    Args:
        parser: Reports a directory that can't be used.
        directory: The directory for all files, which are kept; None for a temporary one, which is only kept if
            anything differs.
        demonstrate: Returns whether all is right.
        kept: Names what is in the directory.
    """
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    # So that the processes and the directory are cleaned up then, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        root = _make_directory(directory)
    except _DirectoryInUseError as error:
        parser.error(str(error))
    status = 1
    try:
        status = int(not demonstrate(root, console))
    except JobFailedError as error:
        console.print(str(error), style="red", markup=False)
    except NoServerError as error:
        status = 3
        console.print(str(error), style="red", markup=False)
    except KeyboardInterrupt:
        status = 130
        console.print("interrupted")
    finally:
        for scratch in root.glob("*/scratch"):
            shutil.rmtree(scratch, ignore_errors=True)
        if directory is None and status != 1:
            shutil.rmtree(root)
        else:
            console.print(f"{kept} are in {root}")
    return status


def _make_directory(directory: Path | None) -> Path:
    """Make the demo's directory, empty except for its marker.

    Args:
        directory: One that is absent, empty, or an earlier demo's, whose files are deleted; None
            for a temporary one.

    Raises:
        _DirectoryInUseError: It contains other files, or is not a directory.
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
        raise _DirectoryInUseError(f"{root} is not a directory")
    marker = root / _MARKER
    if any(root.iterdir()) and not marker.exists():
        message = (
            f"{root} is not empty and no earlier demo's; name another directory, which is "
            "absent or empty"
        )
        raise _DirectoryInUseError(message)
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:  # the marker is kept
            path.unlink()
