"""Files of settings such as spark-defaults.conf, read and written as Spark does: by Java's rules.

Spark cuts spaces off the ends of a value: these alone can't be written.
"""

import re

_CONTINUED = re.compile(r"(?:[^\\]|\\.)*\\")
_SEPARATOR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_SPACE = " \t\f"
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parsed(text: str) -> dict[str, str]:
    """The settings in the text of such a file: each line has a key and a value, with a space, `=` or `:` between."""
    settings: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for first in lines:
        line = first.lstrip(_SPACE)
        if not line or line.startswith(("#", "!")):
            continue
        while _CONTINUED.fullmatch(line):
            line = line[:-1] + next(lines, "").lstrip(_SPACE)
        separator = _SEPARATOR.match(line)
        if separator is not None:
            settings[_unescaped(separator[1])] = _unescaped(line[separator.end() :]).strip(_SPACE)
    return settings


def line_of(key: str, value: str) -> str:
    """A setting as a line of such a file; unprintable characters are escaped."""
    escaped = value.replace("\\", "\\\\")
    if escaped.startswith(("=", ":")):
        escaped = f"\\{escaped}"
    return f"{key} {''.join(character if character.isprintable() else _code(character) for character in escaped)}"


def _unescaped(text: str) -> str:
    def meant(escape: re.Match[str]) -> str:
        what = escape[1]
        return chr(int(what[1:], 16)) if len(what) > 1 else _SHORT.get(what, what)

    # Java has two codes for a character beyond U+FFFF.
    return _ESCAPE.sub(meant, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _code(character: str) -> str:
    codes = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{codes[start : start + 4]}" for start in range(0, len(codes), 4))
