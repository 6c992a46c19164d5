"""Writes the pages that are made from code: `python -m docs.generate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.spark.settings import Setting, settings_table

if TYPE_CHECKING:
    from infra.versions.versions import Result, SuiteResult

_DOCS = Path(__file__).parent
_RESULTS = _DOCS.parent / "infra" / "versions" / "results.json"

_HEAD = """# Settings

Set them like any other Spark setting: in `SparkSession.builder.config`, with `--conf`, in `spark-defaults.conf`, or as arguments of `configure`.
[Configuration](configuration.md) describes their precedence. Unknown keys are rejected. A query uses the values that are set when it starts. Wrong values are rejected
with the same message by `configure`, by commands, and when a query is created or started. `holdfast settings` prints this table.

| key | argument of `configure` | value | default | meaning | in Flink |
|---|---|---|---|---|---|
"""


def settings_page() -> str:
    """The page about settings."""
    rows = [
        f"| `{setting.name}` | `{setting.argument}` | {setting.kind} | {_default(setting)} "
        f"| {setting.meaning} | {f'`{setting.flink}`' if setting.flink else ''} |\n"
        for setting in settings_table()
    ]
    return _HEAD + "".join(rows)


def _default(setting: Setting) -> str:
    return "none" if setting.default_text is None else f"`{setting.default_text}`"


_BEGIN, _END = "<!-- versions: made by `make docs` -->\n", "<!-- end of versions -->"
_SUITES = {
    "types": "types",
    "library": "states, checkpoints, Flink, commands",
    "spark": "jobs",
    "connect": "Spark Connect",
    "readme": "example of the README",
}


def support_matrix(page: str) -> str:
    """The page of supported versions, with the table of the recorded runs."""
    results: dict[str, Result] = json.loads(_RESULTS.read_text())
    head = ["PySpark", "Python", "pyarrow, pandas, NumPy", *_SUITES.values(), "date"]
    rows = [head, ["---"] * len(head), *map(_runs, results.values())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table}{_END}{after}"


def _runs(result: "Result") -> list[str]:
    versions, suites = result["versions"], result["suites"]
    libraries = ", ".join(versions[name] for name in ("pyarrow", "pandas", "numpy"))
    counts = [_counts(suites[name]) if name in suites else "" for name in _SUITES]
    dates = sorted({suite["date"] for suite in suites.values()})
    return [versions["pyspark"], versions["python"], libraries, *counts, " to ".join(dates)]


def _counts(suite: "SuiteResult") -> str:
    if suite["passed"] == 1 and not suite["failed"]:
        return "passed"
    counted = ("passed", "skipped", "failed")
    return ", ".join(f"{suite[name]} {name}" for name in counted if suite[name])  # type: ignore[literal-required]


if __name__ == "__main__":
    (_DOCS / "settings.md").write_text(settings_page())
    matrix = _DOCS / "support-matrix.md"
    matrix.write_text(support_matrix(matrix.read_text()))
