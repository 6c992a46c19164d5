"""Small utilities that every layer uses and that are independent of checkpoints.

URIs as paths, clocks and durations, thread pools, checksums, decoders, frames of stored files, and values that a
process makes once. They import nothing else of Holdfast except its errors.
"""

from holdfast.common.clock import (
    SYSTEM_CLOCK,
    Clock,
    Moment,
    is_within,
    moment,
    parse_duration_s,
)
from holdfast.common.decoding import (
    MAX_INT64,
    BlockBytes,
    Count,
    DurationMs,
    KeyGroup,
    Parallelism,
    TimeMs,
    json_decoder,
    message_pack_decoder,
)
from holdfast.common.framing import (
    Frame,
    check_crc32c,
    chunks,
    combine_crc32c,
    crc32c,
    fill,
    read_exactly,
    read_into,
    replace_file,
)
from holdfast.common.parallel import (
    CancellingPool,
    ContextPool,
    collect_failures,
    map_as_completed,
    map_in_parallel,
    raise_first,
    raise_if_cancelled,
)
from holdfast.common.process_local import ProcessCache, ProcessLock, gc_paused
from holdfast.common.shortages import FULL_ERRNOS, raise_shortage, shortage_of
from holdfast.common.uripath import checkpoint_directory
