"""Spark's own directory of a query: its logs parsed, its files selected, the link to our checkpoints.

Pure where it can be; savepoints call it. Start with `selection`, which draws the directory.
"""

from holdfast.spark.checkpoint_location.batches import batch_at, inferred_settings, newest_committed
from holdfast.spark.checkpoint_location.link import LINK_FILE, Link, decode_link, encode_link
from holdfast.spark.checkpoint_location.logs import (
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    decode_offsets,
)
from holdfast.spark.checkpoint_location.places import check_apart, is_within
from holdfast.spark.checkpoint_location.rewriting import Moves, has_paths, rewritten
from holdfast.spark.checkpoint_location.selection import (
    METADATA,
    UNFINISHED_FILE,
    Batch,
    beyond,
    is_hidden,
    is_unique,
    numbers,
    select,
    state_versions,
)
from holdfast.spark.checkpoint_location.small_files import (
    delete,
    names_in,
    read,
    read_text,
    replace,
    write,
)
from holdfast.spark.checkpoint_location.trees import materialised, opened, tree
from holdfast.spark.checkpoint_location.zips import parts_of

__all__ = [
    "LINK_FILE",
    "METADATA",
    "PROVIDER_CLASS",
    "SHUFFLE_PARTITIONS",
    "UNFINISHED_FILE",
    "Batch",
    "Link",
    "Moves",
    "batch_at",
    "beyond",
    "check_apart",
    "decode_link",
    "decode_offsets",
    "delete",
    "encode_link",
    "has_paths",
    "inferred_settings",
    "is_hidden",
    "is_unique",
    "is_within",
    "materialised",
    "names_in",
    "newest_committed",
    "numbers",
    "opened",
    "parts_of",
    "read",
    "read_text",
    "replace",
    "rewritten",
    "select",
    "state_versions",
    "tree",
    "write",
]
