"""Known vulnerabilities of what requirements.lock names, by a copy of a database of advisories; no network.

Run it from the root: `python infra/checks/known_vulnerabilities.py DIR`, or `make audit ADVISORIES=DIR`. DIR is a clone of

    https://github.com/pypa/advisory-database    advisories in the format of OSV
    https://github.com/pyupio/safety-db          versions by package, monthly, not for commercial use

It exits with 1 if there are any. The result is as old as the copy, whose age is printed.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # only what it reads is used
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

_LOCK = Path("requirements.lock")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)
_MODIFIED = re.compile(r'^modified: "?(\d{4}-\d\d-\d\d)', re.MULTILINE)

Locked = dict[NormalizedName, list[Version]]
"""The locked versions, by package."""


def main() -> int:
    """Look every locked version up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--lock", type=Path, default=_LOCK)
    options = parser.parse_args()
    locked: Locked = {}
    for name, version in _PINNED.findall(options.lock.read_text()):
        # More than one where they depend on the version of Python.
        locked.setdefault(canonicalize_name(name), []).append(Version(version))
    if not locked:
        raise SystemExit(f"{options.lock} names no version")
    monthly = options.directory / "data" / "insecure.json"
    if monthly.exists():
        date, count, problems = _by_versions(json.loads(monthly.read_text()), locked)
    else:
        date, count, problems = _by_advisories(options.directory / "vulns", locked)
    for problem in problems:
        print(problem)
    print(
        f"{len(problems)} known of {sum(map(len, locked.values()))} locked versions, by {count:,} advisories up to {date}"
    )
    return 1 if problems else 0


def _by_versions(packages: Mapping[str, Any], locked: Locked) -> tuple[str, int, list[str]]:
    date = f"{datetime.fromtimestamp(packages['$meta']['timestamp'], UTC):%Y-%m-%d}"
    affected = {name: entry for name, entry in packages.items() if name != "$meta"}
    problems = [
        f"{name} {version}: {specifier} is affected"
        for name, specifiers in affected.items()
        for version in locked.get(canonicalize_name(name), ())
        for specifier in specifiers
        if SpecifierSet(specifier).contains(version, prereleases=True)
    ]
    return date, sum(map(len, affected.values())), problems


def _by_advisories(directory: Path, locked: Locked) -> tuple[str, int, list[str]]:
    dates = []
    problems: list[str] = []
    files = sorted(directory.rglob("*.yaml"))
    for file in files:
        text = file.read_text()
        dates += _MODIFIED.findall(text)
        if canonicalize_name(file.parent.name) in locked:
            advisory = yaml.safe_load(text)
            if not advisory.get("withdrawn"):
                problems += affected_advisories(advisory, locked)
    if not files:
        raise SystemExit(f"{directory.parent} is not a clone of an advisory database")
    return max(dates, default="an unknown date"), len(files), problems


def affected_advisories(advisory: Mapping[str, Any], locked: Locked) -> Iterator[str]:
    for affected in advisory.get("affected", ()):
        name = canonicalize_name(affected["package"]["name"])
        ranges = [
            each["events"] for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"
        ]
        listed = set(_versions(affected.get("versions", ())))
        for version in locked.get(name, ()):
            if version in listed or any(_is_within(version, events) for events in ranges):
                aliases = ", ".join(advisory.get("aliases", ()))
                yield f"{name} {version}: {advisory['id']} {aliases}"


def _versions(texts: Iterable[object]) -> Iterator[Version]:
    for text in texts:
        try:
            yield Version(str(text))
        except InvalidVersion:  # of the time before versions had rules; none of them is locked
            continue


def _is_within(version: Version, events: Iterable[Mapping[str, object]]) -> bool:
    """Return whether a version is affected by these events, which are in the order of versions."""
    is_affected = False
    for event in events:
        ((kind, text),) = event.items()
        if str(text) == "0":
            is_affected = True
        elif kind == "introduced":
            is_affected = is_affected or version >= Version(str(text))
        elif kind == "fixed":
            is_affected = is_affected and version < Version(str(text))
        elif kind == "last_affected":
            is_affected = is_affected and version <= Version(str(text))
    return is_affected


if __name__ == "__main__":
    sys.exit(main())
