"""Kill a real stream in the middle of its batches, start it again, and check every row.

    python -m examples.demo [--dir DIR] [--storage local|s3|hdfs]

Ends with 0 if nothing was lost and nothing doubled, 1 if anything differs, 2 for wrong usage, 3 if
the storage's server can't be had here.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from examples._account import Account, retained_checkpoints
from examples._check import (
    OutputFile,
    blind_spots,
    file_differences,
    output_files,
    read_output,
    row_differences,
    run_differences,
)
from examples._directory import DirectoryInUseError, make_places
from examples._display import Display
from examples._flights import N_FILES, in_order_of_departure, read_flights, write_stream
from examples._places import Places
from examples._progress import Progress
from examples._runs import JobFailedError, Run, run_to_the_end
from examples._servers import SERVERS, NoServerError
from examples.flights_job import ROWS_PER_FILE

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
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    # So that the processes and the directory are cleaned up then, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        places = make_places(options.dir)
    except DirectoryInUseError as error:
        parser.error(str(error))
    status = 1
    try:
        with SERVERS.get(options.storage, nullcontext)() as store:
            status = int(not demonstrate(replace(places, store=store), console))
    except JobFailedError as error:
        console.print(str(error), style="red", markup=False)
    except NoServerError as error:
        status = 3
        console.print(str(error), style="red", markup=False)
    except KeyboardInterrupt:
        status = 130
        console.print("interrupted")
    finally:
        shutil.rmtree(places.scratch, ignore_errors=True)
        if options.dir is None and status != 1:
            shutil.rmtree(places.root)
        else:
            kept = "source, output and logs" if options.storage in SERVERS else _ALL
            console.print(f"{kept} are in {places.root}")
    return status


def demonstrate(places: Places, console: Console) -> bool:
    """Make the stream, run the job over it, kill it, compare and print; True if all is right."""
    started = time.monotonic()
    source = read_flights()
    write_stream(in_order_of_departure(source), places)
    console.print(f"{len(source):,} flights in {N_FILES} files are the stream; starting the job")
    if places.store:
        s3 = os.environ.get("AWS_ENDPOINT_URL_S3") if places.store.startswith("s3:") else None
        console.print(f"checkpoints go to {places.store}{f' at {s3}' if s3 else ''}")
    with Display(console, batches=N_FILES) as display:
        runs = run_to_the_end(places, display.on_batch, display.on_run)
    batches = Progress(places).next_batch()
    files = output_files(places.output)
    output = read_output(files)
    wrong = differences(source, output, files, runs)
    if batches != N_FILES:
        wrong.append(f"Spark has noted {batches} batches, not {N_FILES}")
    Account(
        rows_in=len(source),
        rows_out=len(output),
        batches=batches,
        rows_per_file=ROWS_PER_FILE,
        files=files,
        runs=runs,
        retained=retained_checkpoints(places),
        seconds=time.monotonic() - started,
    ).print_on(console)
    for sentence in wrong:
        console.print(f"WRONG: {sentence}", style="bold red", markup=False)
    if not wrong:
        console.print("every flight is there, once; nothing lost, nothing doubled", style="green")
    return not wrong


def differences(
    source: pa.Table, output: pa.Table, files: Sequence[OutputFile], runs: Sequence[Run]
) -> list[str]:
    """All that is not as it has to be, as sentences."""
    return [
        *blind_spots(source),
        *row_differences(source, output),
        *file_differences(files, rows_per_file=ROWS_PER_FILE, last_batch=N_FILES - 1),
        *run_differences(runs),
    ]


if __name__ == "__main__":
    sys.exit(main())
