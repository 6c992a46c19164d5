"""The suites detect bugs: each planted bug fails a certain test."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.exhaustive  # it starts pytest in a new process

BROKEN = Path(__file__).parent / "broken_file_systems.py"

CAUGHT = {
    "PublishReplaces": "a_conflict_leaves_the_first_file_and_nothing_else[second-publish]",
    "PublishChecksBeforeWriting": "one_of_eight_racing_threads_wins[publish]",
    "PublishAcceptsEqualBytes": (
        "a_conflict_leaves_the_first_file_and_nothing_else[first-publish]"
    ),
    "PublishMissing": "it_is_taken_for_an_exclusive_file_system",
    "CommitReplaces": "a_conflict_leaves_the_first_file_and_nothing_else[second-create_and_commit]",
    "CommitLosesTheEnd": "committed_file_is_complete_and_the_only_one[parts3]",
    "CommitLosesSyncedBytes": "sync_may_come_at_any_time_and_changes_no_bytes",
    "SecondCommitSucceeds": "finished_stream_refuses_further_calls[commit]",
    "CommitIgnoresAbort": ("abort_at_any_step_of_a_commit_leaves_the_whole_file_or_nothing"),
    "CreateShowsName": "unfinished_file_is_visible_only_in_exclusive_stores",
    "SyncShowsFile": "unfinished_file_is_visible_only_in_exclusive_stores",
    "SyncSucceedsAfterCommit": "finished_stream_refuses_further_calls[commit]",
    "AbortLeavesFile": "nothing_is_left_after_abort[False-12]",
    "AbortDeletesCommittedFile": "committed_file_is_complete_and_the_only_one[parts2]",
    "WriteIgnoresAbort": "abort_from_another_thread_stops_the_writer",
    "WriteKeepsBuffer": "a_buffer_may_be_used_again_after_it_was_written",
    "FilesShareTemporaryName": "several_files_of_a_directory_can_be_in_progress",
    "ListOmitsSizes": "list_distinguishes_files_and_directories",
    "ListGivesSeconds": "list_distinguishes_files_and_directories",
    "ListGivesNames": "list_distinguishes_files_and_directories",
    "ListRecurses": "list_distinguishes_files_and_directories",
    "ListEndsAfterFirstPage": "list_finds_every_one_of_many",
    "ListRequiresDirectory": "a_missing_directory_has_no_entries",
    "DeleteFailsForMissingFiles": "delete_of_missing_files_succeeds",
    "DeleteStopsAtMissingFile": "bulk_delete_removes_existing_files",
    "DeleteExpandsPatterns": "deleting_one_name_leaves_similar_ones",
    "DeleteTreeMatchesPrefix": "delete_tree_removes_only_files_in_the_tree",
    "DeleteEmptyDirectoryDeletesFiles": "a_directory_is_deleted_only_while_it_is_empty",
    "PrepareDirectoryCreatesOneLevel": "a_file_in_the_way_of_a_directory_is_refused_and_kept[/b]",
    "OpenRaisesFileNotFoundError": "open_of_missing_file_raises_not_found",
    "OpenSharesOnePosition": "readers_of_one_file_do_not_meet",
    "DisposeOnFailureDeletesAll": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.EXCLUSIVE]"
    ),
    "DisposeOnFailureDeletesNothing": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.EXCLUSIVE]"
    ),
    "DisposeOnFailureLeavesSharedFiles": (
        "failed_attempt_keeps_files_of_other_attempts[CheckpointedStateScope.SHARED]"
    ),
    "CheckpointsSortedAsText": "completed_checkpoints_are_in_the_order_of_their_ids",
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The failure of each test, empty if it passed, by bug and test name."""
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


def test_every_planted_bug_has_a_test() -> None:
    planted = re.findall(r"^class Test(\w+)\(", BROKEN.read_text(), re.MULTILINE)
    assert [bug for bug in planted if bug != "Nothing"] == list(CAUGHT)


def test_a_failed_assert_shows_its_values(failures: dict[str, dict[str, str]]) -> None:
    failure = failures["CommitLosesSyncedBytes"]["sync_may_come_at_any_time_and_changes_no_bytes"]
    assert "assert {'x': b''} == {'x': b'123'}" in failure
