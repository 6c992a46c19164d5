"""`make audit ADVISORIES=DIR`: a locked version that a copy of a database names is reported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / "infra" / "checks" / "known_vulnerabilities.py"
ADVISORY = """\
id: PYSEC-1
modified: "2026-01-02T00:00:00Z"
affected:
- package: {name: Some.Package, ecosystem: PyPI}
  ranges:
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: "1.2"}, {introduced: "2.0"}, {last_affected: "2.3"}]
  versions: ["1.5"]
"""


@pytest.mark.parametrize(
    ("version", "is_known"),
    [("1.1", True), ("1.2", False), ("1.5", True), ("2.0", True), ("2.3", True), ("2.4", False)],
)
def test_a_locked_version_is_compared_with_ranges_and_lists(
    version: str,
    is_known: bool,  # noqa: FBT001  # a parameter of the test
    tmp_path: Path,
) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"other==1.1 \\\n    --hash=sha256:00\nsome-package=={version} ; sys == 'x'\n")
    advisories, monthly = tmp_path / "advisories", tmp_path / "monthly"
    (advisories / "vulns" / "some-package").mkdir(parents=True)
    (advisories / "vulns" / "some-package" / "PYSEC-1.yaml").write_text(ADVISORY)
    (monthly / "data").mkdir(parents=True)
    affected = ["<1.2", "==1.5", ">=2.0,<=2.3"]
    entries = {"$meta": {"timestamp": 1767312000}, "some-package": affected}
    (monthly / "data" / "insecure.json").write_text(json.dumps(entries))
    for directory in (advisories, monthly):
        command = [sys.executable, str(CHECK), str(directory), "--lock", str(lock)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == is_known, ran.stderr
        assert "of 2 locked versions" in ran.stdout
        assert "up to 2026-01-02" in ran.stdout
        assert (f"some-package {version}" in ran.stdout) == is_known
