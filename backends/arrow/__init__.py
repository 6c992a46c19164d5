"""Arrow data as it is needed here: checked, cast, cut out of larger buffers, as Python values.

Serializers and states call it; it knows no state. Start with `casts`.
"""

from holdfast.backends.arrow.array_checks import missing_in
from holdfast.backends.arrow.casts import MisfitError, cast, cast_rows, is_bytes, is_list, is_text
from holdfast.backends.arrow.elements import Elements, chunks_of, compacted, scalar_of
from holdfast.backends.arrow.equality import equal_rows, plain_floats
from holdfast.backends.arrow.json_texts import json_text, value_of
from holdfast.backends.arrow.trimming import trimmed

__all__ = [
    "Elements",
    "MisfitError",
    "cast",
    "cast_rows",
    "chunks_of",
    "compacted",
    "equal_rows",
    "is_bytes",
    "is_list",
    "is_text",
    "json_text",
    "missing_in",
    "plain_floats",
    "scalar_of",
    "trimmed",
    "value_of",
]
