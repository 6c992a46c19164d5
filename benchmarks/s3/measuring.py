"""Seconds, processor seconds, memory and requests of engines."""

import uuid
from collections import Counter

from benchmarks.rounds import (
    Cost,
    LeftOutError,
    in_fresh_process,
    peak_growth_bytes,
    time_action,
    time_in_threads,
)
from benchmarks.s3.engines import KINDS, warm_up
from benchmarks.s3.works import WORKS, Bucket, Engine, Work
from holdfast.testing import HttpFaults

ACTIONS = ("write", "read", "delete")


def costs_of(work: Work, engine: Engine) -> dict[str, Cost]:
    """Run a workload once on an engine and return the costs by action.

    Raises:
        LeftOutError: The engine read other bytes than it wrote.
    """
    engine.begin(uuid.uuid4().hex)
    wrote, files = time_in_threads(
        work.threads, lambda number: engine.write(number, work.file_bytes), range(work.files)
    )
    read, sizes = time_in_threads(
        work.threads, lambda file: engine.read(file, work.file_bytes), files
    )
    if sizes != [work.file_bytes] * work.files:
        raise LeftOutError(f"it read {sum(sizes)} bytes of {work.title}")
    deleted, _ = time_action(engine.delete)
    return dict(zip(ACTIONS, (wrote, read, deleted), strict=True))


def requests_of(kind: str, bucket: Bucket, proxy: HttpFaults) -> dict[str, str]:
    """Count the requests of an engine, by title, and return the user agent of its writes, too.

    Args:
        kind: Name of the engine in `KINDS`.
        bucket: A bucket reached through the proxy.
        proxy: Counts the requests.
    """
    engine = KINDS[kind].warm_engine(bucket)
    requests, agents = {}, Counter[str]()
    for work in WORKS:
        engine.begin(uuid.uuid4().hex)
        proxy.requests.clear()
        written = engine.write(0, work.file_bytes)
        requests[f"write 1 {work.title.partition(' x ')[2]}"] = str(len(proxy.requests))
        agents.update(
            request.headers.get("user-agent", "?").partition("/")[0]
            for request in proxy.requests
            if request.method == "PUT"
        )
        proxy.requests.clear()
        engine.read(written, work.file_bytes)
        requests[f"read 1 {work.title.partition(' x ')[2]}"] = str(len(proxy.requests))
        engine.delete()
    work = WORKS[0]
    engine.begin(uuid.uuid4().hex)
    time_in_threads(
        work.threads, lambda number: engine.write(number, work.file_bytes), range(work.files)
    )
    proxy.requests.clear()
    engine.delete()
    requests[f"delete {work.title}"] = str(len(proxy.requests))
    requests["bodies are sent by"] = ", ".join(sorted(agents))
    return requests


def growth_bytes_of(kind: str, bucket: Bucket, work: Work) -> dict[str, int]:
    """Return the peak growth of a fresh process while it writes, and then while it reads.

    Raises:
        LeftOutError: The engine failed there.
    """
    return in_fresh_process(_growth_bytes, kind, bucket, work)


def _growth_bytes(kind: str, bucket: Bucket, work: Work) -> dict[str, int]:
    engine = KINDS[kind].make(bucket)
    warm_up(engine, [4 << 10])  # imports and connects; large files take memory that stays
    engine.begin(uuid.uuid4().hex)
    write, written = peak_growth_bytes(lambda: engine.write(0, work.file_bytes))
    read, _ = peak_growth_bytes(lambda: engine.read(written, work.file_bytes))
    engine.delete()
    return {"write": write, "read": read}
