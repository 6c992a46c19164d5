"""How long state lives when nobody uses it."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError

_MILLISECOND = timedelta(milliseconds=1)


class UpdateType(Enum):
    """Which accesses make the time of a value start anew.

    Attributes:
        ON_CREATE_AND_WRITE: Each write.
        ON_READ_AND_WRITE: Each write, and each read.
        DISABLED: None: there is no time to live.

    Source:
        Flink, StateTtlConfig.UpdateType.
    """

    ON_CREATE_AND_WRITE = "on create and write"
    ON_READ_AND_WRITE = "on read and write"
    DISABLED = "disabled"


class StateVisibility(Enum):
    """Whether a read returns a value whose time is over but which is not deleted yet.

    Attributes:
        NEVER_RETURN_EXPIRED: It doesn't.
        RETURN_EXPIRED_IF_NOT_CLEANED_UP: It does.

    Source:
        Flink, StateTtlConfig.StateVisibility.
    """

    NEVER_RETURN_EXPIRED = "never return expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return expired if not cleaned up"


@dataclass(frozen=True)
class StateTtlConfig:
    """How long values of a state live: whole values, or each element of a list and each entry of a map.

    Time is the time of batches, in which they are processed. Values whose time is over are dropped when
    files of state are merged; no batch looks for them.

    Attributes:
        ttl: How long, in whole milliseconds, at least one. A value of the time `t` is gone at `t + ttl`.
        update_type: Which accesses make the time start anew; `DISABLED` stands for no time to live.
        visibility: Whether values whose time is over are given while they are still there.

    Raises:
        InvalidRequestError: The time is shorter than a millisecond, or one of the three is of another type.

    Source:
        Flink, StateTtlConfig.
    """

    ttl: timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        for name, kind in (
            ("ttl", timedelta),
            ("update_type", UpdateType),
            ("visibility", StateVisibility),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                message = f"{name} of a time to live is a {kind.__name__}, and not {value!r}"
                raise InvalidRequestError(message)
        if self.ttl < _MILLISECOND:
            message = f"state can't live for {self.ttl}; give it at least a millisecond"
            raise InvalidRequestError(message)

    @property
    def ttl_ms(self) -> int | None:
        """How long in milliseconds; None for ever."""
        if self.update_type is UpdateType.DISABLED:
            return None
        return min(self.ttl // _MILLISECOND, MAX_INT64)

    @property
    def is_refreshed_by_reading(self) -> bool:
        """Whether the time of a value starts anew when it is read."""
        return self.update_type is UpdateType.ON_READ_AND_WRITE

    @property
    def shows_expired(self) -> bool:
        """Whether values whose time is over are given while they are still there."""
        return self.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
