"""Keyed states read without the job: by `read_state`, by `holdfast cat`, and from a written savepoint."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa

from holdfast import NewOperator, StateRows, read_state, write_savepoint
from holdfast.cli.command_line import main
from proof.values import states
from proof.values.checking import Comparisons
from proof.values.plain import from_arrow, frozen, short_name
from proof.values.states import StateCase, StateModel, do_steps, smaller_cases

__all__ = ["draw_case", "run_case", "smaller_cases"]

_UID = "operator"


def draw_case(random: Random) -> StateCase:
    """Draw a case without a time to live, because expired rows may still be stored."""
    case = states.draw_case(random)
    return replace(case, kind=replace(case.kind, ttl_ms=None))


def run_case(case: StateCase) -> Comparisons:
    """Perform all steps, complete a checkpoint, and compare its content with the model."""
    compared, model = Comparisons(), StateModel(case.kind)
    subtasks = do_steps(case, Comparisons(), model)
    if subtasks is None or not case.steps:
        return compared
    try:
        pointer = subtasks.complete(_UID)
        expected = _expected_rows(case, model)
        label = f"{case.kind.name} state"
        _compare(compared, f"{label}, read_state", read_state(pointer, _UID, "s"), case, expected)
        _print_and_ask(compared, label, pointer, case, expected)
        _write(compared, label, pointer, case, expected)
    finally:
        subtasks.checkpoints.delete()
    return compared


def _expected_rows(case: StateCase, model: StateModel) -> dict[Any, Any]:
    """Return the state of each key; keys without state are omitted."""
    rows = {}
    for key in model.held:
        value = model.value_of(key).value
        if value is not None and (value != [] or case.kind.name in {"value", "reducing"}):
            rows[key] = value
    return rows


def _compare(
    compared: Comparisons, label: str, table: pa.Table, case: StateCase, expected: dict[Any, Any]
) -> None:
    keys = zip(*(from_arrow(table[name]) for name in case.key.names), strict=True)
    values = from_arrow(table["value"])
    rows_by_key: dict[Any, Any] = {}
    if case.kind.name == "map":
        (name,) = set(table.column_names) - {"subtask", "value", *case.key.names}
        for key, map_key, value in zip(keys, from_arrow(table[name]), values, strict=True):
            rows_by_key.setdefault(frozen(key), []).append([map_key, value])
    else:
        rows_by_key = {frozen(key): value for key, value in zip(keys, values, strict=True)}
        compared.check(len(rows_by_key) == len(table), f"{label}: a key has two rows", rows_by_key)
    given, right = (
        {key: _order(case, rows[key]) for key in rows} for rows in (rows_by_key, expected)
    )
    compared.check(given == right, f"{label} of {_shape(case)}", given, "not", right)
    compared.count += len(right)


def _order(case: StateCase, value: Any) -> Any:
    value = frozen(value)
    return sorted(map(repr, value)) if case.kind.name == "map" else value


def _shape(case: StateCase) -> str:
    return f"{case.kind.function} {short_name(case.kind.type)}".strip()


def _print_and_ask(
    compared: Comparisons, label: str, pointer: str, case: StateCase, expected: dict[Any, Any]
) -> None:
    """Check that a key as printed by the command finds the rows of this key."""
    status, lines, error = _command("cat", "--json", pointer, _UID, "s")
    printed = [json.loads(line) for line in lines]
    rows = (
        sum(len(value) for value in expected.values()) if case.kind.name == "map" else len(expected)
    )
    compared.check(
        status == 0 and len(printed) == rows,
        f"{label}, cat: other rows",
        f"status {status}, {len(printed)} rows, not {rows}: {error}",
    )
    for row in printed[:3]:
        arguments = [
            argument
            for name in case.key.names
            for argument in ("--key", _argument(name, row[name]))
        ]
        status, lines, error = _command("cat", "--json", pointer, _UID, "s", *arguments)
        again = [json.loads(line) for line in lines]
        same = [each for each in printed if all(each[n] == row[n] for n in case.key.names)]
        compared.check(
            status == 0 and again == same,
            f"cat --key of {' and '.join(short_name(each.type) for each in case.key)}",
            f"{arguments} gives {again}, not {same}: {error}",
        )


def _argument(name: str, value: Any) -> str:
    """Return a key's value as the command has printed it."""
    if value is None:
        return name
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _command(*arguments: str) -> tuple[int, list[str], str]:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = main(arguments)
    return status, output.getvalue().splitlines(), errors.getvalue()


def _write(
    compared: Comparisons, label: str, pointer: str, case: StateCase, expected: dict[Any, Any]
) -> None:
    """Check that the state as a table, written to a new savepoint, is read unchanged."""
    if case.kind.name == "reducing":  # tables have no functions
        return
    rows = StateRows(read_state(pointer, _UID, "s"), kind=f"keyed {case.kind.name}")
    written = write_savepoint(
        f"{pointer.rpartition('/')[0]}/savepoints",
        {(_UID, "s"): rows},
        operators={_UID: NewOperator(parallelism=2, key=case.key.names)},
    )
    _compare(compared, f"{label}, written", read_state(written, _UID, "s"), case, expected)
