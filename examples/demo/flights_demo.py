"""The demo's first job: flights go out in files of one size. Each has to be there once."""

import time
from pathlib import Path

from rich.console import Console

from examples.demo.account import print_account
from examples.demo.check import (
    blind_spots,
    file_differences,
    output_files,
    read_output,
    row_differences,
    run_differences,
)
from examples.demo.display import Display
from examples.demo.flights import in_order_of_departure, read_flights, write_stream
from examples.demo.kills import Progress
from examples.demo.places import FLIGHTS, Places
from examples.demo.runs import run_to_the_end
from examples.flights_job import ROWS_PER_FILE

N_FILES = 24
"""Files of the stream; each is a micro-batch."""


def demonstrate_flights(root: Path, store: str | None, console: Console) -> list[str]:
    """Make the stream, run the job over it, kill it, print; returns what is wrong, as sentences."""
    began = time.monotonic()
    places = Places(root / FLIGHTS.name, FLIGHTS, store)
    source = read_flights()
    write_stream(in_order_of_departure(source), places, N_FILES, hold_back=True)
    console.print(
        f"{len(source):,} flights in {N_FILES} files are the stream of the first job, which"
    )
    console.print(f"puts them into files of {ROWS_PER_FILE:,}: operator state", end="\n\n")
    with Display(console, batches=N_FILES) as display:
        runs = run_to_the_end(places, display.on_batch, display.on_run)
    batches = Progress(places).next_batch()
    files = output_files(places.outputs[0])
    output = read_output(files)
    full = sum(file.rows == ROWS_PER_FILE for file in files)
    figures = {
        "rows in": f"{len(source):,}",
        "rows out": f"{len(output):,}",
        "files": f"{len(files)}: {full} of exactly {ROWS_PER_FILE:,} rows, "
        f"{len(files) - full} with the rest",
        "batches": f"{batches}",
    }
    print_account(console, places, runs, figures, began=began)
    wrong = [
        *blind_spots(source, "dep_delay"),
        *row_differences(source, output),
        *file_differences(files, rows_per_file=ROWS_PER_FILE, last_batch=N_FILES - 1),
        *run_differences(runs),
    ]
    if batches != N_FILES:
        wrong.append(f"Spark has noted {batches} batches, not {N_FILES}")
    return wrong
