"""Operators of a savepoint that is written: operators of its base, and new operators."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.inspection import states_of
from holdfast.backends.keys import KEY_HASH
from holdfast.errors import InvalidRequestError
from holdfast.locations.metadata import StoredOperator
from holdfast.locations.storages import CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An operator that a written savepoint has and its base, if any, has not.

    Attributes:
        parallelism: Number of subtasks that its state is for; a query may begin with another number.
        max_parallelism: Number of its key groups; by default as for an operator with `parallelism`.
        key: The columns by which the query's operator deals its rows, if it does.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    key: str | Sequence[str] = ()

    def without_state(self) -> StoredOperator:
        """The operator as it is stored before anything is written.

        Raises:
            InvalidRequestError: A number is outside its bounds.
        """
        settings = OperatorSettings(self.parallelism, self.max_parallelism)
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return StoredOperator(
            parallelism=self.parallelism,
            max_parallelism=settings.max_parallelism_or_default,
            subtasks={},
            key=key,
            key_hash=KEY_HASH if key else "",
        )


def operators_of(
    former: CompletedCheckpoint | None,
    states: Mapping[tuple[str, str], Any],
    new: Mapping[str, NewOperator],
) -> dict[str, StoredOperator]:
    """All operators of the savepoint, as they are in its base, or without state.

    Args:
        former: The base, if there is one.
        states: What is written, by the operator's uid and the state's name; None removes a state.
        new: Operators that are not in the base, by uid.

    Raises:
        InvalidRequestError: An operator or a state is in the base and must not be, or the other way round.
    """
    known = former.metadata.operators if former else {}
    both = sorted(known.keys() & new.keys())
    if both:
        message = (
            f"operators {both} are in the base already, which says how they are; leave them out"
        )
        raise InvalidRequestError(message)
    uids = {uid for uid, _ in states}
    for uid in sorted(new.keys() - uids):
        hint = _meant(uid, uids) or "leave it out, or give it one"
        raise InvalidRequestError(f"operators= names {uid!r}, of which there is no state; {hint}")
    # A new operator of a base is named twice: else a misspelt uid would be the state of an operator that nobody runs.
    for uid in sorted(uids - known.keys() - new.keys()) if known else ():
        hint = " ".join(filter(None, [_meant(uid, known), "a new operator is named in operators="]))
        message = f"operator {uid!r} is not in the base, which has {sorted(known)}; {hint}"
        raise InvalidRequestError(message)
    operators = dict(known)
    operators |= {uid: operator.without_state() for uid, operator in new.items()}
    for (uid, name), rows in states.items():
        stored = states_of(uid, known[uid]) if uid in known else []
        names = {state.name for state in stored}
        if rows is None and name not in names:
            message = f"state {name!r} of operator {uid!r} is not in the base, and can't be removed"
            raise InvalidRequestError(message)
        operators.setdefault(uid, NewOperator().without_state())
    return operators


def _meant(uid: str, uids: Collection[str]) -> str:
    """A question for a uid that may be misspelt; empty if none is like it."""
    nearest = difflib.get_close_matches(uid, uids, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""
