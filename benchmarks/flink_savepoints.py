"""Speed and memory of reading, importing and exporting Flink savepoints.

    python -m benchmarks.flink_savepoints --entries 2000000
    python -m benchmarks.flink_savepoints --entries 20000000 --kinds longs --forms canonical

Writes savepoints with one value state each to a temporary directory: longs by long, or strings of about twenty
characters by string, in the canonical format, the heap backend's format and as RocksDB files. Each is then read, imported
and exported in separate processes. Speed is entries per second of CPU time of all threads; memory is the peak resident
memory above that of a process that has only loaded its modules.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rocksdict

from holdfast import flink
from holdfast.backends.keys import flink_key_groups
from holdfast.flink.serializers import NO_NAMESPACE, hash_codes, utf, written_type
from holdfast.flink.written_streams import (
    WrittenFile,
    keyed_info,
    metadata_file,
    operator_entry,
    write_keyed_state,
)

KEY_GROUPS = 128
KINDS = {"longs": pa.int64(), "texts": pa.string()}
FORMS = ("canonical", "heap", "rocksdb")
WORKS = ("read", "import", "export")
UID, STATE = "counted", "count"
Numbers = npt.NDArray[np.int64]


def main() -> None:
    """Make savepoints, and measure what becomes of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument(
        "--directory", type=Path, help="directory for files, with enough free space"
    )
    parser.add_argument("--work", nargs=3, metavar=("WORK", "POINTER", "TARGET"))
    options = parser.parse_args()
    if options.work:
        print(json.dumps(measure(*options.work)))
        return
    print(f"{'':26}{'MB':>8}{'CPU s':>8}{'M entries/s':>13}{'peak MB':>9}")
    for kind in options.kinds.split(","):
        for form in options.forms.split(","):
            with tempfile.TemporaryDirectory(dir=options.directory) as name:
                directory = Path(name)
                size = write_savepoint(directory, kind, form, options.entries)
                pointer = f"file://{directory}"
                for work in options.works.split(","):
                    done = run(work, pointer, f"file://{directory}/{work}")
                    rate = options.entries / float(done["cpu_s"]) / 1e6
                    print(
                        f"{kind}, {form}, {work:14}{size / 1e6:8.0f}{done['cpu_s']:8.2f}{rate:13.2f}"
                        f"{float(done['peak_bytes']) / 1e6:9.0f}",
                        flush=True,
                    )
                    pointer = str(done["pointer"]) if work == "import" else pointer


def run(*work: str) -> dict[str, float | str]:
    command = [sys.executable, "-m", "benchmarks.flink_savepoints", "--work", *work]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float | str] = json.loads(done.stdout)
    return result


def measure(work: str, pointer: str, target: str) -> dict[str, float | str]:
    """Run an action in this process and return its figures."""
    works: dict[str, Callable[[], str]] = {
        "read": lambda: read(pointer),
        "import": lambda: flink.import_savepoint(open_test_savepoint(pointer), target),
        "export": lambda: flink.export_savepoint(pointer, target),
    }
    before, started_s = peak_bytes(), time.process_time()
    result = works[work]()
    cpu_s = time.process_time() - started_s
    return {"cpu_s": cpu_s, "peak_bytes": peak_bytes() - before, "pointer": result}


def peak_bytes() -> int:
    # The peak of getrusage is inherited from the parent process.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def open_test_savepoint(pointer: str) -> flink.FlinkSavepoint:
    return flink.open_savepoint(pointer, uids=[UID])


def read(pointer: str) -> str:
    for _ in open_test_savepoint(pointer).iter_state(UID, STATE):
        pass
    return pointer


def write_savepoint(directory: Path, kind: str, form: str, entries: int) -> int:
    """Write a savepoint; returns how many bytes it has."""
    type = KINDS[kind]
    written = written_type(type)
    numbers = np.arange(entries, dtype=np.int64)
    codes = (
        hash_codes.of_longs(pa.array(numbers))
        if kind == "longs"
        else hash_codes.of_texts(pa.array(texts(numbers)))
    )
    of_number = flink_key_groups(codes, KEY_GROUPS)
    order = np.argsort(of_number, kind="stable")
    edges = np.searchsorted(of_number[order], np.arange(KEY_GROUPS + 1))
    groups = [order[edges[group] : edges[group + 1]] for group in range(KEY_GROUPS)]
    info = keyed_info(STATE, "value", written.snapshot, NO_NAMESPACE.snapshot)
    with (directory / "keyed").open("wb") as sink:
        file = WrittenFile("keyed", sink.write)
        if form == "rocksdb":
            write_description(file, written.snapshot, info)
            file.flush()
            handle = write_rocksdb(directory, file.handle, kind, groups)
        elif form == "heap":
            handle = write_heap(file, written.snapshot, info, kind, groups)
        else:
            contents = (
                iter([(0, canonical(kind, group, own))] if len(own) else [])
                for group, own in enumerate(groups)
            )
            handle = write_keyed_state(file, written.snapshot, [info], 0, contents)
    operator = operator_entry(flink.operator_id(UID), 1, KEY_GROUPS, [(None, handle)])
    (directory / "_metadata").write_bytes(metadata_file(1, [operator]))
    return sum(part.stat().st_size for part in directory.iterdir())


def texts(numbers: Numbers) -> list[str]:
    return [f"customer-{number:012}" for number in numbers.tolist()]


def pairs(kind: str, numbers: Numbers) -> Iterator[tuple[bytes, bytes]]:
    encode = written_type(KINDS[kind]).encode
    keys = numbers.tolist() if kind == "longs" else texts(numbers)
    return ((encode(key), encode(key)) for key in keys)


def canonical(kind: str, group: int, numbers: Numbers) -> Iterator[tuple[bytes, bytes]]:
    head = bytes([group])
    return ((head + key + b"\0", value) for key, value in pairs(kind, numbers))


def write_description(file: WrittenFile, key: bytes, info: bytes) -> None:
    def contents() -> Iterator[Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]]:
        yield from ()

    write_keyed_state(file, key, [info], 0, contents())


def write_heap(
    file: WrittenFile, key: bytes, info: bytes, kind: str, groups: list[Numbers]
) -> bytes:
    """Write a file in the heap backend's native format, which the library only reads."""
    write_description(file, key, info)
    offsets = []
    for group, numbers in enumerate(groups):
        offsets.append(file.size)
        file.append(group.to_bytes(4, "big") + b"\0\0" + len(numbers).to_bytes(4, "big"))
        for name, value in pairs(kind, numbers):
            file.append(b"\0" + name + value)
    file.flush()
    places = np.array(offsets, ">i8").tobytes()
    return b"\3" + bytes(4) + len(offsets).to_bytes(4, "big") + places + file.handle


def write_rocksdb(directory: Path, description: bytes, kind: str, groups: list[Numbers]) -> bytes:
    """Write RocksDB files as a savepoint, as in a native savepoint."""
    options = rocksdict.Options(raw_mode=True)
    options.create_missing_column_families(True)
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(5)  # as in Flink's
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.snappy())
    with tempfile.TemporaryDirectory() as name:
        database = rocksdict.Rdict(name, options, {STATE: options})
        family = database.get_column_family(STATE)
        for group, numbers in enumerate(groups):
            for row, value in canonical(kind, group, numbers):
                family[row] = value
        family.flush()
        family.compact_range(None, None)
        family.close()
        database.close()
        tables = [directory / shutil.copy(table, directory) for table in Path(name).glob("*.sst")]
    streams = [
        utf(table.name) + b"\6" + utf(table.name) + table.stat().st_size.to_bytes(8, "big")
        for table in tables
    ]
    head = b"\x0b" + bytes(8) + utf("uuid") + bytes(4) + len(groups).to_bytes(4, "big") + bytes(8)
    shared = len(streams).to_bytes(4, "big") + b"".join(streams)
    return head + description + shared + bytes(4) + utf("id")


if __name__ == "__main__":
    main()
