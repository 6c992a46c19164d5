# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""A job of PyFlink with state of all its types, by keys k0 to k7, whose content follows formulas.

    python infra/flink/python_job.py BACKEND FORMAT DIRECTORY

BACKEND is hashmap or rocksdb, FORMAT canonical or native; the savepoint's URI is printed. In a separate environment with
apache-flink 2.3.0, which needs other versions of packages than Holdfast does.
"""

import datetime as dt
import decimal
import sys
import time

from pyflink.common import Configuration, Instant, Row, Time, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import AggregateFunction
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from pyflink.java_gateway import get_gateway

KEYS = 8
CENTURY_MS = 4_102_444_800_000
PICKLED = Types.PICKLED_BYTE_ARRAY()
ATTEMPTS = 30


def types():
    """The types of value states, by name."""
    return {
        "long": Types.LONG(),
        "text": Types.STRING(),
        "pickled": PICKLED,
        "row": Types.ROW_NAMED(["a", "b", "c"], [Types.LONG(), Types.STRING(), Types.DOUBLE()]),
        "tuple": Types.TUPLE(
            [Types.INT(), Types.FLOAT(), Types.BOOLEAN(), Types.BYTE(), Types.SHORT()]
        ),
        "dec": Types.BIG_DEC(),
        "bigint": Types.BIG_INT(),
        "char": Types.CHAR(),
        "date": Types.SQL_DATE(),
        "time": Types.SQL_TIME(),
        "ts": Types.SQL_TIMESTAMP(),
        "instant": Types.INSTANT(),
        "larr": Types.PRIMITIVE_ARRAY(Types.LONG()),
        "bytes": Types.PRIMITIVE_ARRAY(Types.BYTE()),
        "oarr": Types.OBJECT_ARRAY(Types.STRING()),
        "barr": Types.BASIC_ARRAY(Types.DOUBLE()),
        "lt": Types.LIST(Types.STRING()),
        "mt": Types.MAP(Types.STRING(), Types.LONG()),
    }


def values(key):
    """Return the content of a key's value states."""
    return {
        "long": 10 * key,
        "text": f"t{key}é😀",
        "pickled": {"k": key, "l": [1, 2]},
        "row": Row(a=key, b=None if key % 2 else f"r{key}", c=key / 2),
        "tuple": (key, key / 2, key % 2 == 0, key, -key),
        "dec": decimal.Decimal(f"{key}.25"),
        "bigint": 10**15 + key,
        "char": "x",
        "date": dt.date(2024, 1, 1 + key),
        "time": dt.time(1, 2, key, 5000),
        "ts": dt.datetime(2024, 1, 1, 2, 3, key, 6000),  # noqa: DTZ001  # has no zone
        "instant": Instant(key, 7),
        "larr": [key, -key],
        "bytes": bytes([key, 1]),
        "oarr": ["a", None, f"b{key}"],
        "barr": [key / 4],
        "lt": ["a", f"b{key}"],
        "mt": {"a": key, "b": None},
    }


class Average(AggregateFunction):
    """A sum and a count."""

    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, left, right):
        return left[0] + right[0], left[1] + right[1]


class Kept(KeyedProcessFunction):
    """Keeps something of each key in each state."""

    def open(self, context):
        self.values = {
            name: context.get_state(ValueStateDescriptor(name, type))
            for name, type in types().items()
        }
        long, text = Types.LONG(), Types.STRING()
        self.list = context.get_list_state(ListStateDescriptor("list", long))
        self.pickles = context.get_list_state(ListStateDescriptor("plist", PICKLED))
        self.map = context.get_map_state(MapStateDescriptor("map", text, long))
        self.pairs = context.get_map_state(MapStateDescriptor("pmap", PICKLED, PICKLED))
        self.sum = context.get_reducing_state(
            ReducingStateDescriptor("red", lambda left, right: left + right, long)
        )
        self.average = context.get_aggregating_state(
            AggregatingStateDescriptor("agg", Average(), Types.TUPLE([long, long]))
        )
        lifetime = StateTtlConfig.new_builder(Time.days(3650)).build()
        timed = ValueStateDescriptor("ttl", long)
        timed.enable_time_to_live(lifetime)
        self.timed = context.get_state(timed)
        timed = MapStateDescriptor("ttlmap", long, text)
        timed.enable_time_to_live(lifetime)
        self.timed_map = context.get_map_state(timed)

    def process_element(self, value, context):
        key = value[1]
        if key >= KEYS:
            time.sleep(0.02)
            return
        for name, content in values(key).items():
            self.values[name].update(content)
        for number in (key, key + 1):
            self.list.add(number)
            self.average.add(number)
        for number in (key, 5):
            self.sum.add(number)
        self.pickles.add(("p", key))
        self.pickles.add(None)
        self.map.put("a", key)
        self.map.put(f"b{key}", 2 * key)
        self.pairs.put(("k", key), {"v": key})
        self.timed.update(key)
        self.timed_map.put(key, f"v{key}")
        timers = context.timer_service()
        timers.register_event_time_timer(CENTURY_MS + key)
        timers.register_processing_time_timer(CENTURY_MS + key)
        yield key


def pair(number):
    """A key and a number, at once for those that are kept."""
    if number >= KEYS:
        time.sleep(0.05)
    return f"k{number % KEYS}", number


def main(backend, form, directory):
    """Run the job, and stop it with a savepoint."""
    configuration = Configuration()
    for name, value in {
        "state.backend.type": backend,
        "rest.port": "0",
        "rest.bind-port": "0",
        "python.executable": sys.executable,
        "python.fn-execution.bundle.size": "100",
    }.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(1)
    environment.set_max_parallelism(128)
    source = NumberSequenceSource(0, 1 << 60)
    numbers = environment.from_source(source, WatermarkStrategy.no_watermarks(), "seq").uid("seq")
    pairs = numbers.map(pair, Types.TUPLE([Types.STRING(), Types.LONG()]))
    kept = pairs.key_by(lambda row: row[0], Types.STRING()).process(Kept(), Types.LONG())
    kept.uid("kept").print()
    job = environment.execute_async()
    time.sleep(10)
    formats = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
    for attempt in range(ATTEMPTS):
        try:
            client = job._j_job_client  # noqa: SLF001  # PyFlink has no option for the format
            stopped = client.stopWithSavepoint(False, directory, getattr(formats, form.upper()))
            print("@savepoint", stopped.get())
        except Exception:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(1)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
