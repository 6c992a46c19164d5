"""The cleaner that deletes checkpoints which are no longer needed, in the background of queries."""

from holdfast.locations.coordination import CheckpointsCleaner

CLEANER = CheckpointsCleaner()
"""The cleaner that all queries of the process share: deleting is never urgent."""
