"""Files of settings such as spark-defaults.conf, read and written as Spark does: by Java's rules.

Spark cuts spaces off the ends of a value; that is all that can't be written.
"""

import re

_CONTINUED = re.compile(r"(?:[^\\]|\\.)*\\")
_SEPARATOR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_SPACE = " \t\f"
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parsed(text: str) -> dict[str, str]:
    """The settings in such a text: a key and a value a line, between them a space, `=` or `:`."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for first in lines:
        line = first.lstrip(_SPACE)
        if not line or line.startswith(("#", "!")):
            continue
        while _CONTINUED.fullmatch(line):
            line = line[:-1] + next(lines, "").lstrip(_SPACE)
        separator = _SEPARATOR.match(line)
        if separator is not None:
            found[_unescaped(separator[1])] = _unescaped(line[separator.end() :]).strip(_SPACE)
    return found


def line_of(key: str, value: str) -> str:
    """A line of it, with nothing in it that can't be printed."""
    escaped = value.replace("\\", "\\\\")
    if escaped.startswith(("=", ":")):
        escaped = f"\\{escaped}"
    return f"{key} {''.join(one if one.isprintable() else _code(one) for one in escaped)}"


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        what = found[1]
        return chr(int(what[1:], 16)) if len(what) > 1 else _SHORT.get(what, what)

    # Java has two codes for a character beyond U+FFFF.
    return _ESCAPE.sub(meant, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _code(character: str) -> str:
    codes = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{codes[start : start + 4]}" for start in range(0, len(codes), 4))
