"""Drivers killed with SIGKILL at every step of a batch."""

import pytest
from jobs.crash import check_nothing_is_lost_or_doubled
from jobs.job import Job
from jobs.killed import POINTS


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(job: Job, point: str) -> None:
    check_nothing_is_lost_or_doubled(job, point)
