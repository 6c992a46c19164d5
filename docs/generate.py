"""Writes the pages that are made from code: `python -m docs.generate`."""

from pathlib import Path

from holdfast.spark.settings import Setting, settings_table

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


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(settings_page())
