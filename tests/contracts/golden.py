"""Expected JSON in `tests/data/golden`, with placeholders for values that differ between runs."""

import json
from pathlib import Path
from string import Template
from typing import Any

_FILES = Path(__file__).parents[1] / "data" / "golden"


def golden(name: str, **values: Any) -> Any:
    """Return the content of a file; each string `"$name"` becomes that value, and `$name` in a string its text."""

    def fill(node: Any) -> Any:
        match node:
            case dict():
                return {key: fill(value) for key, value in node.items()}
            case list():
                return [fill(value) for value in node]
            case str() if node.removeprefix("$") in values and node.startswith("$"):
                return values[node.removeprefix("$")]
            case str():
                return Template(node).safe_substitute(values)
        return node

    return fill(json.loads((_FILES / f"{name}.json").read_text("utf-8")))
