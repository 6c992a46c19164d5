"""Kill two real streams in the middle of their batches, start them again, and check every row.

    python -m examples.demo [--dir DIR] [--storage local|s3|gcs|azure|hdfs]

Ends with 0 if nothing was lost and nothing doubled, 1 if anything differs, 2 for wrong usage, 3 if
the storage's server can't be had here.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from examples.demo.command import run_demonstration
from examples.demo.fleet_demo import demonstrate_fleet
from examples.demo.flights_demo import demonstrate_flights
from examples.demo.servers import SERVERS

_ALL = "source, output, checkpoints and logs"


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

    def run(root: Path, console: Console) -> bool:
        with SERVERS.get(options.storage, nullcontext)() as store:
            return demonstrate(root, store, console)

    kept = "source, output and logs" if options.storage in SERVERS else _ALL
    return run_demonstration(parser, options.dir, run, kept=kept)


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


if __name__ == "__main__":
    sys.exit(main())
