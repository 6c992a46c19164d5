"""Arrow data: checked, cast, compared, cut out of larger buffers, and converted from and to Python objects.

Serializers and states call it; it knows no state. `nesting` walks nested types for all other modules, `leaf_rules` is the
table of rules for the types inside. Start with `casts`.
"""

from holdfast.backends.arrow.batches import compact_chunks, gather, size_of, take_rows, trim_rows
from holdfast.backends.arrow.casts import (
    IncompatibleValueError,
    cast,
    cast_rows,
    check_memory,
    missing_field,
)
from holdfast.backends.arrow.equality import (
    equal_numbers,
    equal_rows,
    order_of,
    plain_floats,
    run_starts,
)
from holdfast.backends.arrow.ipc_sizes import (
    blocks_of,
    check_block,
    check_blocks,
    refuse_compressed,
)
from holdfast.backends.arrow.leaf_rules import (
    PYTHON_TYPES,
    NotQuickError,
    QuickType,
    is_valid_text,
    leaf_rule,
)
from holdfast.backends.arrow.nesting import (
    children_of,
    conform,
    conform_column,
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
    convert_with_fallback,
    dictionary_key,
    named_conversion,
    no_object_error,
    nullable_array,
    quick_type,
    scalar_of,
)
from holdfast.backends.arrow.sketches import (
    check_sketches,
    estimates_of_sketches,
    union_of_sketches,
)

__all__ = [
    "PYTHON_TYPES",
    "Elements",
    "IncompatibleValueError",
    "NotQuickError",
    "QuickType",
    "blocks_of",
    "cast",
    "cast_rows",
    "check_block",
    "check_blocks",
    "check_memory",
    "check_sketches",
    "children_of",
    "chunks_of",
    "compact_chunks",
    "conform",
    "conform_column",
    "convert_with_fallback",
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
    "leaf_rule",
    "mapped_type",
    "missing_field",
    "named_conversion",
    "no_object_error",
    "nullable_array",
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
    "run_starts",
    "scalar_of",
    "size_of",
    "take_rows",
    "trim_rows",
    "types_in",
    "union_of_sketches",
    "with_children",
]
