"""One row of the table of settings, and how the text of one is read."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidRequestError

PREFIX = "spark.holdfast."

_SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: Spark configuration key without `spark.holdfast.`.
        kind: What its text has to be, for people.
        meaning: What it does, for people.
        flink: Flink's key for the same, or empty.
        parse: Makes a value of its text; raises ValueError or `InvalidRequestError`.
        default_text: The default as one would write it, where that is not its value.
        s3a: Hadoop's key for the same, behind `spark.hadoop.fs.s3a.`, which is taken where this one
            is not set; or empty.
        older_flink: What older versions of Flink called it.
        unit: What a number stands for that is given without one, as text that `parse` knows.
        argument: What it is called as an argument of `configure`.
    """

    key: str
    kind: str
    meaning: str
    flink: str
    parse: Callable[[str], Any]
    default_text: str | None = None
    s3a: str = ""
    older_flink: tuple[str, ...] = ()
    unit: str = ""
    argument: str = ""

    @property
    def name(self) -> str:
        """The whole key, as Spark's configuration has it."""
        return PREFIX + self.key

    def value(self, key: str, text: str) -> Any:
        """What a text means that somebody has set.

        Args:
            key: The whole key that it was set by, for the error.
            text: The text.

        Raises:
            InvalidRequestError: It has to be something else.
        """
        try:
            return self.parse(text.strip())
        except InvalidRequestError:
            raise
        except ValueError as error:
            message = f"setting {key!r} is {text!r}; it must be a {self.kind}"
            raise InvalidRequestError(message) from error


def size(text: str) -> int:
    matched = _SIZE.fullmatch(text)
    if matched is None:
        raise ValueError(text)
    return int(matched[1]) * _UNITS[matched[2].lower()]


def boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.lower())
    if value is None:
        raise ValueError(text)
    return value


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(text)
    return int(text)
