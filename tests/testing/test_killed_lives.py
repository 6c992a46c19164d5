"""`proof.killed_lives`: processes kill themselves around calls, and others resume their work."""

from pathlib import Path

from proof.killed_lives import kill_everywhere


def test_self_killed_processes_lose_no_data(tmp_path: Path) -> None:
    crashes = kill_everywhere(tmp_path, every=200)
    assert crashes.failures == []
    assert crashes.restarts == 6
