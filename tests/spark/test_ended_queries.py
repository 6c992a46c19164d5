"""The memory of a driver whose queries end and start for months."""

import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import InvalidRequestError
from holdfast.spark.engines import RunningQuery
from holdfast.spark.query import StatefulQuery, queries, query_run

QUERIES = 1200


class QueryId(str):
    """An id whose life can be observed."""

    __slots__ = ("__weakref__",)


class Engine:
    """The way to a Spark whose current query has the latest id."""

    def __init__(self) -> None:
        self.session = object()
        self.ids: list[weakref.ref[QueryId]] = []

    def running_query(self) -> RunningQuery:
        query_id = QueryId(f"query-{len(self.ids)}")
        self.ids.append(weakref.ref(query_id))
        return RunningQuery(query_id, "run", "file:///nowhere")

    def stop_error(self, query: RunningQuery, error: Exception) -> None:
        """Return None, because no query was stopped."""


def test_ended_queries_are_forgotten_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InvalidRequestError("as planned")

    engine = Engine()
    monkeypatch.setattr(queries, "engine_of", lambda *_: engine)
    monkeypatch.setattr(query_run.QueryRun, "start", fail)
    function = StatefulQuery(lambda *_: None, {})
    batch: Any = SimpleNamespace(sparkSession=engine.session)
    for _ in range(QUERIES):
        with suppress(InvalidRequestError):
            function(batch, 0)
    assert len(engine.ids) == QUERIES
    assert sum(query_id() is not None for query_id in engine.ids) <= 1000
