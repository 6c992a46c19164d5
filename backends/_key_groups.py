"""Key groups: the units by which a job is rescaled. Pure functions."""

MAX_PARALLELISM = 1 << 15
_LEAST_DEFAULT = 128


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that names none.

    Args:
        parallelism: Number of subtasks, at least 1.

    Returns:
        The power of two at or above 1.5 times the parallelism, between 128 and 32768.

    Source:
        Flink, KeyGroupRangeAssignment.computeDefaultMaxParallelism.
    """
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), _LEAST_DEFAULT), MAX_PARALLELISM)
