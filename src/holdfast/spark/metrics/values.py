"""The values of all metrics of a process, which every destination reads."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from holdfast.spark.metrics.definitions import JOB, Metric

MAX_SERIES = 10_000
"""Combinations of labels that one metric can have; samples of others are dropped."""

Labels = tuple[str, ...]

_Value = TypeVar("_Value")


class Sample(NamedTuple):
    """A value to be recorded: added to a counter or histogram, or the new value of a gauge; None removes a gauge."""

    metric: Metric
    labels: Labels
    value: float | None


@dataclass(slots=True)
class Distribution:
    """The values of a histogram: the number in each bucket, and their sum. The last bucket has no bound."""

    counts: list[int]
    sum: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of all metrics at one moment, by metric and labels."""

    numbers: Mapping[Metric, Mapping[Labels, float]]
    distributions: Mapping[Metric, Mapping[Labels, Distribution]]


class MetricValues:
    """Values by metric and labels; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Metric, dict[Labels, float]] = {}
        self._distributions: dict[Metric, dict[Labels, Distribution]] = {}

    def record(self, samples: Iterable[Sample]) -> None:
        """Record samples together: a reader sees all of them or none."""
        with self._lock:
            for metric, labels, value in samples:
                if metric.type == "histogram":
                    self._observe(metric, labels, value or 0.0)
                    continue
                numbers = self._numbers.setdefault(metric, {})
                if value is None:
                    numbers.pop(labels, None)
                elif labels in numbers or len(numbers) < MAX_SERIES:
                    is_sum = metric.type == "counter" and not metric.is_total
                    numbers[labels] = value + (numbers.get(labels, 0.0) if is_sum else 0.0)

    def _observe(self, metric: Metric, labels: Labels, value: float) -> None:
        known = self._distributions.setdefault(metric, {})
        if labels not in known:
            if len(known) >= MAX_SERIES:
                return
            known[labels] = Distribution([0] * (len(metric.buckets) + 1))
        known[labels].counts[bisect_left(metric.buckets, value)] += 1
        known[labels].sum += value

    def read(self, job_id: str | None = None) -> Snapshot:
        """Return the values; with a job only those that have its label."""
        with self._lock:
            return Snapshot(
                {each: _select(series, each, job_id) for each, series in self._numbers.items()},
                {
                    each: {
                        labels: Distribution(value.counts.copy(), value.sum)
                        for labels, value in _select(series, each, job_id).items()
                    }
                    for each, series in self._distributions.items()
                },
            )


def _select(
    series: Mapping[Labels, _Value], metric: Metric, job_id: str | None
) -> dict[Labels, _Value]:
    if job_id is None:
        return dict(series)
    if JOB not in metric.labels:
        return {}
    place = metric.labels.index(JOB)
    return {labels: value for labels, value in series.items() if labels[place] == job_id}
