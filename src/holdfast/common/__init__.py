"""Small things that every layer uses and that know nothing of checkpoints.

URIs as paths, durations as text, pools, checksums of bytes, values that a process keeps once. They call
nothing else of Holdfast but its errors.
"""

from holdfast.common.best_effort import failures_of, raise_first
from holdfast.common.bounds import (
    MOST,
    BlockBytes,
    Count,
    DurationMs,
    KeyGroup,
    Parallelism,
    TimeMs,
)
from holdfast.common.clock import SYSTEM_CLOCK, Clock
from holdfast.common.crc import crc32c, joined_crc32c
from holdfast.common.decoders import json_decoder, message_pack_decoder
from holdfast.common.durations import duration_s
from holdfast.common.exact_reads import fill, read_exactly, read_into
from holdfast.common.parallel import ContextPool, as_they_end, check_wanted, in_parallel
from holdfast.common.process_cache import ProcessCache
from holdfast.common.process_lock import ProcessLock
from holdfast.common.shortages import raise_shortage, shortage_of
from holdfast.common.uripath import checkpoint_directory

__all__ = [
    "MOST",
    "SYSTEM_CLOCK",
    "BlockBytes",
    "Clock",
    "ContextPool",
    "Count",
    "DurationMs",
    "KeyGroup",
    "Parallelism",
    "ProcessCache",
    "ProcessLock",
    "TimeMs",
    "as_they_end",
    "check_wanted",
    "checkpoint_directory",
    "crc32c",
    "duration_s",
    "failures_of",
    "fill",
    "in_parallel",
    "joined_crc32c",
    "json_decoder",
    "message_pack_decoder",
    "raise_first",
    "raise_shortage",
    "read_exactly",
    "read_into",
    "shortage_of",
]
