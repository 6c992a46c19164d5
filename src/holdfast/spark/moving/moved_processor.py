"""A processor whose keys begin with state that was Holdfast's; it runs in Spark's own operator.

Spark's workers get what is here by its content, not by its name: Spark gives the process that tries out `init` ten
seconds to start, in which to import Holdfast is a good part. So nothing of Holdfast is imported here.
"""

import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

TIMERS = ""
"""The place of a state's name in rows that are timers; no state can have this name."""


class MovedProcessor(StatefulProcessor):
    """A user's processor, and the rows of `SparkInitialState` as its initial state.

    The last two columns of these rows are the name of a state and what goes there: `encoded`, a value, a whole list,
    an entry of a map or the time of a timer.

    Args:
        processor: The processor; its own `handleInitialState` isn't called.
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
        key: Any,  # noqa: ARG002  # the states are those of the key already
        initialState: Any,  # noqa: N803
        timerValues: Any,  # noqa: ARG002, N803
    ) -> None:
        rows: Iterable[tuple[str, bytes]]
        if isinstance(initialState, tuple):
            rows = [initialState[-2:]]
        else:  # a frame of pandas
            rows = initialState.iloc[:, -2:].itertuples(index=False, name=None)
        for name, content in rows:
            self._handle.put(name, decoded(content))

    def close(self) -> None:
        self._processor.close()


class RememberingHandle(StatefulProcessorHandle):
    """Spark's handle, which remembers the states that it has given.

    Args:
        handle: Spark's.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._states: dict[str, tuple[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)  # what later versions of Spark add needs the original

    def getValueState(  # noqa: N802  # Spark's names
        self,
        stateName: str,  # noqa: N803
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getValueState(stateName, schema, ttlDurationMs)
        return self._remembered("value", stateName, state)

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getListState(stateName, schema, ttlDurationMs)
        return self._remembered("list", stateName, state)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Any:
        state = self._handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        return self._remembered("map", stateName, state)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return self._handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        self._handle.deleteIfExists(stateName)

    def put(self, name: str, content: Any) -> None:
        """Put into a state, for the current key, what a row of `SparkInitialState` has for it."""
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

    def _remembered(self, kind: str, name: str, state: Any) -> Any:
        self._states[name] = kind, state
        return state


def encoded(content: Any) -> bytes:
    """A value for a state, encoded for a row: frames of pandas would change numbers and times."""
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def decoded(content: bytes) -> Any:
    """The value of which `encoded` made this."""
    return pickle.loads(content)  # noqa: S301  # a task of the same application has written it


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
