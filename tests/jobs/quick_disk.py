"""A disk where files are not synced: RocksDB syncs several a snapshot, and tests restart no machine."""

import atexit
import os
import shutil
import tempfile

_ROOT = "/dev/shm" if os.path.isdir("/dev/shm") else None

QUICK_DISK = tempfile.mkdtemp(prefix="holdfast-", dir=_ROOT)
"""A directory that is deleted when this process ends."""

atexit.register(shutil.rmtree, QUICK_DISK, ignore_errors=True)
