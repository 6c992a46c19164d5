"""Arrow data as it is needed here: checked, cast, cut out of larger buffers, as Python values.

Serializers and states call it; it knows no state. Start with `casts`; `nesting` is how all of it walks nested data.
"""

from holdfast.backends.arrow.batches import compacted, gather, size_of, take_rows, trimmed
from holdfast.backends.arrow.casts import MisfitError, cast, cast_rows, check_memory, missing_in
from holdfast.backends.arrow.equality import (
    are_new,
    equal_numbers,
    equal_rows,
    order_of,
    plain_floats,
)
from holdfast.backends.arrow.ipc_sizes import (
    blocks_of,
    check_block,
    check_blocks,
    refuse_compressed,
)
from holdfast.backends.arrow.nesting import (
    children_of,
    conformed,
    conformed_column,
    fields_of,
    is_bytes,
    is_list,
    is_text,
    mapped_type,
    nullable_type,
    offsets_of,
    path_below,
    paths_in,
    plain_array,
    plain_type,
    types_in,
    with_children,
)
from holdfast.backends.arrow.python_values import (
    Elements,
    chunks_of,
    dictionary_key,
    named_conversion,
    no_object_error,
    nullable,
    scalar_of,
)
from holdfast.backends.arrow.quick_values import (
    NotQuickError,
    QuickType,
    convert_or,
    is_valid_text,
    quick_type,
)
from holdfast.backends.arrow.sketches import (
    check_sketches,
    estimates_of_sketches,
    union_of_sketches,
)

__all__ = [
    "Elements",
    "MisfitError",
    "NotQuickError",
    "QuickType",
    "are_new",
    "blocks_of",
    "cast",
    "cast_rows",
    "check_block",
    "check_blocks",
    "check_memory",
    "check_sketches",
    "children_of",
    "chunks_of",
    "compacted",
    "conformed",
    "conformed_column",
    "convert_or",
    "dictionary_key",
    "equal_numbers",
    "equal_rows",
    "estimates_of_sketches",
    "fields_of",
    "gather",
    "is_bytes",
    "is_list",
    "is_text",
    "is_valid_text",
    "mapped_type",
    "missing_in",
    "named_conversion",
    "no_object_error",
    "nullable",
    "nullable_type",
    "offsets_of",
    "order_of",
    "path_below",
    "paths_in",
    "plain_array",
    "plain_floats",
    "plain_type",
    "quick_type",
    "refuse_compressed",
    "scalar_of",
    "size_of",
    "take_rows",
    "trimmed",
    "types_in",
    "union_of_sketches",
    "with_children",
]
