"""A processor that starts with state from Holdfast; it runs in Spark's own operator.

Spark's workers unpickle this module by value, and its classes use nothing of Holdfast: Spark gives the process that tries
`init` only ten seconds to start. Their base classes are Spark's.
"""

import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import cloudpickle

from holdfast.spark.compat import StatefulProcessor, StatefulProcessorHandle

TIMERS = ""
"""The name of the state in rows that are timers; no state can have this name."""


class MovedProcessor(StatefulProcessor):
    """A user's processor that gets the rows of `SparkInitialState` as its initial state.

    The last two columns of these rows are the name of a state and, encoded, a value, a whole list,
    an entry of a map or the time of a timer.

    Args:
        processor: The processor; its `handleInitialState` is not called.
    """

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = RememberingHandle(handle)
        self._processor.init(self._handle)

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        return self._processor.handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        return self._processor.handleExpiredTimer(
            key=key, timerValues=timerValues, expiredTimerInfo=expiredTimerInfo
        )

    def handleInitialState(  # noqa: N802  # Spark's name
        self,
        key: Any,  # noqa: ARG002  # the handle has the states of the key
        initialState: Any,  # noqa: N803
        timerValues: Any,  # noqa: ARG002, N803
    ) -> None:
        rows: Iterable[tuple[str, bytes]]
        if isinstance(initialState, tuple):
            rows = [initialState[-2:]]
        else:  # a pandas DataFrame
            rows = initialState.iloc[:, -2:].itertuples(index=False, name=None)
        for name, content in rows:
            self._handle.put(name, decode(content))

    def close(self) -> None:
        self._processor.close()


class RememberingHandle(StatefulProcessorHandle):
    """Spark's handle, which remembers the states that it has returned."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._states: dict[str, tuple[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)  # methods of later Spark versions

    def getValueState(  # noqa: N802  # Spark's names
        self,
        stateName: str,  # noqa: N803
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getValueState(stateName, schema, ttlDurationMs)
        return self._remember("value", stateName, state)

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getListState(stateName, schema, ttlDurationMs)
        return self._remember("list", stateName, state)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        return self._remember("map", stateName, state)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return self._handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        self._handle.deleteIfExists(stateName)

    def put(self, name: str, content: Any) -> None:
        """Put the decoded content of a row into a state of the current key."""
        if name == TIMERS:
            self._handle.registerTimer(content)
            return
        kind, state = self._states[name]
        if kind == "value":
            state.update(content)
        elif kind == "list":
            state.put(content)
        else:
            state.updateValue(*content)

    def _remember(self, kind: str, name: str, state: Any) -> Any:
        self._states[name] = kind, state
        return state


def encode(content: Any) -> bytes:
    """Encode a value of a state for a row: pandas DataFrames would change numbers and times."""
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def decode(content: bytes) -> Any:
    """Decode the result of `encode`."""
    return pickle.loads(content)  # noqa: S301  # written by a task of the same application


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
