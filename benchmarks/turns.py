"""Engines take turns, round by round: what that costs each of them, and the tables of it."""

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
    """An engine can't be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one action took: seconds by the clock, and of all processors in the engine's process."""

    wall_s: float
    cpu_s: float


Rounds = list[dict[str, dict[str, Cost]]]
"""By round, name of the engine and action."""

_UNITS: dict[str, Callable[[Cost], float]] = {
    "s": lambda cost: cost.wall_s,
    "CPU s": lambda cost: cost.cpu_s,
}


def timed(action: Callable[[], T]) -> tuple[Cost, T]:
    """The cost of an action in this process, and its result."""
    gc.collect()  # nobody pays for what another one left behind
    cpu, wall = time.process_time(), time.perf_counter()
    result = action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), result


def timed_in_threads(
    threads: int, action: Callable[[Any], T], items: Iterable[Any]
) -> tuple[Cost, list[T]]:
    """The cost of an action on all items, so many at a time, and its results in their order."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.01] * threads))  # all threads run
        return timed(lambda: list(pool.map(action, items)))


def take_turns(
    engines: dict[str, T],
    costs_of: Callable[[T], dict[str, Cost]],
    rounds: int,
    titles: Mapping[str, str],
    *,
    after_round: Callable[[], object] = lambda: None,
) -> Rounds:
    """Let every engine work once in each round; another one begins each time.

    Args:
        engines: By name. Those that fail are removed, with their costs.
        costs_of: Lets one of them work; the costs by action.
        rounds: How many.
        titles: What to call the engines.
        after_round: Cleans up, when nobody works.
    """
    rounds_: Rounds = []
    for number in range(rounds):
        names = list(engines)
        turn = number % max(1, len(names))
        rounds_.append({})
        for name in names[turn:] + names[:turn]:
            os.sync()  # nobody waits for what another one has written
            with left_out_on_failure(titles[name], name, engines):
                rounds_[-1][name] = costs_of(engines[name])
        after_round()
    return [{name: costs[name] for name in engines} for costs in rounds_]


@contextmanager
def left_out_on_failure(title: str, name: str, remaining: dict[str, Any]) -> Iterator[None]:
    """Say why an engine takes no part any more, if it fails in the block."""
    try:
        yield
    except LeftOutError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  # the others go on
        reason = reason_of(error)
    else:
        return
    remaining.pop(name, None)
    print(f"{title} is left out: {reason}", flush=True)


def reason_of(error: BaseException) -> str:
    """What went wrong, on one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:300]}"


def in_fresh_process(work: Callable[..., T], *arguments: Any) -> T:
    """What a function returns in a process of its own.

    Raises:
        LeftOutError: It failed there.
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
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        sender.send((None, reason_of(error)))


def peak_growth_bytes(action: Callable[[], T]) -> tuple[int, T]:
    """By how much this process grows at most during an action, and the action's result."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # its peak begins anew at what is resident
    begin = _memory_bytes("VmRSS")
    result = action()
    return _memory_bytes("VmHWM") - begin, result


def _memory_bytes(name: str) -> int:
    (kibibytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10


def some_of(known: Mapping[str, T]) -> Callable[[str], list[T]]:
    """A type for argparse: names with commas between them, in the order in which they are known."""

    def parsed(text: str) -> list[T]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return [value for name, value in known.items() if name in text.split(",")]

    return parsed


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
