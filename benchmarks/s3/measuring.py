"""Seconds, processor seconds, memory and requests of engines."""

import uuid
from collections import Counter

from benchmarks.s3.engines import KINDS, warm_up
from benchmarks.s3.works import WORKS, Bucket, Engine, Work
from benchmarks.turns import (
    Cost,
    LeftOutError,
    in_fresh_process,
    peak_growth_bytes,
    timed,
    timed_in_threads,
)
from holdfast.testing import HttpFaults

ACTIONS = ("write", "read", "delete")


def costs_of(work: Work, engine: Engine) -> dict[str, Cost]:
    """Let an engine do a work once; the costs by action.

    Raises:
        LeftOutError: It has read something else than what it had written.
    """
    engine.begin(uuid.uuid4().hex)
    wrote, files = timed_in_threads(
        work.threads, lambda number: engine.write(number, work.file_bytes), range(work.files)
    )
    read, sizes = timed_in_threads(
        work.threads, lambda file: engine.read(file, work.file_bytes), files
    )
    if sizes != [work.file_bytes] * work.files:
        raise LeftOutError(f"it read {sum(sizes)} bytes of {work.title}")
    deleted, _ = timed(engine.delete)
    return dict(zip(ACTIONS, (wrote, read, deleted), strict=True))


def requests_of(kind: str, bucket: Bucket, proxy: HttpFaults) -> dict[str, str]:
    """How many requests an engine makes, by title, and what it says it is when it writes.

    Args:
        kind: Which one, of `KINDS`.
        bucket: A bucket that is reached through the proxy.
        proxy: What counts them.
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
    timed_in_threads(
        work.threads, lambda number: engine.write(number, work.file_bytes), range(work.files)
    )
    proxy.requests.clear()
    engine.delete()
    requests[f"delete {work.title}"] = str(len(proxy.requests))
    requests["bodies are sent by"] = ", ".join(sorted(agents))
    return requests


def growth_bytes_of(kind: str, bucket: Bucket, work: Work) -> dict[str, int]:
    """By how much a fresh process grows at most while it writes, and then while it reads.

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
