"""Bad bytes: a reader returns values or Holdfast errors for any stored bytes, in limited time and memory.

    python -m proof.bad_bytes --inputs 2000 --seed 7        2,000 inputs for each reader
    python -m proof.bad_bytes --seconds 600                  ten minutes for each reader

Inputs are the valid ones of `readers`, changed in one to five places: bits, bytes, limits of numeric types,
parts removed, duplicated, or inserted from elsewhere. The same seed gives the same inputs.
"""

import argparse
import itertools
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from holdfast.errors import CheckpointError
from proof.readers import Reader, readers

LONGEST_S = 20
"""A reader that takes longer hangs."""

MAX_GROWTH_BYTES = 512 << 20
"""Maximum growth of a process over all inputs of a reader, for any numbers in them."""

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1)


class HangsError(BaseException):
    """A reader did not end in time; its handlers must not catch this."""


@dataclass(slots=True)
class ReaderOutcome:
    """The outcome of all inputs of a reader.

    Attributes:
        inputs: Number of inputs.
        refused: Number of inputs refused by a Holdfast error.
        escaped: All other errors with the number of the input; each is a violation.
    """

    inputs: int = 0
    refused: int = 0
    escaped: list[str] = field(default_factory=list)


def try_reader(
    reader: Reader, seed: str, *, inputs: int | None = None, seconds: float | None = None
) -> ReaderOutcome:
    """Give changed bytes to a reader, up to a number of inputs or a time limit.

    Args:
        reader: The reader.
        seed: Determines the changes.
        inputs: Number of inputs.
        seconds: Time limit.

    Raises:
        CheckpointError: It can't read a valid input.
    """
    for whole in reader.whole.values():
        reader.read(reader.seal(whole))  # otherwise all inputs would be refused early
    ends_s = None if seconds is None else time.monotonic() + seconds
    numbers = itertools.takewhile(
        lambda _: ends_s is None or time.monotonic() < ends_s,
        itertools.count() if inputs is None else range(inputs),
    )
    return try_inputs(reader, (changed_input(reader, seed, number) for number in numbers))


def try_inputs(reader: Reader, inputs: Iterable[bytes]) -> ReaderOutcome:
    """Give inputs to a reader."""
    outcome = ReaderOutcome()
    before = _peak_bytes()
    for number, content in enumerate(inputs):
        outcome.inputs += 1
        try:
            with _time_limit(LONGEST_S):
                reader.read(content)
        except CheckpointError:
            outcome.refused += 1
        except (Exception, HangsError) as error:  # noqa: BLE001  # each is a violation
            (*_, last) = traceback.extract_tb(error.__traceback__)
            place = f"{Path(last.filename).name}:{last.lineno}"
            outcome.escaped.append(f"input {number}: {type(error).__name__} at {place}: {error}")
    growth = _peak_bytes() - before
    if growth > MAX_GROWTH_BYTES:
        outcome.escaped.append(f"the process grew by {growth >> 20} MiB")
    return outcome


def changed_input(reader: Reader, seed: str, number: int) -> bytes:
    """Return an input, which is the same for the same seed and number."""
    numbers = random.Random(f"{seed} {number}")  # noqa: S311  # not a secret
    wholes = [reader.whole[name] for name in sorted(reader.whole)]
    content = bytearray(numbers.choice(wholes))
    for _ in range(numbers.randint(1, 5)):
        _change(content, numbers, numbers.choice(wholes))
    is_sealed = numbers.random() < 0.9
    return reader.seal(bytes(content)) if is_sealed else bytes(content)


def _change(content: bytearray, numbers: random.Random, other: bytes) -> None:
    at = numbers.randrange(len(content) + 1)
    length = min(numbers.choice((1, 2, 4, 8, 16, 64)), len(content) - at)
    kind = numbers.randrange(7)
    if kind == 0 and at < len(content):
        content[at] ^= 1 << numbers.randrange(8)
    elif kind == 1 and at < len(content):
        content[at] = numbers.randrange(256)
    elif kind == 2:
        order = numbers.choice("<>")
        width, letter = numbers.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
        edge = numbers.choice(_EDGES) & ((1 << 8 * width) - 1)
        content[at : at + width] = struct.pack(f"{order}{letter}", edge)
    elif kind == 3:
        del content[at : at + length]
    elif kind == 4:
        content[at:at] = content[at : at + length] * numbers.choice((1, 2, 300))
    elif kind == 5:
        begin = numbers.randrange(len(other))
        content[at : at + length] = other[begin : begin + length]
    elif numbers.random() < 0.2:  # otherwise most inputs would end early
        del content[at:]


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def end(_: int, frame: FrameType | None) -> None:
        raise HangsError(f"no end after {seconds:.0f} s", frame and frame.f_code.co_qualname)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak_bytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each reader; returns 1 if an error has escaped."""
    parser = argparse.ArgumentParser(prog="python -m proof.bad_bytes", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", default=f"{time.time_ns()}")
    parser.add_argument("--reader", help="only the readers with this in their names")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, reader in readers(Path(scratch)).items():
            if options.reader and options.reader not in name:
                continue
            outcome = try_reader(
                reader,
                options.seed,
                inputs=None if options.seconds else options.inputs,
                seconds=options.seconds,
            )
            failures += len(outcome.escaped)
            print(f"{name}: {outcome.inputs} inputs, {outcome.refused} refused", flush=True)
            for escaped in outcome.escaped[:20]:
                print(f"  ESCAPED {escaped}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
