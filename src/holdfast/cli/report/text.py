"""Numbers and times as people read them."""

_UNITS = ((86_400, "day"), (3_600, "h"), (60, "min"), (1, "s"))


def ms_text(ms: float) -> str:
    """How long something took, such as `41 ms` or `1.2 s`."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return span_text(ms)


def span_text(ms: float) -> str:
    """A span of time, in its two largest units, such as `3 min 5 s`."""
    rest = int(ms // 1000)
    words = []
    for seconds, unit in _UNITS:
        count, rest = divmod(rest, seconds)
        if count:
            plural = "s" if unit == "day" and count > 1 else ""
            words.append(f"{count} {unit}{plural}")
        elif words:
            break  # the second unit would be far smaller than the first
    return " ".join(words[:2]) or "0 s"


def count_text(count: int) -> str:
    """A count, with its thousands set apart."""
    return f"{count:,}"


def factor_text(factor: float) -> str:
    """A ratio, such as `1.9 times`."""
    return f"{factor:.1f} times" if factor < 100 else f"{factor:,.0f} times"


def time_text(time: str) -> str:
    """A time as `datetime.isoformat` gives it in UTC, without what goes without saying."""
    return time.replace("T", " ").removesuffix("+00:00")
