"""Seconds, processor seconds, memory and requests of engines."""

import gc
import multiprocessing
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.s3._engines import KINDS, reason_of, warm_up
from benchmarks.s3._works import WORKS, Bucket, Engine, LeftOutError, Work
from holdfast.testing import HttpFaults

ACTIONS = ("write", "read", "delete")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one action took: seconds by the clock, and of all processors in this process."""

    wall_s: float
    cpu_s: float


def costs_of(work: Work, engine: Engine) -> dict[str, Cost]:
    """Let an engine do a work once; the costs by action.

    Raises:
        LeftOutError: It has read something else than what it had written.
    """
    engine.begin(uuid.uuid4().hex)
    wrote, files = _in_threads(
        work, lambda number: engine.write(number, work.file_bytes), range(work.files)
    )
    read, sizes = _in_threads(work, lambda file: engine.read(file, work.file_bytes), files)
    if sizes != [work.file_bytes] * work.files:
        raise LeftOutError(f"it read {sum(sizes)} bytes of {work.title}")
    deleted, _ = _timed(engine.delete)
    return dict(zip(ACTIONS, (wrote, read, deleted), strict=True))


def _in_threads(
    work: Work, action: Callable[[Any], Any], items: Iterable[Any]
) -> tuple[Cost, list[Any]]:
    with ThreadPoolExecutor(work.threads) as pool:
        list(pool.map(time.sleep, [0.01] * work.threads))  # all threads run
        return _timed(lambda: list(pool.map(action, items)))


def _timed(action: Callable[[], Any]) -> tuple[Cost, Any]:
    gc.collect()  # nobody pays for what another one left behind
    cpu, wall = time.process_time(), time.perf_counter()
    found = action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), found


def requests_of(kind: str, bucket: Bucket, proxy: HttpFaults) -> dict[str, str]:
    """How many requests an engine makes, by title, and what it says it is when it writes.

    Args:
        kind: Which one, of `KINDS`.
        bucket: A bucket that is reached through the proxy.
        proxy: What counts them.
    """
    engine = KINDS[kind].tried(bucket)
    found, agents = {}, Counter[str]()
    for work in WORKS:
        engine.begin(uuid.uuid4().hex)
        proxy.requests.clear()
        written = engine.write(0, work.file_bytes)
        found[f"write 1 {work.title.partition(' x ')[2]}"] = str(len(proxy.requests))
        agents.update(
            one.headers.get("user-agent", "?").partition("/")[0]
            for one in proxy.requests
            if one.method == "PUT"
        )
        proxy.requests.clear()
        engine.read(written, work.file_bytes)
        found[f"read 1 {work.title.partition(' x ')[2]}"] = str(len(proxy.requests))
        engine.delete()
    work = WORKS[0]
    engine.begin(uuid.uuid4().hex)
    _in_threads(work, lambda number: engine.write(number, work.file_bytes), range(work.files))
    proxy.requests.clear()
    engine.delete()
    found[f"delete {work.title}"] = str(len(proxy.requests))
    found["bodies are sent by"] = ", ".join(sorted(agents))
    return found


def peak_growth_bytes(kind: str, bucket: Bucket, work: Work) -> dict[str, int]:
    """By how much a fresh process grows at most while it writes, and then while it reads.

    Raises:
        LeftOutError: The engine failed there.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_send_peak_growth, args=(kind, bucket, work, sender))
    process.start()
    sender.close()
    try:
        found: dict[str, int] | str = receiver.recv()
    except EOFError:
        found = "its process ended"
    process.join()
    if isinstance(found, str):
        raise LeftOutError(found)
    return found


def _send_peak_growth(kind: str, bucket: Bucket, work: Work, sender: Any) -> None:
    try:
        engine = KINDS[kind].make(bucket)
        warm_up(engine, [4 << 10])  # imports and connects; large files take memory that stays
        engine.begin(uuid.uuid4().hex)
        found = {}
        begin = _begin_peak()
        written = engine.write(0, work.file_bytes)
        found["write"] = _memory_bytes("VmHWM") - begin
        begin = _begin_peak()
        engine.read(written, work.file_bytes)
        found["read"] = _memory_bytes("VmHWM") - begin
        engine.delete()
        sender.send(found)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        sender.send(reason_of(error))


def _begin_peak() -> int:
    """Let the process's peak begin anew at what is resident; that."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _memory_bytes("VmRSS")


def _memory_bytes(name: str) -> int:
    (kibibytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10
