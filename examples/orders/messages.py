"""The messages of the topic `orders`, and the tables and alerts that must result from them."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from examples.orders.job import ALERT_CENTS

CUSTOMERS = 40
OPENING = datetime(2026, 11, 27, 8, tzinfo=UTC)
_TWICE, _LATE, _MALFORMED = 0.07, 0.03, 0.01


@dataclass(frozen=True, slots=True)
class Order:
    """An order."""

    id: str
    customer: str
    cents: int
    at: datetime

    @property
    def minute(self) -> datetime:
        """The minute that it was placed in."""
        return self.at.replace(second=0, microsecond=0)

    def message(self) -> str:
        """Return the order as a message."""
        return json.dumps(
            {
                "id": self.id,
                "customer": self.customer,
                "cents": self.cents,
                "at": self.at.isoformat(),
            }
        )


@dataclass(slots=True)
class Producer:
    """Makes messages, some of them twice, late or malformed; the same ones each time.

    Attributes:
        orders: The orders so far, by their ids.
        malformed: The messages so far that aren't orders.
    """

    orders: dict[str, Order] = field(default_factory=dict)
    malformed: list[str] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(20261127))  # noqa: S311  # not for secrets

    def messages(self, count: int) -> Iterator[str]:
        """Yield further messages."""
        for _ in range(count):
            chance = self._random.random()
            if chance < _MALFORMED:
                self.malformed.append(f'{{"id": "m{len(self.malformed)}", "cents": ')
                yield self.malformed[-1]
            elif chance < _MALFORMED + _TWICE and self.orders:
                yield self._random.choice(list(self.orders.values())).message()
            else:
                yield self._new_order(is_late=chance > 1 - _LATE).message()

    def _new_order(self, *, is_late: bool) -> Order:
        number = len(self.orders)
        at = OPENING + timedelta(milliseconds=200 * number)
        order = Order(
            id=f"o{number:05}",
            customer=f"c{self._random.randrange(CUSTOMERS):02}",
            cents=self._random.randrange(100, 10_000),
            at=at - timedelta(minutes=5) if is_late else at,
        )
        self.orders[order.id] = order
        return order


def totals_of(orders: Sequence[Order]) -> dict[str, tuple[int, int]]:
    """Return the number of orders and the cents of each customer."""
    counts = Counter(order.customer for order in orders)
    cents = cents_of(orders)
    return {customer: (counts[customer], cents[customer]) for customer in counts}


def cents_of(orders: Sequence[Order]) -> Counter[str]:
    """Return the cents of each customer."""
    cents: Counter[str] = Counter()
    for order in orders:
        cents[order.customer] += order.cents
    return cents


def alerts_of(orders: Sequence[Order]) -> Counter[tuple[str, int]]:
    """Return the alerts, each once: a customer and the multiple of `ALERT_CENTS`."""
    return Counter(
        (customer, multiple * ALERT_CENTS)
        for customer, cents in cents_of(orders).items()
        for multiple in range(1, cents // ALERT_CENTS + 1)
    )
