"""Speed of writing and reading state files on Google Cloud Storage and Azure, compared with other clients.

    make bench-clouds ARGS="--cloud gcs"
    make bench-clouds ARGS="--cloud azure --rounds 5 --works small,files"

The servers are emulators that run for it: that of the tests with Google's APIs in memory, or Azurite. All engines run
in one process, each with a separate bucket and the same number of threads, once per round, starting with a different one.
Each is warmed up first. Figures are medians; a ratio in brackets is the median of the rounds' ratios to the
first engine, above 1 where Holdfast is faster or needs less.

Seconds include those of the emulator, which is slower than its clients; CPU seconds are of the client's process only.
Holdfast adds its checksums, and never replaces an object. `make bench-clouds` installs gcsfs and adlfs into
build/bench-clouds, because they are not in requirements.lock.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from servers import infra

from benchmarks.clouds.engines import KINDS
from benchmarks.clouds.server import run_gcs
from benchmarks.rounds import left_out_on_failure, measure_rounds, print_times, some_of
from benchmarks.s3.measuring import ACTIONS, costs_of
from benchmarks.s3.works import WORKS, Bucket, Engine


def main() -> None:
    """Measure all rounds and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clouds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cloud", choices=list(KINDS), required=True)
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds")
    works = {work.name: work for work in WORKS}
    parser.add_argument("--works", type=some_of(works), default=WORKS, help=", ".join(works))
    options = parser.parse_args()
    kinds = KINDS[options.cloud]
    titles = {name: kind.name for name, kind in kinds.items()}
    with _buckets(options.cloud) as buckets:
        engines: dict[str, Engine] = {}
        for name, kind in kinds.items():
            with left_out_on_failure(kind.name, name, buckets):
                print(f"{kind.name}: {kind.versions()}")
                engines[name] = kind.warm_engine(buckets[name])
        for work in options.works:
            rounds = measure_rounds(engines, partial(costs_of, work), options.rounds, titles)
            print_times(work.title, rounds, ACTIONS, titles)


@contextmanager
def _buckets(cloud: str) -> Iterator[dict[str, Bucket]]:
    """Run the server until the block ends; yields an empty bucket for each engine."""
    names = {kind: f"bench-{kind}" for kind in KINDS[cloud]}
    if cloud == "gcs":
        with run_gcs(list(names.values())) as endpoint:
            yield {kind: Bucket(name, endpoint, "", "", "") for kind, name in names.items()}
        return
    with infra.running("azure") as known:
        for name in names.values():
            infra.run("azure", "container", known["directory"], name)
        yield {
            kind: Bucket(name, known["endpoint"], "", known["account"], known["secret_key"])
            for kind, name in names.items()
        }


if __name__ == "__main__":
    main()
