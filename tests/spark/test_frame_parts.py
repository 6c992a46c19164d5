"""Parts and column values of pandas frames: the same by pandas' internals as by its public methods."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from holdfast.spark.processors.frames import column_values, part_of_frame


def frame() -> pd.DataFrame:
    """Return a frame with columns of all storage layouts of pandas."""
    times = pd.date_range("2024-01-01", periods=6, freq="h")
    columns: dict[str, Any] = {
        "i": np.arange(6),
        "j": np.arange(6) * 10,
        "x": np.arange(6) / 4,
        "text": list("abcdef"),
        "list": [[n] for n in range(6)],
        "naive": times,
        "aware": times.tz_localize("Europe/Berlin"),
        "ext": pd.array([1, None, 3, 4, None, 6], "Int64"),
        "category": pd.Categorical(list("ababab")),
    }
    return pd.DataFrame(columns)


def as_in_another_pandas(whole: pd.DataFrame) -> Any:
    """Return a frame with unknown internals."""
    return SimpleNamespace(iloc=whole.iloc, columns=whole.columns)


@pytest.mark.parametrize("make", [frame, lambda: as_in_another_pandas(frame())])
def test_part_is_a_separate_frame(make: Any) -> None:
    whole = make()
    part = part_of_frame(whole, 2, 5)
    pd.testing.assert_frame_equal(part, frame().iloc[2:5].reset_index(drop=True))
    assert isinstance(part.index, pd.RangeIndex)
    part.loc[0, "i"] = 100
    part["x"] += 1
    part["new"] = part["i"] + part["j"]
    part.columns.name = "changed"
    assert part["new"].tolist() == [120, 33, 44]
    again = part_of_frame(whole, 2, 5)
    pd.testing.assert_frame_equal(again, frame().iloc[2:5].reset_index(drop=True))
    assert part_of_frame(whole, 6, 6).empty


@pytest.mark.parametrize("make", [frame, lambda: as_in_another_pandas(frame())])
def test_column_values_are_numpy_arrays_if_possible(make: Any) -> None:
    whole, other = frame(), make()
    for number, name in enumerate(whole):
        values = column_values(other, number)
        assert isinstance(values, np.ndarray) == isinstance(whole[name].dtype, np.dtype)
        assert values.dtype == whole[name].dtype
        pd.testing.assert_series_equal(pd.Series(values, name=name), whole[name])
        values[0] = values[1]
        pd.testing.assert_series_equal(whole[name], frame()[name])
