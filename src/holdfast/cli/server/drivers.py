"""Live figures of running drivers: the metrics that they export for Prometheus."""

from collections.abc import Sequence
from functools import partial
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from holdfast.common import map_in_parallel
from holdfast.errors import InvalidRequestError

_TIMEOUT_S = 2.0
_MAX_BYTES = 16 << 20
_JOB = "job_id"


class LiveMetric(msgspec.Struct, frozen=True):
    """A metric of a running driver. Histograms have their sums and counts, but no buckets."""

    id: str
    labels: dict[str, str]
    value: float


class LiveMetrics(msgspec.Struct, frozen=True):
    """The metrics of a job, none if no driver exports them; and the drivers that could not be read."""

    metrics: list[LiveMetric]
    errors: list[str]


def check_driver(url: str) -> None:
    """Check the URL of a driver's metrics. Raises `InvalidRequestError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        message = "--driver must be a URL with a host and without a user, such as http://driver:9250/metrics"
        raise InvalidRequestError(message)


def read_metrics(drivers: Sequence[str], job_id: str) -> LiveMetrics:
    """Read the metrics of a job from all drivers, each for a limited time."""
    answers = map_in_parallel(partial(_read, job_id=job_id), drivers)
    return LiveMetrics(
        [metric for metrics, _ in answers for metric in metrics],
        [error for _, error in answers if error],
    )


def _read(driver: str, *, job_id: str) -> tuple[list[LiveMetric], str]:
    try:
        with urlopen(driver, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # check_driver
            text = answer.read(_MAX_BYTES).decode()
        metrics = [
            LiveMetric(
                sample.name,
                {name: value for name, value in sample.labels.items() if name != _JOB},
                sample.value,
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get(_JOB) == job_id and "le" not in sample.labels
        ]
    except HTTPError as error:
        return [], f"driver {driver} answers with status {error.code}"
    except (URLError, OSError, HTTPException) as error:
        return [], f"driver {driver} does not answer ({type(error).__name__})"
    except ValueError:
        return [], f"driver {driver} answers with something else than metrics of Prometheus"
    return metrics, ""
