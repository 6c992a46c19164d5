"""`holdfast explain`: the runbook's entry for the code of an error, from the installed package."""

import argparse
import re
from importlib.resources import files

from holdfast.cli.options import NothingFoundError, command, option


@command(
    "explain",
    help="print the steps for the code at the end of an error",
    description="Print the runbook's entry for the code at the end of an error: what you see, whether committed\n"
    "data is safe, what to do, and how to check that it worked. Without a code, list all codes.",
    examples="""
        holdfast explain HF-BATCH-GAP
        holdfast explain
    """,
    options=[option("code", nargs="?", metavar="CODE", help="the code, such as HF-BATCH-GAP")],
)
def explain_command(options: argparse.Namespace) -> int:
    """Print the entry of a code, or all codes."""
    runbook = files("holdfast.cli").joinpath("runbook.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^### (HF-\S+)\n+(.*?)\n+(?=##)", runbook, re.MULTILINE | re.DOTALL))
    if options.code is None:
        print("\n".join(entries))
        return 0
    code = options.code.strip("[]").upper()
    if code not in entries:
        raise NothingFoundError(f"no code {code!r}; `holdfast explain` lists all codes")
    print(f"{code}: docs/runbook.md#{code.lower()}\n\n{entries[code]}")
    return 0
