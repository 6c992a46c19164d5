"""What a state is called and what its elements are."""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ListStateDescriptor:
    """Names a list state and gives the type of its elements.

    Args:
        name: Unique among the operator's states.
        type: Arrow type of one element; a schema stands for a struct with its fields, that is
            for elements that are rows.

    Raises:
        InvalidRequestError: The name is not a string, or the type is not an Arrow one.
    """

    name: str
    type: pa.DataType

    def __init__(self, name: str, type: pa.DataType | pa.Schema) -> None:
        if not isinstance(name, str):
            raise InvalidRequestError(f"state name {name!r} is not a string")
        if isinstance(type, pa.Schema):
            type = pa.struct(list(type))
        if not isinstance(type, pa.DataType):
            message = f"type of state {name!r} is {type!r}; it must be an Arrow type or schema"
            raise InvalidRequestError(message)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", type)
