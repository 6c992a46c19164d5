"""Spark's checkpoint directory of a query: its logs decoded, its files selected, the link to our checkpoints.

Start with `file_names`, which draws the directory. `logs` reads the logs of batches, `selection` decides which files
belong to a batch, and `paths` rewrites paths for another location. `files` does the I/O, and draws the files at the top.
`savepoints/` calls all of it, `query/` writes the link.
"""

from holdfast.spark.checkpoint_location.file_names import (
    is_hidden,
    is_immutable,
    logged_batches,
    state_files,
)
from holdfast.spark.checkpoint_location.files import (
    APPLICATION_FILE,
    LINK_FILE,
    METADATA,
    UNFINISHED_FILE,
    Link,
    decode_application,
    delete,
    encode_application,
    encode_link,
    has_link,
    names_in,
    opener,
    query_id_of,
    read,
    read_json,
    read_json_in,
    read_link,
    read_text,
    replace,
    tree,
    with_query_id,
    write,
    write_stream,
    zip_parts,
)
from holdfast.spark.checkpoint_location.logs import (
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    STATE_STORE,
    LoggedBatch,
    batch_at,
    decode_offsets,
    inferred_settings,
    newest_batch,
    newest_committed,
)
from holdfast.spark.checkpoint_location.paths import (
    Moves,
    check_disjoint,
    has_paths,
    is_within,
    rewrite_paths,
    spark_uri,
)
from holdfast.spark.checkpoint_location.selection import files_after, select
