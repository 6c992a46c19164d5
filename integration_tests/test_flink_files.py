"""The savepoints and checkpoints of Flink's own tests, of Flink 1.8 to 2.2: all have equal content."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast import flink
from holdfast.errors import UnreadableStateError

FILES, STATES = 176, 40
OF_THE_CLOCK = (
    "_timer_state/processing_timer"  # registered for the time at which the savepoint was made
)
UNREADABLE = {
    "the changelog state backend has written changes": 4,
    "values of org.apache.flink.test.migration.": 2,
}
"""Parts of the messages of unreadable state: four operators of a checkpoint, and a class on the heap."""


def rows_of(savepoint: flink.FlinkSavepoint, state: dict[str, Any]) -> pa.Table:
    """Return the rows of a state in `states`, without times that vary. Raises `UnreadableStateError`."""
    if state["failure"]:
        raise UnreadableStateError(state["failure"])
    table = savepoint.read_state(
        state["operator"], state["state"], kind=state["kind"], check_keys=True
    )
    return table.drop_columns(["timestamp"]) if state["state"] == OF_THE_CLOCK else table


def test_all_versions_backends_and_formats_have_equal_content(flink_savepoints: Path) -> None:
    contents: dict[Any, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    failures: dict[str, int] = defaultdict(int)
    files = sorted(flink_savepoints.rglob("_metadata"))
    assert len(files) == FILES
    for file in files:
        name = str(file.parent.relative_to(flink_savepoints))
        savepoint = flink.open_savepoint(file)
        ids = {row["operator"]: row["id"] for row in savepoint.operators().to_pylist()}
        for row in savepoint.states().to_pylist():
            try:
                table = rows_of(savepoint, row)
            except UnreadableStateError as error:
                [known] = [part for part in UNREADABLE if part in str(error)]
                failures[known] += 1
                continue
            family = re.sub(r"-flink\d.*", "", name)
            place = family, ids[row["operator"]], row["state"], row["kind"]
            contents[place][repr(sorted(map(repr, table.to_pylist())))].append(name)
    assert failures == UNREADABLE
    unlike = {place: list(names.values()) for place, names in contents.items() if len(names) > 1}
    assert not unlike
    assert len(contents) == STATES
