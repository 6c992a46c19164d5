"""OpenTelemetry: metrics and spans, sent by OTLP over HTTP from threads of its SDK.

Attributes of spans have Flink's names (CheckpointStatsTracker).
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.spark.metrics.definitions import METRICS, Metric
from holdfast.spark.metrics.spans import SpanTree
from holdfast.spark.metrics.values import MetricValues, Sample

EXPORT_TIMEOUT_S = 5

# Providers have no exit handler, which would wait for a collector that does not answer: the reporter flushes them, for
# a limited time.
_SCOPE = "holdfast"


def _resource() -> Resource:
    """Return the resource of this process: `holdfast`, unless the environment names another service."""
    return Resource.create({SERVICE_NAME: _SCOPE}).merge(OTELResourceDetector().detect())


class MetricExport:
    """Exports the values of all metrics; histograms are recorded one by one, because they can't be read from outside."""

    def __init__(self, values: MetricValues, reader: MetricReader) -> None:
        self._values = values
        views = [
            View(
                instrument_name=metric.name,
                aggregation=ExplicitBucketHistogramAggregation(metric.buckets),
            )
            for metric in METRICS
            if metric.type == "histogram"
        ]
        self._provider = MeterProvider(
            [reader], resource=_resource(), views=views, shutdown_on_exit=False
        )
        meter = self._provider.get_meter(_SCOPE)
        self._histograms: dict[Metric, Histogram] = {}
        for metric in METRICS:
            self._create(meter, metric)

    @classmethod
    def to_endpoint(cls, values: MetricValues, endpoint: str, interval_s: float) -> "MetricExport":
        """Export to a collector, once in an interval."""
        exporter = OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
        return cls(values, PeriodicExportingMetricReader(exporter, 1000 * interval_s))

    def _create(self, meter: Meter, metric: Metric) -> None:
        if metric.type == "histogram":
            self._histograms[metric] = meter.create_histogram(
                metric.name, metric.unit, metric.meaning
            )
            return
        create = (
            meter.create_observable_counter
            if metric.type == "counter"
            else meter.create_observable_gauge
        )

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for labels, value in self._values.read().numbers.get(metric, {}).items():
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        create(metric.name, [observe], metric.unit, metric.meaning)

    def record(self, samples: Iterable[Sample]) -> None:
        """Record the samples of histograms."""
        for metric, labels, value in samples:
            if metric in self._histograms and value is not None:
                attributes = dict(zip(metric.labels, labels, strict=True))
                self._histograms[metric].record(value, attributes)

    def flush(self) -> None:
        self._provider.force_flush(1000 * EXPORT_TIMEOUT_S)


def _starter() -> list[trace.Link]:
    """Return a link to the span that started this process, if TRACEPARENT of the environment names one."""
    carrier = {
        name: os.environ[variable]
        for name, variable in (("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE"))
        if variable in os.environ
    }
    context = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier))
    known = context.get_span_context()
    return [trace.Link(known)] if known.is_valid else []


class SpanExport:
    """Exports trees of spans, each of them linked to the span that started this process."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SCOPE)
        self._links = _starter()

    @classmethod
    def to_endpoint(cls, endpoint: str) -> "SpanExport":
        """Export to a collector, in batches."""
        exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        return cls(BatchSpanProcessor(exporter))

    def export(self, tree: SpanTree, parent: Any = None) -> None:
        """Export a span and its children; times are in the past."""
        context = None if parent is None else trace.set_span_in_context(parent)
        span = self._tracer.start_span(
            tree.name,
            context,
            attributes=dict(tree.attributes),
            links=self._links if parent is None else None,
            start_time=int(1e6 * tree.start_ms),
        )
        if tree.error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, tree.error))
        for child in tree.children:
            self.export(child, span)
        span.end(int(1e6 * tree.end_ms))

    def flush(self) -> None:
        self._provider.force_flush(1000 * EXPORT_TIMEOUT_S)
