"""Prometheus: a port of the driver, a textfile, and pushes; all read the same values."""

import errno
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    push_to_gateway,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from holdfast.errors import InvalidRequestError
from holdfast.spark.metrics.values import MetricValues

PUSH_TIMEOUT_S = 5.0


class _ValuesCollector(Collector):
    def __init__(self, values: MetricValues, job_id: str | None) -> None:
        self._values = values
        self._job_id = job_id

    def collect(self) -> Iterator[Metric]:
        snapshot = self._values.read(self._job_id)
        for metric, numbers in snapshot.numbers.items():
            family = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            samples = family(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in numbers.items():
                samples.add_metric(labels, value)
            yield samples
        for metric, distributions in snapshot.distributions.items():
            histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, distribution in distributions.items():
                total, buckets = 0, []
                for bound, count in zip(
                    [*map(str, metric.buckets), "+Inf"], distribution.counts, strict=True
                ):
                    total += count
                    buckets.append((bound, total))
                histogram.add_metric(labels, buckets, distribution.sum)
            yield histogram


def registry_of(values: MetricValues, job_id: str | None = None) -> CollectorRegistry:
    """Return a registry with the values of all jobs, or of one."""
    registry = CollectorRegistry()
    registry.register(_ValuesCollector(values, job_id))
    return registry


def serve(values: MetricValues, address: str, ports: tuple[int, int]) -> int:
    """Serve the metrics on the first free port of a range, until the process ends. Returns the port.

    Raises:
        InvalidRequestError: No port is free, or the address is not one of this host.
    """
    error: OSError | None = None
    for port in range(ports[0], ports[1] + 1):
        try:
            start_http_server(port, address, registry_of(values))
        except OSError as caught:
            error = caught
            if caught.errno != errno.EADDRINUSE:
                break
        else:
            return port
    text = "-".join(str(port) for port in dict.fromkeys(ports))
    reason = error.strerror if error is not None else None
    raise InvalidRequestError(
        f"setting 'spark.holdfast.metrics.prometheus.port' is {text}, and {address} has no such free port "
        f"({reason}); set another port, a range such as 9250-9260, or spark.holdfast.metrics.prometheus.address",
        kind="setting",
    ) from error


def write_textfile(values: MetricValues, path: str) -> None:
    """Replace a file by the metrics of all jobs."""
    write_to_textfile(path, registry_of(values))


def push(values: MetricValues, url: str, job_id: str) -> None:
    """Replace the metrics of a job in a push gateway."""
    group = {"job_id": job_id}
    registry = registry_of(values, job_id)
    push_to_gateway(url, "holdfast", registry, grouping_key=group, timeout=PUSH_TIMEOUT_S)
