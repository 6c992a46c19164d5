"""`holdfast settings`: the settings of jobs."""

import argparse
import shutil
import textwrap
from typing import Any

from holdfast.cli.options import command, json_option, option, require_spark
from holdfast.cli.output import print_json, print_status

_MARGIN = "    "


@command(
    "settings",
    help="print the settings of jobs",
    description="Print every spark.holdfast.* key, its default and what it means.",
    examples="""
        holdfast settings
        holdfast settings s3 timeout
    """,
    options=[
        option("words", nargs="*", metavar="WORD", help="only settings with these words"),
        json_option("one object a setting"),
    ],
)
def settings_command(options: argparse.Namespace) -> int:
    """Print the settings whose text has all given words; without words, all settings."""
    words = [word.lower() for word in options.words]
    rows = [row for row in _rows() if all(word in _searchable_text(row) for word in words)]
    if options.json:
        print_json(rows)
    elif rows:
        width = shutil.get_terminal_size().columns
        print("\n\n".join(_paragraph(row, width) for row in rows))
    if not rows:
        print_status(f"no setting contains {' and '.join(map(repr, options.words))}")
    return 0 if rows else 1


def _rows() -> list[dict[str, Any]]:
    with require_spark():
        from holdfast.spark.settings import settings_table  # noqa: PLC0415  # only this command needs it
    return [
        {
            "key": setting.name,
            "value": setting.kind,
            "default": setting.default_text,
            "meaning": setting.meaning,
            "argument": setting.argument,
            "flink": setting.flink or None,
            "hadoop": f"spark.hadoop.fs.s3a.{setting.s3a}" if setting.s3a else None,
        }
        for setting in settings_table()
    ]


def _searchable_text(row: dict[str, Any]) -> str:
    return "\n".join(text for text in row.values() if text).lower()


def _paragraph(row: dict[str, Any], width: int) -> str:
    default = f"{row['default']} by default" if row["default"] else "no default"
    lines = [f"{row['value']}; {default}", row["meaning"], f"configure({row['argument']}=...)"]
    if row["flink"]:
        lines.append(f"in Flink {row['flink']}")
    if row["hadoop"]:
        lines.append(f"else {row['hadoop']}")
    wrapped = (
        textwrap.fill(
            line,
            max(width, 2 * len(_MARGIN)),
            initial_indent=_MARGIN,
            subsequent_indent=_MARGIN,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    return "\n".join([row["key"], *wrapped])
