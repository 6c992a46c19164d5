"""What deletes, behind the batches of queries, checkpoints that are not needed any more."""

from holdfast.locations.coordination import CheckpointsCleaner

CLEANER = CheckpointsCleaner()
"""The cleaner that all queries of the process share: deleting is never urgent."""
