"""A PySpark that is too old is refused by name, before something else fails for it."""

import sys

import pytest

from holdfast.cli.command_line import main
from holdfast.spark import check_pyspark


@pytest.mark.parametrize("version", ["3.5.8", "4.0.1", "4.0.2.dev0"])
def test_an_old_pyspark_is_refused_in_one_line(version: str) -> None:
    with pytest.raises(ImportError) as refused:
        check_pyspark(version)
    (line,) = str(refused.value).splitlines()
    assert f"needs PySpark 4.1 or later, and this is PySpark {version}" in line


@pytest.mark.parametrize("version", ["4.1.0.dev3", "4.1.1", "4.2.0-preview2", "4.10.0", "5.0.0"])
def test_a_later_pyspark_is_accepted(version: str) -> None:
    check_pyspark(version)


def test_a_command_says_in_one_line_that_pyspark_is_too_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "holdfast.spark")
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    assert main(["rollback", "file:///nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is PySpark 4.0.1" in line
