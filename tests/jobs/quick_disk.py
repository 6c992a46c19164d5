"""A disk where files are not synced: RocksDB syncs several a snapshot, and tests restart no machine."""

import os
import tempfile

QUICK_DISK = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
