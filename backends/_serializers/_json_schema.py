"""Whether what was written by one JSON schema can be read by another one.

msgspec describes its types by JSON schemas; only the words that it uses are looked at here.
"""

from typing import Any

_Schema = dict[str, Any]


def misfit(stored: _Schema, wanted: _Schema) -> str:
    """Why some value of the stored schema is none of the wanted one; empty if each is.

    Fields may be added if they have a default, and removed unless unknown ones are forbidden;
    integers may become floating-point numbers.
    """
    return _Comparison(stored.get("$defs", {}), wanted.get("$defs", {})).misfit(stored, wanted, "")


class _Comparison:
    def __init__(self, stored: _Schema, wanted: _Schema) -> None:
        self._stored = stored
        self._wanted = wanted
        self._under_way: set[tuple[str, str]] = set()  # types that refer to themselves

    def misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        names = (stored.get("$ref", ""), wanted.get("$ref", ""))
        if all(names):
            if names in self._under_way:
                return ""
            self._under_way.add(names)
        stored, wanted = _resolved(stored, self._stored), _resolved(wanted, self._wanted)
        if not wanted or not wanted.keys() - _WORDS_FOR_PEOPLE:  # anything at all
            return ""
        alternatives = [
            [_resolved(one, defs) for one in schema.get("anyOf", [schema])]
            for schema, defs in ((stored, self._stored), (wanted, self._wanted))
        ]
        for one in alternatives[0]:
            reasons = [self._simple_misfit(one, other, at) for other in alternatives[1]]
            if all(reasons):
                return reasons[0]
        return ""

    def _simple_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        where = at or "it"
        if "enum" in stored or "const" in stored or "enum" in wanted or "const" in wanted:
            left = [one for one in _values(stored) or [] if one not in (_values(wanted) or [one])]
            if _values(stored) is None or left:
                return f"{where} could have other values than now"
            if _values(wanted) is not None:
                return ""
        kinds = (stored.get("type"), wanted.get("type"))
        if kinds[0] != kinds[1] and kinds != ("integer", "number"):
            return f"{where} was {kinds[0]}, and is {kinds[1]} now"
        if kinds[1] == "object":
            return self._object_misfit(stored, wanted, at)
        if kinds[1] == "array":
            return self._array_misfit(stored, wanted, at)
        for word in _BOUNDS:
            if word in wanted and stored.get(word) != wanted[word]:
                return f"{where} has another {word} now"
        return ""

    def _object_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        before, now = stored.get("properties", {}), wanted.get("properties", {})
        for name in wanted.get("required", []):
            path = _below(at, name)
            if name not in before:
                return f"{path} is new, and has no default"
            if name not in stored.get("required", []):
                return f"{path} could be missing, and now must not"
        others = wanted.get("additionalProperties", True)
        for name, schema in before.items():
            if name in now:
                reason = self.misfit(schema, now[name], _below(at, name))
            elif isinstance(others, dict):
                reason = self.misfit(schema, others, _below(at, name))
            else:
                reason = "" if others else f"{_below(at, name)} is unknown now, which is forbidden"
            if reason:
                return reason
        if isinstance(others, dict):  # a dict: all of its values
            return self.misfit(stored.get("additionalProperties", {}), others, f"{at}[]")
        return ""

    def _array_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        before, now = stored.get("prefixItems", []), wanted.get("prefixItems", [])
        least = stored.get("minItems", 0)
        if wanted.get("minItems", 0) > least:
            return f"{at or 'it'} could have {least} elements, and now needs more"
        most = stored.get("maxItems")
        if "maxItems" in wanted and (most is None or most > wanted["maxItems"]):
            return f"{at or 'it'} could have more elements than now"
        for index, (one, other) in enumerate(zip(before, now, strict=False)):
            reason = self.misfit(one, other, f"{at}[{index}]")
            if reason:
                return reason
        items = (stored.get("items"), wanted.get("items"))
        if isinstance(items[0], dict) and isinstance(items[1], dict):
            return self.misfit(items[0], items[1], f"{at}[]")
        return ""


_WORDS_FOR_PEOPLE = {"$defs", "title", "description", "default", "examples", "deprecated"}

_BOUNDS = (
    "format",
    "pattern",
    "contentEncoding",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
)
"""Words that limit a value. Another limit may refuse what was stored."""


def _resolved(schema: _Schema, definitions: _Schema) -> _Schema:
    reference = schema.get("$ref")
    return definitions[reference.removeprefix("#/$defs/")] if reference else schema


def _values(schema: _Schema) -> list[Any] | None:
    """The only values that it allows, or None if it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return None if values is None else list(values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
