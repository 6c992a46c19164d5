"""Files of settings, read as Spark reads them, and lines for them."""

import pytest

from holdfast.cli.properties_file import parse_properties, properties_line

READ = {
    "key value": "value",
    "key=value": "value",
    "key : value ": "value",
    "  key\t=  value": "value",
    "key of two words": "of two words",
    "key abc==": "abc==",
    "key s3://b/date=2026/x": "s3://b/date=2026/x",
    "key = q=1": "q=1",
    "key": "",
    "key a\\\\b": "a\\b",
    "key \\u00e4\\ud83d\\ude00\\t.": "ä😀\t.",
    "key one, \\\n    two": "one, two",
    "key a\\\\\nother b": "a\\",
    "# key no \\\nkey yes": "yes",
    "! key no\nkey yes\n\n": "yes",
}


@pytest.mark.parametrize("text", READ)
def test_a_file_is_read_by_javas_rules(text: str) -> None:
    assert parse_properties(text)["key"] == READ[text]


@pytest.mark.parametrize(
    "value",
    ["file:///env=prod/state", "=x", ":x", "#x", "back\\slash", "nb\u00a0sp", "ü\x1b😀\U000e0001"],
)
def test_a_line_is_read_as_it_was_meant(value: str) -> None:
    line = properties_line("spark.key", value)
    assert line.isprintable()
    assert parse_properties(line) == {"spark.key": value}
