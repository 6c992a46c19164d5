"""The alert rules and the dashboard in `infra/observability`: they use metrics that exist, and link to the runbook."""

import json
import re
from pathlib import Path

from pymdownx.slugs import slugify

from holdfast.spark.metrics import METRICS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "infra" / "observability"
RULES = (FOLDER / "alerts.yml").read_text()
DASHBOARD = FOLDER / "dashboard.json"
METRIC = re.compile(r"\bholdfast_\w+")


def exported_names() -> set[str]:
    """Return the names of all series of all metrics."""
    parts = ("_bucket", "_sum", "_count")
    histograms = {
        metric.name + part for metric in METRICS if metric.type == "histogram" for part in parts
    }
    return histograms | {metric.name for metric in METRICS}


def test_alerts_and_dashboard_use_known_metrics() -> None:
    pages = [RULES, DASHBOARD.read_text(), (ROOT / "docs" / "monitoring.md").read_text()]
    used = {name for page in pages for name in METRIC.findall(page)}
    assert used - exported_names() == set()


def test_labels_of_queries_are_those_of_the_metrics() -> None:
    labels = {label for metric in METRICS for label in metric.labels} | {"le", "instance"}
    expressions = re.findall(r"\bby \(([^)]*)\)", RULES + DASHBOARD.read_text())
    used = {label.strip() for expression in expressions for label in expression.split(",")}
    assert used <= labels


def test_every_alert_links_to_an_entry_of_the_runbook_and_has_a_case() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    slug = slugify(case="lower")
    anchors = {slug(heading, "-") for heading in headings}
    links = re.findall(r"runbook_url: docs/runbook\.md#(\S+)", RULES)
    alerts = re.findall(r"alert: (\w+)", RULES)
    assert len(links) == len(alerts)
    assert set(links) <= anchors
    page, cases = (
        (ROOT / "docs" / "monitoring.md").read_text(),
        (FOLDER / "alerts_test.yml").read_text(),
    )
    for alert in alerts:
        assert f"`{alert}`" in page
        assert re.search(rf"alertname: {alert}\n *exp_alerts:\n", cases)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
