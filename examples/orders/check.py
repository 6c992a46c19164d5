"""Comparison of every table and topic with the orders that were sent, without Spark."""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from examples.orders.job import ALERTS
from examples.orders.messages import Order, Producer, alerts_of, totals_of

_WAIT_S = 30.0


def differences(directory: Path, bootstrap: str, producer: Producer) -> Iterator[str]:
    """Yield what is wrong, as sentences."""
    orders = list(producer.orders.values())
    stored = _delta(directory, "orders").to_pylist()
    yield from _unequal(
        "orders in Delta", Counter(row["id"] for row in stored), Counter(list(producer.orders))
    )
    yield from _unequal(
        "rows of orders in Delta",
        {row["id"]: (row["customer"], row["cents"], row["at"]) for row in stored},
        {order.id: (order.customer, order.cents, order.at) for order in orders},
    )
    totals = _delta(directory, "totals").to_pylist()
    yield from _unequal(
        "totals in Delta",
        {row["customer"]: (row["orders"], row["cents"]) for row in totals},
        totals_of(orders),
    )
    yield from _unequal(
        "rejected messages in Iceberg",
        Counter(_iceberg(directory, "rejected")["message"].to_pylist()),
        Counter(producer.malformed),
    )
    yield from _window_differences(directory, orders)
    yield from _unequal("alerts in Kafka", alerts_in(bootstrap), alerts_of(orders))


def _window_differences(directory: Path, orders: list[Order]) -> Iterator[str]:
    """Yield what is wrong with windows and late rows: together they have each order once."""
    late = _iceberg(directory, "late").to_pylist()
    minutes = _iceberg(directory, "minutes").to_pylist()
    counted = Counter(
        {(row["customer"], row["window_start"]): row["orders"] for row in minutes}
    ) + Counter((row["customer"], row["at"].replace(second=0, microsecond=0)) for row in late)
    yield from _unequal(
        "orders of each minute in Iceberg, with the late ones",
        counted,
        Counter((order.customer, order.minute) for order in orders),
    )
    if not late:
        yield "no order was late, so that nothing was tried"


def count_of_late(directory: Path) -> int:
    """Return the number of late orders."""
    return int(_iceberg(directory, "late").num_rows)


def alerts_in(bootstrap: str) -> Counter[tuple[str, int]]:
    """Return the alerts that a consumer of committed messages sees."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"check-{uuid.uuid4().hex}",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    alerts: Counter[tuple[str, int]] = Counter()
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(ALERTS, _WAIT_S).topics[ALERTS].partitions
        consumer.assign([TopicPartition(ALERTS, number, OFFSET_BEGINNING) for number in partitions])
        for message in _messages(consumer, len(partitions)):
            alert = json.loads(message)
            alerts[alert["customer"], alert["cents"]] += 1
    return alerts


def _messages(consumer: Consumer, partitions: int) -> Iterator[bytes]:
    while partitions:
        message = consumer.poll(_WAIT_S)
        if message is None:
            raise TimeoutError(f"the topic {ALERTS} can't be read")
        error = message.error()
        if error is None:
            yield message.value() or b""
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            partitions -= 1
        else:
            raise KafkaException(error)


def _delta(directory: Path, table: str) -> pa.Table:
    return pa.table(DeltaTable(directory / "delta" / table).to_pyarrow_table())


def _iceberg(directory: Path, table: str) -> pa.Table:
    metadata = directory / "iceberg" / "shop" / table / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    location = f"file://{metadata}/v{version}.metadata.json"
    return StaticTable.from_metadata(location).scan().to_arrow()


def _unequal(name: str, actual: Any, expected: Any) -> Iterator[str]:
    if actual == expected:
        return
    keys: Iterable[Any] = {*actual, *expected}
    wrong = sorted(str(key) for key in keys if actual.get(key) != expected.get(key))
    shown = ", ".join(wrong[:5])
    yield f"{name}: {len(wrong)} differ, such as {shown}"
