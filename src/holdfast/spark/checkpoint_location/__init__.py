"""Spark's own directory of a query: its logs parsed, its files selected, the link to our checkpoints.

Start with `file_names`, which draws the directory. `logs`, `metadata_file`, `link`, `application` and `zips` are about one
kind of file each, `batches` reads where the query is. `selection` says which files count for a batch; of
sources and states `source_logs` and `state_selection` know that. `rewriting` fits paths in files to another
place. `small_files` and `trees` do what I/O there is. `savepoints/` calls all of it, `query/` leaves the link.
"""

from holdfast.spark.checkpoint_location.application import (
    APPLICATION_FILE,
    decode_application,
    encode_application,
)
from holdfast.spark.checkpoint_location.batches import (
    batch_at,
    inferred_settings,
    newest_batch,
    newest_committed,
)
from holdfast.spark.checkpoint_location.file_names import (
    is_hidden,
    is_unique,
    numbers,
    state_files,
)
from holdfast.spark.checkpoint_location.link import (
    LINK_FILE,
    Link,
    encode_link,
    has_link,
    read_link,
)
from holdfast.spark.checkpoint_location.logs import (
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    STATE_STORE,
    LoggedBatch,
    decode_offsets,
)
from holdfast.spark.checkpoint_location.metadata_file import METADATA, query_id_of, with_query_id
from holdfast.spark.checkpoint_location.places import check_apart, is_within
from holdfast.spark.checkpoint_location.rewriting import Moves, for_spark, has_paths, rewritten
from holdfast.spark.checkpoint_location.selection import UNFINISHED_FILE, beyond, select
from holdfast.spark.checkpoint_location.small_files import (
    delete,
    names_in,
    read,
    read_json,
    read_json_in,
    read_text,
    replace,
    write,
)
from holdfast.spark.checkpoint_location.trees import materialised, opened, tree
from holdfast.spark.checkpoint_location.zips import parts_of

__all__ = [
    "APPLICATION_FILE",
    "LINK_FILE",
    "METADATA",
    "PROVIDER_CLASS",
    "SHUFFLE_PARTITIONS",
    "STATE_STORE",
    "UNFINISHED_FILE",
    "Link",
    "LoggedBatch",
    "Moves",
    "batch_at",
    "beyond",
    "check_apart",
    "decode_application",
    "decode_offsets",
    "delete",
    "encode_application",
    "encode_link",
    "for_spark",
    "has_link",
    "has_paths",
    "inferred_settings",
    "is_hidden",
    "is_unique",
    "is_within",
    "materialised",
    "names_in",
    "newest_batch",
    "newest_committed",
    "numbers",
    "opened",
    "parts_of",
    "query_id_of",
    "read",
    "read_json",
    "read_json_in",
    "read_link",
    "read_text",
    "replace",
    "rewritten",
    "select",
    "state_files",
    "tree",
    "with_query_id",
    "write",
]
