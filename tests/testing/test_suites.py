"""The suites have teeth: each planted bug fails the test that is meant to find it."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.exhaustive  # it starts pytest anew

BROKEN = Path(__file__).parent / "broken_file_systems.py"

CAUGHT = {
    "PublishReplaces": "a_conflict_leaves_the_first_file_and_nothing_else[second-publish]",
    "PublishLooksFirst": "one_of_eight_racing_threads_wins[publish]",
    "PublishTakesTheSameBytesForSuccess": (
        "a_conflict_leaves_the_first_file_and_nothing_else[first-publish]"
    ),
    "PublishIsNotThere": "it_is_taken_for_an_exclusive_file_system",
    "CommitReplaces": "a_conflict_leaves_the_first_file_and_nothing_else[second-create_and_commit]",
    "CommitLosesTheEnd": "committed_file_is_complete_and_the_only_one[parts3]",
    "CommitLosesWhatWasSynced": "sync_may_come_at_any_time_and_changes_no_bytes",
    "CommitTwiceIsTaken": "finished_stream_refuses_further_calls[commit]",
    "CommitDoesNotNoticeAbort": ("abort_at_any_step_of_a_commit_leaves_the_whole_file_or_nothing"),
    "CreateShowsTheName": "unfinished_file_is_visible_only_in_exclusive_stores",
    "SyncShowsTheFile": "unfinished_file_is_visible_only_in_exclusive_stores",
    "SyncAfterTheEndIsTaken": "finished_stream_refuses_further_calls[commit]",
    "AbortLeavesAFile": "nothing_is_left_after_abort[False-12]",
    "AbortTakesBackACommit": "committed_file_is_complete_and_the_only_one[parts2]",
    "AbortIsNotNoticedByTheWriter": "abort_from_another_thread_stops_the_writer",
    "WriteKeepsTheBuffer": "a_buffer_may_be_used_again_after_it_was_written",
    "FilesShareATemporaryName": "several_files_of_a_directory_can_be_in_progress",
    "ListOmitsSizes": "list_distinguishes_files_and_directories",
    "ListGivesSeconds": "list_distinguishes_files_and_directories",
    "ListGivesNames": "list_distinguishes_files_and_directories",
    "ListGoesDeeper": "list_distinguishes_files_and_directories",
    "ListEndsAfterThePage": "list_finds_every_one_of_many",
    "ListOfNothingFails": "a_missing_directory_has_no_entries",
    "DeleteFailsOnWhatIsMissing": "delete_of_missing_files_succeeds",
    "DeleteStopsAtWhatIsMissing": "bulk_delete_removes_existing_files",
    "DeleteTakesPatterns": "deleting_one_name_leaves_similar_ones",
    "DeleteTreeTakesWhatBeginsTheSame": "delete_tree_removes_only_files_in_the_tree",
    "DeleteEmptyDirectoryTakesFullOnes": "a_directory_is_deleted_only_while_it_is_empty",
    "PrepareDirectoryMakesOneLevel": "a_file_in_the_way_of_a_directory_is_refused_and_kept[/b]",
    "OpenRaisesItsOwnErrors": "open_of_missing_file_raises_not_found",
    "OpenSharesOnePosition": "readers_of_one_file_do_not_meet",
    "DisposeOnFailureTakesAll": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.EXCLUSIVE]"
    ),
    "DisposeOnFailureTakesNothing": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.EXCLUSIVE]"
    ),
    "DisposeOnFailureLeavesSharedFiles": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.SHARED]"
    ),
    "CheckpointsAreInTextOrder": "completed_checkpoints_are_in_the_order_of_their_ids",
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What pytest says of each test that failed, or nothing, by the bug and the test's name."""
    report = tmp_path_factory.mktemp("suites") / "report.xml"
    tests = [f"{BROKEN}::Test{bug}::test_{test}" for bug, test in CAUGHT.items()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    ran = subprocess.run(
        [*command, f"{BROKEN}::TestNothing", *tests], capture_output=True, text=True, check=False
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout
    outcomes: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ET.parse(report).iter("testcase"):
        assert case.find("error") is None, "a fixture is broken, not an adapter"
        bug = case.attrib["classname"].rpartition(".")[2].removeprefix("Test")
        outcomes[bug][case.attrib["name"].removeprefix("test_")] = case.findtext("failure", "")
    return outcomes


def test_an_adapter_without_bugs_passes(failures: dict[str, dict[str, str]]) -> None:
    assert len(failures["Nothing"]) >= len(set(CAUGHT.values()))
    assert set(failures["Nothing"].values()) == {""}


@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_caught(failures: dict[str, dict[str, str]], bug: str) -> None:
    assert failures[bug][CAUGHT[bug]]


def test_every_planted_bug_is_looked_for() -> None:
    planted = re.findall(r"^class Test(\w+)\(", BROKEN.read_text(), re.MULTILINE)
    assert [bug for bug in planted if bug != "Nothing"] == list(CAUGHT)


def test_a_failed_assert_shows_its_values(failures: dict[str, dict[str, str]]) -> None:
    said = failures["CommitLosesWhatWasSynced"]["sync_may_come_at_any_time_and_changes_no_bytes"]
    assert "assert {'x': b''} == {'x': b'123'}" in said
