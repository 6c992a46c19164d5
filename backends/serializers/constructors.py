"""Constructors that make an object of its fields' values as msgspec does: without calling the user's own."""

import dataclasses
import inspect as signatures
from collections.abc import Callable
from typing import Any, get_origin

from msgspec import inspect

from holdfast.backends.serializers.object_column import NoColumnError


def constructor_of(described: Any) -> Callable[..., Any]:
    """The constructor of a class, which takes the fields' values in their order.

    Args:
        described: The class, as `msgspec.inspect.type_info` describes it.

    Raises:
        NoColumnError: The class is one of attrs.
    """
    cls: Any = get_origin(described.cls) or described.cls
    names = [field.name for field in described.fields]
    if not isinstance(described, inspect.DataclassType):
        parameters = signatures.signature(cls).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        if kinds == {signatures.Parameter.POSITIONAL_OR_KEYWORD} and list(parameters) == names:
            return cls  # type: ignore[no-any-return]
        return lambda *values: cls(**dict(zip(names, values, strict=True)))
    if not hasattr(cls, "__dataclass_fields__"):
        raise NoColumnError("a class of attrs")
    if _has_plain_constructor(cls, names):
        return cls  # type: ignore[no-any-return]

    def make(*values: Any) -> Any:
        made = cls.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made

    return make


def _has_plain_constructor(cls: Any, names: list[str]) -> bool:
    """Whether a dataclass has the constructor that `dataclass` makes, with its fields in order."""
    init = vars(cls).get("__init__")
    return (
        init is not None
        and init.__code__.co_filename == "<string>"
        and "__dataclass_params__" in vars(cls)
        and list(signatures.signature(cls).parameters) == names
        and not any(field.kw_only for field in dataclasses.fields(cls))
    )
