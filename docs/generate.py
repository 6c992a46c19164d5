"""Writes the pages that are made from code: `python -m docs.generate`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from holdfast.cli.command_line import COMMANDS, parser
from holdfast.cli.options import STORES, Command, Option
from holdfast.spark.metrics import METRICS, Metric
from holdfast.spark.settings import Setting, settings_table

if TYPE_CHECKING:
    from infra.versions.versions import Result, SuiteResult

_RESULTS = Path(__file__).parents[1] / "infra" / "versions" / "results.json"

_SETTINGS_HEAD = """# Settings

Set them like any other Spark setting: in `SparkSession.builder.config`, with `--conf`, in `spark-defaults.conf`, or as arguments of `configure`.
[Configuration](configuration.md) describes their precedence. Unknown keys are rejected. A query uses the values that are set when it starts. Wrong values are rejected
with the same message by `configure`, by commands, and when a query is created or started. `holdfast settings` prints them.
"""

_GROUPS = {
    "spark.holdfast.": "Checkpoints and savepoints",
    "spark.holdfast.state.": "State",
    "spark.holdfast.state.backend.rocksdb.": "RocksDB",
    "spark.holdfast.metrics.": "Metrics, spans and log",
    "spark.holdfast.s3.": "S3",
}
"""Headings by the beginning of a key; the longest one that matches counts."""

_METRICS_HEAD = """# Metrics

[Metrics and alerts](monitoring.md#metrics-and-alerts) describes how a job exports them. The names are the same in Prometheus, in OpenTelemetry and in the
[JSON log](monitoring.md#log). `job_id` is the job, `operator` the uid of an operator. Counters start at 0 with the driver, except `holdfast_restarts_total`.

| type | in Prometheus |
|---|---|
| counter | `rate` or `increase` of it |
| gauge | the value itself |
| histogram | `histogram_quantile` of `rate` of its `_bucket`; `_sum` and `_count` too |
"""

_METRIC_GROUPS: dict[str, Callable[[Metric], bool]] = {
    "Jobs": lambda metric: "job_id" in metric.labels and "operator" not in metric.labels,
    "Operators": lambda metric: "operator" in metric.labels and "subtask" not in metric.labels,
    "Subtasks": lambda metric: "subtask" in metric.labels,
    "Metrics themselves": lambda metric: not metric.labels,
}

_COMMANDS_HEAD = """# Command line

`pip install holdfast` installs the command `holdfast`. It reads checkpoints in any store, while a job runs or after it has ended. `savepoint`, `restore`, `rollback` and `import` also need
PySpark, and so does [`--conf`](#stores). The guides have examples with their output: [Monitoring and inspection](monitoring.md), [Savepoints, forks and rollback](savepoints.md),
[Retention and cleanup](retention.md), [Flink savepoints](flink-savepoints.md). The [Runbook](runbook.md) has the commands for each failure.

- Options may be before, between or after the arguments. `-h` or `--help` prints the help of a command, `holdfast --version` the version.
- `clean` and `rollback` delete nothing without `--yes`.
- Results are on standard output, everything else on standard error. `--json` is for programs.
- [A script](configuration.md#shell-completion) completes commands and options in bash and zsh.

## Exit status

"""


class _Arguments:
    """Records the arguments of a command, with the methods of a parser of argparse."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def add_argument(self, *names: str, **settings: Any) -> SimpleNamespace:
        """Record an argument."""
        has_value = settings.get("action") in {None, "append"}
        metavar = settings.get("metavar") or f"{{{','.join(settings.get('choices', ()))}}}"
        value = metavar if isinstance(metavar, str) else " ".join(metavar)
        if names[0].startswith("-"):
            name = ", ".join(f"`{each} {value}`" if has_value else f"`{each}`" for each in names)
        else:
            form = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}.get(str(settings.get("nargs")), "{}")
            name = f"`{form.format(value)}`"
        required = "; required" if settings.get("required") else ""
        self.rows.append((name, _escape(settings["help"]) + required))
        return SimpleNamespace()

    def add_argument_group(self, _title: str, _description: str) -> "_Arguments":
        """Record the arguments of a group with the others."""
        return self

    def add_mutually_exclusive_group(self, **_settings: Any) -> "_Arguments":
        """Record the arguments of a group with the others."""
        return self


def settings_page() -> str:
    """The page about settings: a section per setting, so that each has an address and search finds it."""
    sections = dict.fromkeys(_GROUPS, "")
    for setting in settings_table():
        group = max((key for key in _GROUPS if setting.name.startswith(key)), key=len)
        sections[group] += _setting_section(setting)
    return _SETTINGS_HEAD + "".join(
        f"\n## {_GROUPS[key]}\n{text}" for key, text in sections.items()
    )


def _setting_section(setting: Setting) -> str:
    facts = {
        "Value": setting.kind,
        "Default": _default(setting),
        "Argument": f"`{setting.argument}`",
        "Flink": f"`{setting.flink}`" if setting.flink else "",
    }
    line = " · ".join(f"**{name}:** {fact}" for name, fact in facts.items() if fact)
    return f"\n### `{setting.name}`\n\n{setting.meaning}\n\n{line}\n"


def _default(setting: Setting) -> str:
    return "none" if setting.default_text is None else f"`{setting.default_text}`"


def metrics_page() -> str:
    """The page about metrics: a section per metric."""
    page = _METRICS_HEAD
    for title, is_in in _METRIC_GROUPS.items():
        page += f"\n## {title}\n"
        page += "".join(_metric_section(metric) for metric in METRICS if is_in(metric))
    return page


def _metric_section(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    line = f"**Type:** {metric.type} · **Unit:** {_UNITS.get(metric.unit, metric.unit)} · **Labels:** {labels}"
    return f"\n### `{metric.name}`\n\n{metric.meaning}\n\n{line}\n"


_UNITS = {"s": "seconds", "By": "bytes", "1": "none"}


def commands_page() -> str:
    """The page about the command line."""
    statuses = re.findall(r"^  ([\d, ]*\d)  (.*)$", parser().epilog or "", re.MULTILINE)
    page = _COMMANDS_HEAD + _table("status", "meaning", statuses)
    page += "\n## Stores\n\nEach command that reads a store has these options. By default S3 is configured as for the AWS tools, HDFS by `HADOOP_CONF_DIR`.\n\n"
    page += _options([STORES])
    for purpose, group in COMMANDS.items():
        page += f"\n## {purpose.capitalize()}\n"
        for each in group:
            commands = [each] if isinstance(each, Command) else each.commands
            prefix = "" if isinstance(each, Command) else f"{each.name} "
            page += "".join(_command_section(command, prefix) for command in commands)
    return page


def _command_section(command: Command, prefix: str) -> str:
    description = "\n\n".join(_paragraph(each) for each in command.description.split("\n\n"))
    examples = "\n".join(line.strip() for line in command.examples.strip().splitlines())
    own = [each for each in command.options if each is not STORES]
    stores = "\nAnd the options of [stores](#stores).\n" if STORES in command.options else ""
    return (
        f"\n### holdfast {prefix}{command.name}\n\n{description}\n\n```text\n{examples}\n```\n\n"
        f"{_options(own)}{stores}"
    )


def _paragraph(text: str) -> str:
    """A paragraph of the help; an indented one is a table."""
    return f"```text\n{text}\n```" if text.startswith(" ") else _escape(" ".join(text.split()))


def _options(options: list[Option]) -> str:
    arguments = _Arguments()
    for add_to in options:
        add_to(arguments)
    return _table("argument", "meaning", arguments.rows)


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {name} | {text} |\n" for name, text in rows]
    return f"| {first} | {second} |\n|---|---|\n{''.join(lines)}"


def _escape(text: str) -> str:
    """Escape a string of the help for Markdown, except for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\*_|<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


_BEGIN, _END = "<!-- versions: made by `make docs` -->\n", "<!-- end of versions -->"
_SUITES = {
    "types": "types",
    "library": "states, checkpoints, Flink, commands",
    "spark": "jobs",
    "quick": "central jobs",
    "connect": "Spark Connect",
    "cluster": "killed executors",
    "readme": "example of the README",
}


def support_matrix(page: str) -> str:
    """The page of supported versions, with the table of the recorded runs."""
    results: dict[str, Result] = json.loads(_RESULTS.read_text())
    suites = [
        suite for suite in _SUITES if any(suite in each["suites"] for each in results.values())
    ]
    head = [
        "PySpark",
        "Python",
        "pyarrow, pandas, NumPy",
        *map(_SUITES.__getitem__, suites),
        "date",
    ]
    rows = [head, ["---"] * len(head), *(_runs(each, suites) for each in results.values())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table}{_END}{after}"


def _runs(result: "Result", suites: list[str]) -> list[str]:
    versions, own = result["versions"], result["suites"]
    libraries = ", ".join(versions[name] for name in ("pyarrow", "pandas", "numpy"))
    counts = [_counts(own[suite]) if suite in own else "" for suite in suites]
    dates = sorted({suite["date"] for suite in own.values()})
    return [versions["pyspark"], versions["python"], libraries, *counts, ", ".join(dates)]


def _counts(suite: "SuiteResult") -> str:
    if suite["passed"] == 1 and not suite["failed"]:
        return "passed"
    counts = {"passed": suite["passed"], "skipped": suite["skipped"], "failed": suite["failed"]}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


if __name__ == "__main__":
    docs = Path(__file__).parent
    (docs / "settings.md").write_text(settings_page())
    (docs / "metrics.md").write_text(metrics_page())
    (docs / "cli.md").write_text(commands_page())
    matrix = docs / "support-matrix.md"
    matrix.write_text(support_matrix(matrix.read_text()))
