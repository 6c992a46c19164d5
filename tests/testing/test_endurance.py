"""`proof.endurance`: it reports each measure that grows, and no other."""

from pathlib import Path
from typing import Any

import pytest

from proof.endurance import MEASURES, draw_run, find_growth, read_notes

BATCHES = 1_200


def notes(**growing: float) -> list[dict[str, Any]]:
    """Return notes of a run in which some measures grow by a fraction every thousand batches."""

    def size(name: str, batch: int) -> float:
        return 1e8 * (1 + growing.get(name, 0.0) * batch / 1000)

    # The picture shows the last two as well.
    flat = {measure.name: 0.0 for measure in MEASURES} | {"period_ms": 0.0, "jvm uss": 0.0}
    return [
        {"batch": batch, **{name: size(name, batch) for name in flat}} for batch in range(BATCHES)
    ]


def test_constant_resource_is_not_reported() -> None:
    assert find_growth(notes()) == []
    assert find_growth(notes(period_ms=2)) == []  # with the load of the machine


@pytest.mark.parametrize("name", [measure.name for measure in MEASURES])
def test_each_growing_resource_is_named(name: str) -> None:
    (problem,) = find_growth(notes(**{name: 1.0}))
    assert problem.startswith(f"{name} has grown from ")


def test_interrupted_run_is_reported() -> None:
    assert find_growth(notes()[:900]) == ["900 batches are too few to see what grows"]


def test_running_series_can_be_drawn(tmp_path: Path) -> None:
    whole = "".join(f"{note}\n".replace("'", '"') for note in notes())
    (tmp_path / "notes").write_text(whole + '{"batch": 12')
    read = read_notes(tmp_path / "notes")
    assert read == notes()
    draw_run(tmp_path / "picture.svg", read)
    assert (tmp_path / "picture.svg").read_text().count("<polyline") == 10
