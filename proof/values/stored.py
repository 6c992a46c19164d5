"""Keyed states seen from outside of the job: by `read_state`, by `holdfast cat`, and in a written savepoint."""

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
    """Draw a case; nothing expires in it, because rows that have expired may still be stored."""
    case = states.draw_case(random)
    return replace(case, kind=replace(case.kind, ttl_ms=None))


def run_case(case: StateCase) -> Comparisons:
    """Do all steps, complete a checkpoint, and compare what is read of it with the model."""
    compared, model = Comparisons(), StateModel(case.kind)
    subtasks = do_steps(case, Comparisons(), model)
    if subtasks is None or not case.steps:
        return compared
    try:
        pointer = subtasks.complete(_UID)
        expected = _expected_rows(case, model)
        what = f"{case.kind.name} state"
        _compare(compared, f"{what}, read_state", read_state(pointer, _UID, "s"), case, expected)
        _print_and_ask(compared, what, pointer, case, expected)
        _write(compared, what, pointer, case, expected)
    finally:
        subtasks.checkpoints.delete()
    return compared


def _expected_rows(case: StateCase, model: StateModel) -> dict[Any, Any]:
    """Return what each key has; keys without state are not there."""
    rows = {}
    for key in model.held:
        value = model.expected(key).value
        if value is not None and (value != [] or case.kind.name in {"value", "reducing"}):
            rows[key] = value
    return rows


def _compare(
    compared: Comparisons, what: str, table: pa.Table, case: StateCase, expected: dict[Any, Any]
) -> None:
    keys = zip(*(from_arrow(table[name]) for name in case.key.names), strict=True)
    values = from_arrow(table["value"])
    found: dict[Any, Any] = {}
    if case.kind.name == "map":
        (name,) = set(table.column_names) - {"subtask", "value", *case.key.names}
        for key, map_key, value in zip(keys, from_arrow(table[name]), values, strict=True):
            found.setdefault(frozen(key), []).append([map_key, value])
    else:
        found = {frozen(key): value for key, value in zip(keys, values, strict=True)}
        compared.check(len(found) == len(table), f"{what}: a key has two rows", found)
    given, right = ({key: _order(case, rows[key]) for key in rows} for rows in (found, expected))
    compared.check(given == right, f"{what} of {_shape(case)}", given, "not", right)
    compared.count += len(right)


def _order(case: StateCase, value: Any) -> Any:
    value = frozen(value)
    return sorted(map(repr, value)) if case.kind.name == "map" else value


def _shape(case: StateCase) -> str:
    return f"{case.kind.function} {short_name(case.kind.type)}".strip()


def _print_and_ask(
    compared: Comparisons, what: str, pointer: str, case: StateCase, expected: dict[Any, Any]
) -> None:
    """What the command prints of each key finds the rows of this key again."""
    status, lines, error = _command("cat", "--json", pointer, _UID, "s")
    printed = [json.loads(line) for line in lines]
    rows = (
        sum(len(value) for value in expected.values()) if case.kind.name == "map" else len(expected)
    )
    compared.check(
        status == 0 and len(printed) == rows,
        f"{what}, cat: other rows",
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
    compared: Comparisons, what: str, pointer: str, case: StateCase, expected: dict[Any, Any]
) -> None:
    """The state as a table, written into a new savepoint, is read as it was."""
    if case.kind.name == "reducing":  # its functions are no part of a table
        return
    rows = StateRows(read_state(pointer, _UID, "s"), kind=f"keyed {case.kind.name}")
    written = write_savepoint(
        f"{pointer.rpartition('/')[0]}/savepoints",
        {(_UID, "s"): rows},
        operators={_UID: NewOperator(parallelism=2, key=case.key.names)},
    )
    _compare(compared, f"{what}, written", read_state(written, _UID, "s"), case, expected)
