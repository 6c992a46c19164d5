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
        self._assumed: set[tuple[str, str]] = set()  # pairs that fit, or are under way

    def misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        if not _resolved(wanted, self._wanted).keys() - _NO_LIMITS:  # anything at all
            return ""
        others = _alternatives(wanted, self._wanted)
        for alternative in _alternatives(stored, self._stored):
            reasons = [self._pair_misfit(alternative, other, at) for other in others]
            if all(reasons):
                return reasons[0]
        return ""

    def _pair_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        simple = (_resolved(stored, self._stored), _resolved(wanted, self._wanted))
        names = (stored.get("$ref", ""), wanted.get("$ref", ""))
        if not all(names):
            return self._simple_misfit(*simple, at)
        if (
            names in self._assumed
        ):  # a type that refers to itself fits if nothing else is in the way
            return ""
        before = set(self._assumed)
        self._assumed.add(names)
        reason = self._simple_misfit(*simple, at)
        if reason:
            self._assumed = before  # what was found to fit meanwhile may have relied on this
        return reason

    def _simple_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        where = at or "it"
        values, allowed = _values(stored), _values(wanted)
        if allowed is not None and (
            values is None or any(value not in allowed for value in values)
        ):
            return f"{where} could have other values than now"
        if values is not None and allowed is not None:
            return ""
        kinds = (stored.get("type") or _type_of(values), wanted.get("type"))
        if kinds[0] != kinds[1] and kinds != ("integer", "number"):
            return f"{where} was {kinds[0] or 'anything'}, and is {kinds[1]} now"
        for word in _BOUNDS:
            if word in wanted and stored.get(word) != wanted[word]:
                return f"{where} has another {word} now"
        for word in _ENCODINGS:
            if stored.get(word) != wanted.get(word) and not (_is_text(stored) and _is_text(wanted)):
                return f"{where} was stored with {word} {stored.get(word)}"
        if kinds[1] == "object":
            return self._object_misfit(stored, wanted, at)
        if kinds[1] == "array":
            return self._array_misfit(stored, wanted, at)
        return ""

    def _object_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        text = {"type": "string"}
        names, wanted_names = (schema.get("propertyNames", text) for schema in (stored, wanted))
        reason = self.misfit(names, wanted_names, f"{at}[key]")
        if reason:
            return reason
        if _may_merge(_resolved(names, self._stored), _resolved(wanted_names, self._wanted)):
            return f"{at}[key] could be the same for several that were different"
        before, now = stored.get("properties", {}), wanted.get("properties", {})
        others = _others(wanted, is_ignored=True)
        any_name = _others(stored, is_ignored=False)
        fields = [(name, schema, now.get(name, others)) for name, schema in before.items()]
        if any_name is not None:  # a dict: its keys are data, which must not be lost
            if "properties" in wanted:
                return f"{at or 'it'} was a dict, and what has fields can't keep its keys"
            fields.append(("*", any_name, others))
        for name, schema, other in fields:
            path = _below(at, name)
            if other is None:
                return f"{path} is unknown now, which is forbidden"
            if name in now and not _is_still_default(schema, other):
                return f"{path} was left out where it was the default, which is another one now"
            reason = self.misfit(schema, other, path)
            if reason:
                return reason
        return _missing_misfit(stored, wanted, at)

    def _array_misfit(self, stored: _Schema, wanted: _Schema, at: str) -> str:
        where = at or "it"
        before, now = stored.get("prefixItems", []), wanted.get("prefixItems", [])
        names = zip(stored.get("names", []), wanted.get("names", []), strict=False)
        for index, (was, name) in enumerate(names):
            if was != name:
                return (
                    f"{at}[{index}] was {was or 'the tag'}, and is {name or 'the tag'} now; fields of "
                    "an array are told by their place"
                )
        if wanted.get("minItems", 0) > stored.get("minItems", 0):
            return f"{where} could have {stored.get('minItems', 0)} elements, and now needs more"
        most = stored.get("maxItems", len(before) if "prefixItems" in stored else None)
        if "maxItems" in wanted and (most is None or most > wanted["maxItems"]):
            return f"{where} could have more elements than now"
        if wanted.get("uniqueItems") and not stored.get("uniqueItems"):
            return f"{where} could have the same element twice"
        # What is behind the elements that have a schema of their own.
        more = stored.get("items", False if "prefixItems" in stored else {})
        others = wanted.get("items") or {}  # none are left if there must not be any
        for index in range(max(len(before), len(now))):
            earlier = before[index] if index < len(before) else more
            other = now[index] if index < len(now) else others
            reason = "" if earlier is False else self.misfit(earlier, other, f"{at}[{index}]")
            if reason:
                return reason
        return "" if more is False else self.misfit(more, others, f"{at}[]")


_NO_LIMITS = {"$defs", "title", "description", "default", "examples", "deprecated"} | {
    "leftOut",
    "defaults",
}
"""Words that are for people, or that say what is made of a missing field."""

_ENCODINGS = ("contentEncoding", "format")
"""Words for what is not stored as text, although it is a string in JSON."""

_DEFAULT = "leftOut"
"""Our own word: what a field is that is not written. Others are "defaults", the forms that what a
field has as its default may be stored in, and "names", those of an array's elements."""

_BOUNDS = (
    "format",
    "pattern",
    "timeZone",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
)
"""Words that limit a value. Another limit may refuse what was stored."""


def _resolved(schema: _Schema, definitions: _Schema) -> _Schema:
    reference = schema.get("$ref")
    return definitions[reference.removeprefix("#/$defs/")] if reference else schema


def _alternatives(schema: _Schema, definitions: _Schema) -> list[_Schema]:
    """The schemas that a value may be of; references stay, because types may refer to themselves."""
    alternatives = _resolved(schema, definitions).get("anyOf")
    if alternatives is None:
        return [schema]
    return [
        alternative for inner in alternatives for alternative in _alternatives(inner, definitions)
    ]


def _may_merge(stored: _Schema, wanted: _Schema) -> bool:
    """Whether different values of the stored schema may be one of the wanted one."""
    if (stored.get("type"), wanted.get("type")) == ("integer", "number"):
        return True  # beyond 2^53
    return bool(stored.get("properties", {}).keys() - wanted.get("properties", {}).keys())


def _others(schema: _Schema, *, is_ignored: bool) -> _Schema | None:
    """The schema of fields that are not listed; None if there must not be any.

    Args:
        schema: The schema of a struct or dict.
        is_ignored: Whether a struct that doesn't say takes no notice of such fields.
    """
    others = schema.get("additionalProperties", "properties" not in schema or is_ignored)
    if isinstance(others, dict):
        return others
    return {} if others else None


def _missing_misfit(stored: _Schema, wanted: _Schema, at: str) -> str:
    """Why a field may be missing in the stored struct that the wanted struct needs; empty if none may."""
    for name in wanted.get("required", []):
        path = _below(at, name)
        if name not in stored.get("properties", {}):
            return f"{path} is new, and has no default"
        if name not in stored.get("required", []):
            return f"{path} could be missing, and now must not"
    return ""


def _is_still_default(stored: _Schema, wanted: _Schema) -> bool:
    """Whether the value of a field that was left out is still made in the same way."""
    if _DEFAULT not in stored:
        return True
    return stored[_DEFAULT] in wanted.get("defaults", [])


def _is_text(schema: _Schema) -> bool:
    return "contentEncoding" not in schema and schema.get("format") != "date-time"


def _type_of(values: list[Any] | None) -> str | None:
    """The type of all of these values, as a schema names it; None if they have several."""
    types = {_TYPES.get(type(value)) for value in values or ()}
    return types.pop() if len(types) == 1 else None


_TYPES = {str: "string", int: "integer", type(None): "null"}


def _values(schema: _Schema) -> list[Any] | None:
    """The values that a schema lists, or None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return None if values is None else list(values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
