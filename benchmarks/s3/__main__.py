"""How fast do state files get to an S3 store and back, next to what others use?

    python -m benchmarks.s3 --server minio
    python -m benchmarks.s3 --server sink --rounds 5 --works small,files --engines holdfast,obstore
    python -m benchmarks.s3 --endpoint $endpoint --access-key $access_key --secret-key $secret_key

`--server` starts one of those of `infra/s3`; `sink` throws bodies away, so that the client's own
cost shows. All engines work in one process, each with a bucket of its own and as many threads, and
take turns round by round; another one begins each time. Everybody has warmed up before.
Figures are medians; a ratio in brackets is the median of the rounds' ratios to the first engine,
above 1 where the first one is faster or needs less. Holdfast adds checksums of its own, asks the
store to check one, and never replaces an object; what the peers do is said in `_peers.py`.

Memory is measured in a fresh process for each engine, requests are counted by a proxy, both on runs
of their own. An engine that is not installed or fails is left out from then on, with its reason.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from benchmarks.s3._engines import KINDS, reason_of
from benchmarks.s3._measuring import ACTIONS, Cost, costs_of, peak_growth_bytes, requests_of
from benchmarks.s3._server import Server, started
from benchmarks.s3._works import WORKS, Bucket, Engine, LeftOutError, Work
from holdfast.testing import http_faults

Rounds = list[dict[str, dict[str, Cost]]]
"""By round, kind of engine and action."""

T = TypeVar("T")

PARTS = ("times", "memory", "requests")


def main() -> None:
    """Take turns and print the tables."""
    options = _options()
    with ExitStack() as stack:
        server = (
            stack.enter_context(started(options.server))
            if options.server
            else Server(options.endpoint, options.access_key, options.secret_key)
        )
        buckets: dict[str, Bucket] = {}
        engines: dict[str, Engine] = {}
        for kind in options.engines:
            with _left_out_on_failure(kind, buckets):
                versions = KINDS[kind].versions()
                buckets[kind] = stack.enter_context(server.new_bucket())
                engines[kind] = KINDS[kind].tried(buckets[kind])
                print(f"{KINDS[kind].name}: {versions}")
        if "times" in options.parts:
            for work in options.works:
                _print_times(work, _measured(work, engines, options.rounds))
        kinds = list(engines)
        if "memory" in options.parts:
            _print_memory(kinds, buckets)
        if "requests" in options.parts:
            _print_requests(kinds, server)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.s3",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--server", choices=["minio", "versitygw", "sink"], help="one to start")
    where.add_argument("--endpoint", help="http:// URL of one that runs; needs its keys too")
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds")
    works = {work.name: work for work in WORKS}
    parser.add_argument("--works", type=_some_of(works), default=WORKS, help=", ".join(works))
    kinds = {name: name for name in KINDS}
    parser.add_argument(
        "--engines", type=_some_of(kinds), default=list(kinds), help=", ".join(kinds)
    )
    parts = {name: name for name in PARTS}
    parser.add_argument("--parts", type=_some_of(parts), default=PARTS, help=", ".join(parts))
    options = parser.parse_args()
    if options.endpoint and not (options.access_key and options.secret_key):
        parser.error("--endpoint needs --access-key and --secret-key")
    return options


def _some_of(known: Mapping[str, T]) -> Callable[[str], list[T]]:
    def parsed(text: str) -> list[T]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return [one for name, one in known.items() if name in text.split(",")]

    return parsed


@contextmanager
def _left_out_on_failure(kind: str, remaining: dict[str, Any]) -> Iterator[None]:
    """Say why an engine takes no part any more, if it fails in the block."""
    try:
        yield
    except LeftOutError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  # the others go on
        reason = reason_of(error)
    else:
        return
    remaining.pop(kind, None)
    print(f"{KINDS[kind].name} is left out: {reason}", flush=True)


def _measured(work: Work, engines: dict[str, Engine], rounds: int) -> Rounds:
    found: Rounds = []
    for number in range(rounds):
        kinds = list(engines)
        turn = number % max(1, len(kinds))
        found.append({})
        for kind in kinds[turn:] + kinds[:turn]:
            os.sync()  # nobody waits for what another one has written
            with _left_out_on_failure(kind, engines):
                found[-1][kind] = costs_of(work, engines[kind])
    return [{kind: one[kind] for kind in engines} for one in found]


def _print_times(work: Work, rounds: Rounds) -> None:
    kinds = list(rounds[0])
    _print_header(f"{work.title}, median of {len(rounds)}", kinds)
    units: dict[str, Callable[[Cost], float]] = {
        "s": lambda one: one.wall_s,
        "CPU s": lambda one: one.cpu_s,
    }
    for unit, cost in units.items():
        for action in ACTIONS:
            cells = []
            for kind in kinds:
                values = [cost(one[kind][action]) for one in rounds]
                cell = f"{statistics.median(values):.3f}"
                if kind != kinds[0]:
                    bases = [cost(one[kinds[0]][action]) for one in rounds]
                    ratios = [
                        value / base for value, base in zip(values, bases, strict=True) if base
                    ]
                    cell += f" ({statistics.median(ratios):.2f})" if ratios else ""
                cells.append(cell)
            _print_row(f"{action}, {unit}", cells)


def _print_memory(kinds: list[str], buckets: dict[str, Bucket]) -> None:
    work = WORKS[-1]
    _print_header(f"peak growth, {work.title}", kinds)
    found: dict[str, dict[str, int]] = {}
    for kind in kinds:
        with _left_out_on_failure(kind, {}):
            found[kind] = peak_growth_bytes(kind, buckets[kind], work)
    for action in ("write", "read"):
        cells = [
            f"{found[kind][action] / (1 << 20):.1f}" if kind in found else "-" for kind in kinds
        ]
        _print_row(f"{action}, MiB", cells)


def _print_requests(kinds: list[str], server: Server) -> None:
    _print_header("requests", kinds)
    found: dict[str, dict[str, str]] = {}
    with http_faults(server.endpoint) as proxy:
        for kind in kinds:
            with _left_out_on_failure(kind, {}), server.new_bucket(through=proxy.url) as bucket:
                found[kind] = requests_of(kind, bucket, proxy)
    for title in next(iter(found.values()), {}):
        _print_row(title, [found[kind][title] if kind in found else "-" for kind in kinds])


def _print_header(title: str, kinds: list[str]) -> None:
    print()
    _print_row(title, [KINDS[kind].name for kind in kinds])


def _print_row(title: str, cells: list[str]) -> None:
    print(f"{title:28}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
