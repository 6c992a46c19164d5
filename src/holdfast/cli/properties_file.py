"""Files of settings such as spark-defaults.conf, parsed and written by Java's rules, as Spark does.

Spark strips spaces at the ends of a value, so these can't be written.
"""

import re

_CONTINUED = re.compile(r"(?:[^\\]|\\.)*\\")
_SEPARATOR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_SPACE = " \t\f"
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of such a file: lines of a key and a value, separated by a space, `=` or `:`."""
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
            settings[_unescape(separator[1])] = _unescape(line[separator.end() :]).strip(_SPACE)
    return settings


def properties_line(key: str, value: str) -> str:
    """Format a setting as a line of such a file; unprintable characters are escaped."""
    escaped = value.replace("\\", "\\\\")
    if escaped.startswith(("=", ":")):
        escaped = f"\\{escaped}"
    return f"{key} {''.join(character if character.isprintable() else _escape(character) for character in escaped)}"


def _unescape(text: str) -> str:
    def character_of(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _SHORT.get(code, code)

    # Java uses two codes for a character above U+FFFF.
    return (
        _ESCAPE.sub(character_of, text)
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "replace")
    )


def _escape(character: str) -> str:
    codes = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{codes[start : start + 4]}" for start in range(0, len(codes), 4))
