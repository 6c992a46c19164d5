"""One driver killed with SIGKILL; integration_tests has the other points.

`test_continuation.py` lets a driver without Spark die at each call to the store.
"""

import pytest
from jobs.crash import check_nothing_is_lost_or_doubled
from jobs.job import Job


@pytest.mark.exhaustive
def test_a_driver_killed_between_sink_and_commit_loses_and_doubles_nothing(job: Job) -> None:
    check_nothing_is_lost_or_doubled(job, "before the metadata")
