"""Writes the pages that are made from code: `python -m docs.generate`."""

from pathlib import Path

from holdfast.spark.settings import Setting, settings_table

_HEAD = """# Settings

Set them like any other Spark setting: in `SparkSession.builder.config`, with `--conf`, in `spark-defaults.conf`, or as arguments of `configure`.
[Configuration](configuration.md) describes their precedence. Unknown keys are rejected. A query uses the values that are set when it starts. Wrong values are rejected
with the same message by `configure`, by commands, and when a query is created or started. `holdfast settings` prints them.
"""

_GROUPS = {
    "spark.holdfast.": "Checkpoints and savepoints",
    "spark.holdfast.state.": "State",
    "spark.holdfast.state.backend.rocksdb.": "RocksDB",
    "spark.holdfast.s3.": "S3",
}
"""Headings by the beginning of a key; the longest one that matches counts."""


def settings_page() -> str:
    """The page about settings: a section per setting, so that each has an address and search finds it."""
    sections = dict.fromkeys(_GROUPS, "")
    for setting in settings_table():
        group = max((key for key in _GROUPS if setting.name.startswith(key)), key=len)
        sections[group] += _section(setting)
    return _HEAD + "".join(f"\n## {_GROUPS[key]}\n{text}" for key, text in sections.items())


def _section(setting: Setting) -> str:
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


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(settings_page())
