"""How people write durations, in settings and on the command line."""

import re

_DURATION = re.compile(r"([0-9]+)\s*(s|m|min|h|d)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float:
    """Seconds of a text such as `24h`, `90m` or `2 d`. Raises ValueError."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise ValueError(text)
    return int(matched[1]) * _SECONDS[matched[2].lower()]
