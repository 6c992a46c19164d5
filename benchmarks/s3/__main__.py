"""Speed of writing and reading state files on S3, compared with other clients.

    python -m benchmarks.s3 --server minio
    python -m benchmarks.s3 --server sink --rounds 5 --works small,files --engines holdfast,obstore
    python -m benchmarks.s3 --endpoint $endpoint --access-key $access_key --secret-key $secret_key

`--server` starts one of those of `infra/s3`; `sink` throws bodies away, so that the client's
cost shows. All engines run in one process, each with a separate bucket and the same number of threads,
once per round, starting with a different one. Each is warmed up first.
Figures are medians; a ratio in brackets is the median of the rounds' ratios to the first engine,
above 1 where the first engine is faster or needs less. Holdfast adds its checksums, asks the
store to check one, and never replaces an object; `peers.py` describes the other engines.

Memory is measured in a fresh process for each engine, requests are counted by a proxy, both in separate
runs. An engine that is not installed or fails is left out from then on, and the reason is printed.
"""

import argparse
from contextlib import ExitStack
from functools import partial

from benchmarks.rounds import (
    left_out_on_failure,
    measure_rounds,
    print_header,
    print_row,
    print_times,
    some_of,
)
from benchmarks.s3.engines import KINDS
from benchmarks.s3.measuring import ACTIONS, costs_of, growth_bytes_of, requests_of
from benchmarks.s3.server import Server, run_server
from benchmarks.s3.works import WORKS, Bucket, Engine
from holdfast.testing import http_faults

PARTS = ("times", "memory", "requests")

TITLES = {name: kind.name for name, kind in KINDS.items()}


def main() -> None:
    """Measure all rounds and print the tables."""
    options = _options()
    with ExitStack() as stack:
        server = (
            stack.enter_context(run_server(options.server))
            if options.server
            else Server(options.endpoint, options.access_key, options.secret_key)
        )
        buckets: dict[str, Bucket] = {}
        engines: dict[str, Engine] = {}
        for kind in options.engines:
            with left_out_on_failure(TITLES[kind], kind, buckets):
                versions = KINDS[kind].versions()
                buckets[kind] = stack.enter_context(server.new_bucket())
                engines[kind] = KINDS[kind].warm_engine(buckets[kind])
                print(f"{KINDS[kind].name}: {versions}")
        if "times" in options.parts:
            for work in options.works:
                rounds = measure_rounds(engines, partial(costs_of, work), options.rounds, TITLES)
                print_times(work.title, rounds, ACTIONS, TITLES)
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
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--server", choices=["minio", "versitygw", "sink"], help="one to start")
    source.add_argument("--endpoint", help="http:// URL of one that runs; needs its keys too")
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds")
    works = {work.name: work for work in WORKS}
    parser.add_argument("--works", type=some_of(works), default=WORKS, help=", ".join(works))
    kinds = {name: name for name in KINDS}
    parser.add_argument(
        "--engines", type=some_of(kinds), default=list(kinds), help=", ".join(kinds)
    )
    parts = {name: name for name in PARTS}
    parser.add_argument("--parts", type=some_of(parts), default=PARTS, help=", ".join(parts))
    options = parser.parse_args()
    if options.endpoint and not (options.access_key and options.secret_key):
        parser.error("--endpoint needs --access-key and --secret-key")
    return options


def _print_memory(kinds: list[str], buckets: dict[str, Bucket]) -> None:
    work = WORKS[-1]
    print_header(f"peak growth, {work.title}", [TITLES[kind] for kind in kinds])
    growths: dict[str, dict[str, int]] = {}
    for kind in kinds:
        with left_out_on_failure(TITLES[kind], kind, {}):
            growths[kind] = growth_bytes_of(kind, buckets[kind], work)
    for action in ("write", "read"):
        cells = [
            f"{growths[kind][action] / (1 << 20):.1f}" if kind in growths else "-" for kind in kinds
        ]
        print_row(f"{action}, MiB", cells)


def _print_requests(kinds: list[str], server: Server) -> None:
    print_header("requests", [TITLES[kind] for kind in kinds])
    counts: dict[str, dict[str, str]] = {}
    with http_faults(server.endpoint) as proxy:
        for kind in kinds:
            with (
                left_out_on_failure(TITLES[kind], kind, {}),
                server.new_bucket(through=proxy.url) as bucket,
            ):
                counts[kind] = requests_of(kind, bucket, proxy)
    for title in next(iter(counts.values()), {}):
        print_row(title, [counts[kind][title] if kind in counts else "-" for kind in kinds])


if __name__ == "__main__":
    main()
