"""The settings of metrics, spans and the log."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from holdfast.spark.settings.setting import (
    BOOLEAN,
    Setting,
    SettingType,
    choice,
    declared_settings,
    duration,
)

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The destinations of metrics and spans, which are optional.

    Attributes:
        ports: The first and the last port of a range; the first free one is for Prometheus.
    """

    ports: tuple[int, int] | None = None
    address: str = "127.0.0.1"
    textfile: str | None = None
    pushgateway: str | None = None
    otlp_endpoint: str | None = None
    spans_endpoint: str | None = None
    interval_s: float = 15.0
    has_subtasks: bool = False
    log_format: LogFormat = "text"

    @property
    def is_enabled(self) -> bool:
        """Return whether there is a destination of metrics or spans."""
        destinations = (self.textfile, self.pushgateway, self.otlp_endpoint, self.spans_endpoint)
        return self.ports is not None or any(destinations)


def _parse_ports(text: str) -> tuple[int, int]:
    first, dash, last = (part.strip() for part in text.partition("-"))
    ports = int(first), int(last if dash else first)
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ValueError(text)
    return ports


def _ports_text(ports: tuple[int, int]) -> str:
    return "-".join(str(port) for port in dict.fromkeys(ports))


def _parse_url(text: str) -> str:
    url = urlsplit(text)
    is_plain = not (url.query or url.fragment or url.username or url.password)
    if url.scheme not in {"http", "https"} or not url.hostname or not is_plain or url.port == 0:
        raise ValueError(text)
    return text.rstrip("/")


_URL = SettingType(
    "URL with http:// or https:// and a host, without a user and a query", _parse_url
)


def _parse_textfile(text: str) -> str:
    if not text.startswith("/") or not text.endswith(".prom"):
        raise ValueError(text)
    return text


METRICS = declared_settings(
    MetricsSettings,
    {
        "ports": Setting(
            "metrics.prometheus.port",
            SettingType("port or a range such as `9250-9260`", _parse_ports, _ports_text),
            "Port of the driver on which Prometheus reads the metrics; of a range the first one that is free. "
            "Queries of one driver share it. If no port is free, the query fails when it starts.",
            flink="metrics.reporter.prom.port",
        ),
        "address": Setting(
            "metrics.prometheus.address",
            SettingType("host name or address"),
            "Address that the port is bound to. `0.0.0.0` lets other hosts read the metrics.",
        ),
        "textfile": Setting(
            "metrics.textfile",
            SettingType(
                "path of a file on the driver, such as `/var/lib/node_exporter/job.prom`",
                _parse_textfile,
            ),
            "File for the textfile collector of Prometheus' node exporter. It is replaced as a whole. Each driver "
            "needs its own.",
        ),
        "pushgateway": Setting(
            "metrics.pushgateway.url",
            _URL,
            "Prometheus Pushgateway that receives the metrics, in a group for each job.",
            flink="metrics.reporter.promgateway.hostUrl",
        ),
        "otlp_endpoint": Setting(
            "metrics.otlp.endpoint",
            _URL,
            "OpenTelemetry collector that receives the metrics by OTLP over HTTP, such as `http://collector:4318`; "
            "`/v1/metrics` is appended.",
            flink="metrics.reporter.otel.exporter.endpoint",
        ),
        "spans_endpoint": Setting(
            "metrics.otlp.spans-endpoint",
            _URL,
            "OpenTelemetry collector that receives spans by OTLP over HTTP; `/v1/traces` is appended.",
            flink="traces.reporter.otel.exporter.endpoint",
        ),
        "interval_s": Setting(
            "metrics.interval",
            duration("`15s`"),
            "Time between two writes of the textfile, two pushes, or two exports by OTLP.",
        ),
        "has_subtasks": Setting(
            "metrics.subtasks",
            BOOLEAN,
            "Whether there are metrics of single subtasks, with the label `subtask`.",
        ),
        "log_format": Setting(
            "metrics.log-format",
            choice("text", "json"),
            "Form of the message that the driver logs for each checkpoint. `json` is one object with the names of "
            "the metrics.",
        ),
    },
    prefix="metrics_",
)
"""By field of `MetricsSettings`, in the order of the docs."""
