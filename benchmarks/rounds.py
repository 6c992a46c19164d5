"""Rounds in which every engine runs once: their costs, and the tables of the figures."""

import argparse
import gc
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class LeftOutError(Exception):
    """An engine is unavailable or failed; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one action: wall-clock seconds, and CPU seconds of all threads of the engine's process."""

    wall_s: float
    cpu_s: float


Rounds = list[dict[str, dict[str, Cost]]]
"""By round, name of the engine and action."""

_UNITS: dict[str, Callable[[Cost], float]] = {
    "s": lambda cost: cost.wall_s,
    "CPU s": lambda cost: cost.cpu_s,
}


def time_action(action: Callable[[], T]) -> tuple[Cost, T]:
    """Return the cost of an action in this process, and its result."""
    gc.collect()  # no engine pays for the garbage of another
    cpu, wall = time.process_time(), time.perf_counter()
    result = action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), result


def time_in_threads(
    threads: int, action: Callable[[Any], T], items: Iterable[Any]
) -> tuple[Cost, list[T]]:
    """Return the cost of an action on all items, run by a number of threads, and the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.01] * threads))  # all threads run
        return time_action(lambda: list(pool.map(action, items)))


def measure_rounds(
    engines: dict[str, T],
    costs_of: Callable[[T], dict[str, Cost]],
    rounds: int,
    titles: Mapping[str, str],
    *,
    after_round: Callable[[], object] = lambda: None,
) -> Rounds:
    """Run every engine once in each round, starting with a different one.

    Args:
        engines: By name. Failed engines are removed, with their costs.
        costs_of: Runs one engine and returns its costs by action.
        rounds: Number of rounds.
        titles: Titles of the engines.
        after_round: Cleans up between rounds.
    """
    rounds_: Rounds = []
    for number in range(rounds):
        names = list(engines)
        first = number % max(1, len(names))
        rounds_.append({})
        for name in names[first:] + names[:first]:
            os.sync()  # no engine waits for the writes of another
            with left_out_on_failure(titles[name], name, engines):
                rounds_[-1][name] = costs_of(engines[name])
        after_round()
    return [{name: costs[name] for name in engines} for costs in rounds_]


@contextmanager
def left_out_on_failure(title: str, name: str, remaining: dict[str, Any]) -> Iterator[None]:
    """Remove an engine that fails in the block, and print the reason."""
    try:
        yield
    except LeftOutError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  # the others continue
        reason = reason_of(error)
    else:
        return
    remaining.pop(name, None)
    print(f"{title} is left out: {reason}", flush=True)


def reason_of(error: BaseException) -> str:
    """Return type and message of an error on one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:300]}"


def in_fresh_process(work: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process and return its result.

    Raises:
        LeftOutError: The function or its process failed.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_send_result, args=(sender, work, arguments))
    process.start()
    sender.close()
    result: T
    try:
        result, failure = receiver.recv()
    except EOFError:
        failure = "its process ended"
    process.join()
    if failure:
        raise LeftOutError(failure)
    return result


def _send_result(sender: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        sender.send((work(*arguments), ""))
    except Exception as error:  # noqa: BLE001  # the parent reports every error
        sender.send((None, reason_of(error)))


def peak_growth_bytes(action: Callable[[], T]) -> tuple[int, T]:
    """Return the peak growth of this process during an action, and the action's result."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the resident memory
    begin = _memory_bytes("VmRSS")
    result = action()
    return _memory_bytes("VmHWM") - begin, result


def _memory_bytes(name: str) -> int:
    (kibibytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10


def some_of(known: Mapping[str, T]) -> Callable[[str], list[T]]:
    """Return a type for argparse: names separated by commas, in the order of `known`."""

    def parse(text: str) -> list[T]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return [value for name, value in known.items() if name in text.split(",")]

    return parse


def print_times(
    title: str, rounds: Rounds, actions: Iterable[str], titles: Mapping[str, str]
) -> None:
    """Medians, and in brackets the median of the rounds' ratios to the first engine."""
    names = list(rounds[0])
    print_header(f"{title}, median of {len(rounds)}", [titles[name] for name in names])
    for unit, cost in _UNITS.items():
        for action in actions:
            cells = []
            for name in names:
                values = [cost(costs[name][action]) for costs in rounds]
                cell = f"{statistics.median(values):.3f}"
                if name != names[0]:
                    bases = [cost(costs[names[0]][action]) for costs in rounds]
                    ratios = [
                        value / base for value, base in zip(values, bases, strict=True) if base
                    ]
                    cell += f" ({statistics.median(ratios):.2f})" if ratios else ""
                cells.append(cell)
            print_row(f"{action}, {unit}", cells)


def print_header(title: str, names: Iterable[str]) -> None:
    """The first line of a table."""
    print()
    print_row(title, names)


def print_row(title: str, cells: Iterable[str]) -> None:
    """Another line of it."""
    print(f"{title:38}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
