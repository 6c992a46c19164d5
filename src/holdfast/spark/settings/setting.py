"""A setting, declared once: its key, type, default, documentation, and its names in Flink and Hadoop."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, TypeVar

from holdfast.common import parse_duration_s
from holdfast.errors import InvalidRequestError
from holdfast.redaction import redact

PREFIX = "spark.holdfast."
LIST_HINT = "`holdfast settings` lists all settings"

Texts = dict[str, tuple[str, str]]
"""By field of a section of settings: the key that was set, and its text."""

_Section = TypeVar("_Section")

_BARE_PREFIX = PREFIX.removeprefix("spark.")

_SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION_UNITS = {"h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting's values, between texts and values; its kind is the valid texts, for people.

    `parse` raises ValueError or `InvalidRequestError`. A number without a unit has `unit`.
    """

    kind: str
    parse: Callable[[str], Any] = str
    text: Callable[[Any], str] = str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    Attributes:
        key: Spark configuration key without `spark.holdfast.`.
        type: The type of its values.
        meaning: Its effect, for people.
        default: The default value; None if there is no default.
        flink: Flink's key for the same, or empty.
        older_flink: Keys of older Flink versions.
        s3a: Hadoop's key for the same without `spark.hadoop.fs.s3a.`, used if this setting is not set; or empty.
        argument: The setting's name as an argument of `configure`.
    """

    key: str
    type: SettingType
    meaning: str
    _: KW_ONLY
    default: Any = None
    flink: str = ""
    older_flink: tuple[str, ...] = ()
    s3a: str = ""
    argument: str = ""

    @property
    def name(self) -> str:
        return PREFIX + self.key

    @property
    def kind(self) -> str:
        return self.type.kind

    @property
    def requirement(self) -> str:
        """The kind of values with an article, for messages."""
        return self.kind if self.kind.startswith("`") else f"a {self.kind}"

    @property
    def default_text(self) -> str | None:
        """The default as a string; None if there is no default."""
        return None if self.default is None else self.type.text(self.default)

    def parse(self, text: str, key: str = "") -> Any:
        """Convert a text to a value, or raise `InvalidRequestError` with the key that was set, by default `name`."""
        try:
            return self.type.parse(text.strip())
        except InvalidRequestError:
            raise
        except ValueError as error:
            message = (
                f"setting {key or self.name!r} must be {self.requirement}, got {redact(text)!r}"
            )
            raise InvalidRequestError(message, kind="setting") from error


def declared_settings(
    section: type, settings: Mapping[str, Setting], prefix: str = ""
) -> dict[str, Setting]:
    """Return the settings of a section by field, with the defaults of that dataclass, and prefixed arguments."""
    defaults = {field.name: field.default for field in fields(section)}
    return {
        name: replace(setting, default=defaults[name], argument=prefix + name)
        for name, setting in settings.items()
    }


def check_keys(keys: Iterable[str], settings: Sequence[Setting]) -> None:
    """Refuse keys that look like Holdfast settings, but don't exist; the error suggests the right one."""
    known = {setting.name for setting in settings}
    for key in keys:
        if key not in known and key.lower().startswith((PREFIX, _BARE_PREFIX)):
            raise InvalidRequestError(
                f"no setting {key!r}; {_suggestion(key, settings)}", kind="setting"
            )


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the name that is most like another, or None if none is like it."""
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _suggestion(key: str, settings: Sequence[Setting]) -> str:
    name = key[len(PREFIX if key.lower().startswith(PREFIX) else _BARE_PREFIX) :]
    for setting in settings:
        if name == setting.key:
            return f"set {PREFIX + name!r}"
        if name and name in (setting.flink, *setting.older_flink):
            return f"Flink's {name!r} is {setting.name!r} here"
    similar = nearest(name, [each.key for each in settings])
    return LIST_HINT if similar is None else f"did you mean {PREFIX + similar!r}?"


def choice(*values: str | None, aliases: Mapping[str, str] | None = None) -> SettingType:
    """Return a type for one of some words, in any case; None is the word `none`."""
    words = [value or "none" for value in values]
    by_text = {word.lower(): value for word, value in zip(words, values, strict=True)}
    by_text |= aliases or {}

    def parse(text: str) -> str | None:
        text = text.lower()
        if text not in by_text:
            raise ValueError(text)
        return by_text[text]

    *others, last = [f"`{word}`" for word in words]
    return SettingType(f"{', '.join(others)} or {last}", parse)


def number(*, min_value: int) -> SettingType:

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < min_value:
            raise ValueError(text)
        return int(text)

    return SettingType(f"number, at least {min_value}", parse)


def size(*, min_bytes: int = 0, max_bytes: int | None = None) -> SettingType:
    """Return a type for sizes in bytes, with binary units."""
    bounds = ""
    if max_bytes is not None:
        bounds = f", {_size_text(min_bytes)} to {_size_text(max_bytes)}"
    elif min_bytes:
        bounds = f", at least {_size_text(min_bytes)}"

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(text)
        bytes_ = int(match[1]) * _SIZE_UNITS[match[2].lower()]
        if bytes_ < min_bytes or (max_bytes is not None and bytes_ > max_bytes):
            raise ValueError(text)
        return bytes_

    return SettingType(f"size{bounds}", parse, _size_text)


def duration(example: str, *, min_s: float = 0) -> SettingType:
    """Return a type for durations in seconds, above 0."""
    bounds = f", at least `{_duration_text(min_s)}`" if min_s else ", above 0"

    def parse(text: str) -> float:
        seconds = parse_duration_s(text)
        if not seconds or seconds < min_s:
            raise ValueError(text)
        return seconds

    return SettingType(f"duration such as {example}{bounds}", parse, _duration_text, unit="s")


def _parse_boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.lower())
    if value is None:
        raise ValueError(text)
    return value


BOOLEAN = SettingType("`true` or `false`", _parse_boolean, lambda value: str(value).lower())


def _parse_endpoint(text: str) -> str:
    # An endpoint with a password or query is refused later, by an error that doesn't show it.
    if not text.startswith(("http://", "https://")) and {"@", "?"}.isdisjoint(text):
        raise ValueError(text)
    return text


ENDPOINT = SettingType("URL with http:// or https://", _parse_endpoint)


def _size_text(size_bytes: int) -> str:
    for unit, factor in reversed(_SIZE_UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def _duration_text(seconds: float) -> str:
    for unit, factor in _DURATION_UNITS.items():
        if seconds % factor == 0:
            return f"{int(seconds) // factor}{unit}"
    return f"{seconds}s"


def texts_of(settings: Mapping[str, Setting], configuration: Mapping[str, str]) -> Texts:
    """Return the texts of the settings that are set, by field."""
    return {
        name: (setting.name, configuration[setting.name])
        for name, setting in settings.items()
        if setting.name in configuration
    }


def parse_texts(settings: Mapping[str, Setting], texts: Texts) -> dict[str, Any]:
    """Return the values of texts, by field. Raises `InvalidRequestError` if one is not valid."""
    return {name: settings[name].parse(text, key) for name, (key, text) in texts.items()}


def make_section(
    section: Callable[..., _Section], values: Mapping[str, Any], subject: str, texts: Texts
) -> _Section:
    """Make the settings of a store.

    Args:
        section: Their class.
        values: The values by field.
        subject: The part of the store that they are for, for errors.
        texts: The texts that the values come from.

    Raises:
        InvalidRequestError: The values contradict each other, or one is out of range.
    """
    try:
        return section(**values)
    except InvalidRequestError as error:
        keys = ", ".join(key for key, _ in texts.values())
        message = f"invalid settings of {subject}: {error.args[0]}; these are set: {keys}"
        raise InvalidRequestError(message, kind="setting") from error


def buckets_in(pattern: re.Pattern[str], uris: Iterable[str | None]) -> list[str]:
    """Return the buckets or containers of the URIs that match; the pattern's first group is the name."""
    # Not of a URI with a secret, which the error would show as its bucket; it is refused where it is used.
    matches = [pattern.match(uri) for uri in uris if uri and redact(uri) == uri]
    return sorted({match[1] for match in matches if match is not None})
