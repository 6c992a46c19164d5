"""The demo's second job: keyed state, whose output must equal that of a plain query over all flights."""

import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from examples.demo.account import print_account, table_of
from examples.demo.check import run_differences
from examples.demo.display import Display
from examples.demo.fleet_check import expected_results, fleet_differences, read_results
from examples.demo.flights import in_order_of_departure, read_flights, write_stream
from examples.demo.kills import Progress
from examples.demo.places import FLEET, Places
from examples.demo.runs import run_to_the_end
from examples.fleet_job import GROUNDED_AFTER, SESSION_GAP

N_FILES = 12
"""Files of the stream. Each is a micro-batch, and one more follows for timers."""
_AIRCRAFT_SHOWN = 4


def demonstrate_fleet(root: Path, store: str | None, console: Console) -> list[str]:
    """Make the stream, run the job over it, kill it, print; returns what is wrong, as sentences."""
    began = time.monotonic()
    places = Places(root / FLEET.name, FLEET, store)
    source = read_flights()
    write_stream(in_order_of_departure(source), places, N_FILES)
    console.print(
        f"the same flights in {N_FILES} files are the stream of the second job, which keeps"
    )
    console.print("delays, sessions and timers of each aircraft: keyed state", end="\n\n")
    with Display(console, batches=N_FILES + 1) as display:
        runs = run_to_the_end(places, display.on_batch, display.on_run)
    results = read_results(places)
    console.print(_aircraft(results))
    figures = {
        "flights in": f"{len(source):,}",
        "delays": f"of {len(results['delays']):,} aircraft on routes",
        "sessions": f"{len(results['sessions']):,}, with {SESSION_GAP.days} days between them",
        "timers": f"{len(results['grounded']):,} reports of aircraft that have not flown for "
        f"{GROUNDED_AFTER.days} days",
        "batches": f"{Progress(places).next_batch()}",
    }
    print_account(console, places, runs, figures, began=began)
    return [*fleet_differences(expected_results(source), results), *run_differences(runs)]


def _aircraft(results: Mapping[str, pa.Table]) -> Table:
    """The busiest aircraft of those that were reported, and what the job has written of them."""
    table = table_of("Some aircraft")
    table.add_column("aircraft")
    table.add_column("busiest route")
    for heading in ("flights", "mean delay", "greatest", "sessions", "reports"):
        table.add_column(heading, justify="right")
    table.add_column("last one from")
    delays = results["delays"].sort_by([("flights", "descending")])
    reported = pc.unique(results["grounded"]["tailnum"])
    busiest = delays.filter(pc.is_in(delays["tailnum"], reported))
    for route in busiest.slice(0, _AIRCRAFT_SHOWN).to_pylist():
        of_aircraft = pc.field("tailnum") == route["tailnum"]
        reports = results["grounded"].filter(of_aircraft)
        table.add_row(
            route["tailnum"],
            f"{route['origin']} to {route['dest']}",
            f"{route['flights']}",
            f"{route['mean']:.1f} min",
            f"{route['greatest']} min",
            f"{len(results['sessions'].filter(of_aircraft))}",
            f"{len(reports)}",
            f"{pc.max(reports['last_flight']).as_py():%d %B}",
        )
    return table
