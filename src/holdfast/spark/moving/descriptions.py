"""Descriptions of states that are moved, for people; the same in both directions."""

from holdfast.spark.processors import Declaration


def description(variable: Declaration) -> str:
    """A state variable in words."""
    key = f" by {variable.key_schema.simpleString()}" if variable.key_schema else ""
    ttl = f", lives {variable.ttl_ms} ms" if variable.ttl_ms else ""
    return f"{variable.kind} of {variable.schema.simpleString()}{key}{ttl}"
