"""An operator as the user describes it, checked."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.keys import KEY_HASH, MAX_PARALLELISM
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators.functions import BroadcastProcessFunction, StatefulFunction
from holdfast.spark.operators.keyed_process_function import KeyedProcessFunction

TIME_MODES = ("none", "processing", "event")

Sink = Callable[[DataFrame, int], object]
"""Called with an operator's output rows and the batch id; writes the rows somewhere."""

Broadcast = Callable[[SparkSession, int], DataFrame]
"""Called with the session of a batch and its id; returns the rows that every subtask is to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as the user describes it to `stateful`, whose documentation explains the attributes.

    Attributes:
        prepare: Called with rows, gives a function that changes the rows of batches with the same schema before
            they are dealt to subtasks; None for no change.
        begin: Changes the rows of the operator's first batch, after `prepare`; None for no change.

    Raises:
        InvalidRequestError: An attribute can't be used.
    """

    function: StatefulFunction
    uid: str
    parallelism: int | None = None
    sink: Sink | None = None
    max_parallelism: int | None = None
    key: tuple[str, ...] = ()
    broadcast: Broadcast | None = None
    schema: StructType | str | None = None
    persist: bool = False
    forward: bool = False
    event_time: str | None = None
    prepare: Callable[[DataFrame], Callable[[DataFrame], DataFrame]] | None = None
    begin: Callable[[DataFrame], DataFrame] | None = None

    def __post_init__(self) -> None:
        self._check_function()
        if self.sink is not None:
            check_can_be_called("sink", self.sink)
        if not isinstance(self.uid, str) or not self.uid:
            raise InvalidRequestError(f"uid is {self.uid!r}; it must be a string that is not empty")
        for name in ("parallelism", "max_parallelism"):
            self._check_number(name)
        if self.parallelism is not None:
            OperatorSettings(self.parallelism, self.max_parallelism)  # raises if they do not match
        for name in ("persist", "forward"):
            if type(getattr(self, name)) is not bool:
                message = f"{name} is {getattr(self, name)!r}; it must be True or False"
                raise InvalidRequestError(message)
        self._check_key()
        self._check_schema()
        self._check_time()
        if self.broadcast is not None and not (self.takes_broadcast and callable(self.broadcast)):
            message = (
                f"broadcast of operator {self.uid!r} must be a function of a session and a batch "
                "id, and the operator a BroadcastProcessFunction"
            )
            raise InvalidRequestError(message)

    def _check_function(self) -> None:
        if isinstance(self.function, type):
            message = f"{self.function.__name__} is a class; pass an object of it"
            raise InvalidRequestError(message)
        if not isinstance(self.function, StatefulFunction):
            name = type(self.function).__name__
            message = f"{name} is no StatefulFunction; derive the operator from it"
            if isinstance(self.function, StatefulProcessor):
                message = f"{name} is a StatefulProcessor; run it by keyed(…).transformWithState or …InPandas"
            raise InvalidRequestError(message)

    def _check_time(self) -> None:
        mode = self.function.time_mode
        if mode not in TIME_MODES:
            message = (
                f"time_mode of operator {self.uid!r} is {mode!r}; it must be one of {TIME_MODES}"
            )
            raise InvalidRequestError(message)
        if self.event_time is None:
            return
        if not isinstance(self.event_time, str) or not self.event_time:
            message = f"event_time is {self.event_time!r}; it must be the name of a column"
            raise InvalidRequestError(message)
        if not self.drops_late_rows:
            message = (
                f"operator {self.uid!r} is given event_time, by which late rows are dropped, and doesn't "
                "want them dropped: its function is not in event time, or keeps late rows; leave "
                "event_time out"
            )
            raise InvalidRequestError(message)

    def _check_key(self) -> None:
        if not all(isinstance(column, str) and column for column in self.key):
            message = f"key is {self.key!r}; it must be the name of a column, or several of them"
            raise InvalidRequestError(message)
        if len(set(self.key)) < len(self.key):
            message = f"key is {self.key!r}, with a column twice; name each column once"
            raise InvalidRequestError(message)
        if isinstance(self.function, KeyedProcessFunction) and not self.key:
            message = (
                f"operator {self.uid!r} is a KeyedProcessFunction, which is called for each key; name the "
                "key's columns: stateful(..., key=...)"
            )
            raise InvalidRequestError(message)
        if self.forward and self.key:
            message = (
                f"operator {self.uid!r} has a key, by which rows are dealt, and forward=True, which "
                "leaves them where they are; give one of them up"
            )
            raise InvalidRequestError(message)

    def _check_schema(self) -> None:
        if self.schema is not None and not isinstance(self.schema, StructType | str):
            kind = type(self.schema)
            message = (
                f"schema of operator {self.uid!r} is a {kind.__module__}.{kind.__qualname__}; give "
                "Spark's, such as 'id long, name string'"
            )
            raise InvalidRequestError(message)

    def _check_number(self, name: str) -> None:
        number = getattr(self, name)
        if number is None:
            return
        if type(number) is not int or not 1 <= number <= MAX_PARALLELISM:
            message = (
                f"{name} is {number!r}; it must be a whole number between 1 and {MAX_PARALLELISM}"
            )
            raise InvalidRequestError(message)

    def is_like(self, other: "Operator") -> bool:
        """Whether both are the same operator, maybe different copies of it: Spark Connect pickles them."""
        return _traits(self) == _traits(other)

    @property
    def takes_broadcast(self) -> bool:
        """Whether the operator's subtasks see a second, small stream."""
        return isinstance(self.function, BroadcastProcessFunction)

    @property
    def drops_late_rows(self) -> bool:
        """Whether rows that are late don't come to the function."""
        return self.function.time_mode == "event" and not self.function.keeps_late_rows

    @property
    def key_hash(self) -> str:
        """The name of the function that takes keys to key groups; empty if rows have no key."""
        return KEY_HASH if self.key else ""


def check_can_be_called(what: str, function: object) -> None:
    """Refuse an object that is no function of rows and a batch id. Raises `InvalidRequestError`."""
    if not callable(function):
        message = f"{what} {function!r} can't be called; it takes rows and a batch id"
        raise InvalidRequestError(message)


def _traits(operator: Operator) -> tuple[object, ...]:
    kind = type(operator.function)
    return (
        kind.__module__,
        kind.__qualname__,
        operator.uid,
        operator.parallelism,
        operator.max_parallelism,
        operator.key,
        operator.persist,
        operator.forward,
        operator.event_time,
    )
