"""A row of the table of settings, and how its text becomes a value."""

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
    """A row of the table of settings.

    Attributes:
        key: Spark configuration key without `spark.holdfast.`.
        kind: The kind of text that a value is, for people.
        meaning: The setting's effect, for people.
        flink: Flink's key for the same, or empty.
        parse: Makes a value of a text; raises ValueError or `InvalidRequestError`.
        default_text: The default as people write it, where its value doesn't show that.
        s3a: Hadoop's key for the same, behind `spark.hadoop.fs.s3a.`, which counts where this setting
            is not set; or empty.
        older_flink: The keys that older versions of Flink had for it.
        unit: The unit of a number that is given without a unit, as `parse` knows it.
        argument: The setting's name as an argument of `configure`.
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
        """The value of a text that somebody has set.

        Args:
            key: The whole key that it was set by, for the error.
            text: The text.

        Raises:
            InvalidRequestError: The text is no such value.
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
