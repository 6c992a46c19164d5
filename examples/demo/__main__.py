"""Kill two real streams in the middle of their batches, start them again, and check every row.

    python -m examples.demo [--dir DIR] [--storage local|s3|azure|hdfs]

Ends with 0 if nothing was lost and nothing doubled, 1 if anything differs, 2 for wrong usage, 3 if
the storage's server can't be had here.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from examples.demo.fleet_demo import demonstrate_fleet
from examples.demo.flights_demo import demonstrate_flights
from examples.demo.runs import JobFailedError
from examples.demo.servers import SERVERS, NoServerError

_ALL = "source, output, checkpoints and logs"
_MARKER = ".holdfast-demo"
"""A file that marks the directory as the demo's, so that it may be reused."""


class _DirectoryInUseError(Exception):
    """The directory holds something that is not the demo's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, help="keep source, output, checkpoints and logs here")
    parser.add_argument(
        "--storage",
        choices=["local", *SERVERS],
        default="local",
        help="where the checkpoints go: below --dir, or to a server that is started for it",
    )
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    # So that the processes and the directory are cleaned up then, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        root = _make_directory(options.dir)
    except _DirectoryInUseError as error:
        parser.error(str(error))
    status = 1
    try:
        with SERVERS.get(options.storage, nullcontext)() as store:
            status = int(not demonstrate(root, store, console))
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
        if options.dir is None and status != 1:
            shutil.rmtree(root)
        else:
            kept = "source, output and logs" if options.storage in SERVERS else _ALL
            console.print(f"{kept} are in {root}")
    return status


def demonstrate(root: Path, store: str | None, console: Console) -> bool:
    """Run both jobs, kill them, and print what they did; True if all is right."""
    started = time.monotonic()
    if store:
        s3 = os.environ.get("AWS_ENDPOINT_URL_S3") if store.startswith("s3:") else None
        console.print(f"checkpoints go to {store}{f' at {s3}' if s3 else ''}")
    is_right = True
    for show, sentence in (
        (demonstrate_flights, "every flight is there, once; nothing lost, nothing doubled"),
        (demonstrate_fleet, "every figure, session and report equals the result of a plain query"),
    ):
        wrong = show(root, store, console)
        for difference in wrong:
            console.print(f"WRONG: {difference}", style="bold red", markup=False)
        if not wrong:
            console.print(sentence, style="green", end="\n\n")
        is_right = is_right and not wrong
    console.print(f"both jobs took {time.monotonic() - started:.0f} s")
    return is_right


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


if __name__ == "__main__":
    sys.exit(main())
