"""Alert rules and dashboard name only what a server shows, and the rules do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.web import WebPair

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "torchfsl.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "torchfsl.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
NAME = re.compile(r"\b(?:torchfsl|process)_\w+")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all series of a server with both doors that has just been started."""
    pytest.importorskip("h11")
    with WebPair(tmp_path_factory.mktemp("servers")) as servers:
        servers.start(0)
        url = f"http://127.0.0.1:{servers.metrics_ports[0]}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    return {one.name + end for one in families for end in SUFFIXES[one.type]}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Where, and what is asked of Prometheus."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_what_an_alert_or_a_panel_asks_for_exists(
    where: str, expression: str, shown: set[str]
) -> None:
    asked = set(NAME.findall(expression))
    assert asked or expression.startswith('up{job="torchfsl"'), where
    assert asked <= shown, where


def test_each_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 0
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert rule["annotations"]["summary"], rule
        assert rule["annotations"]["action"], rule


def test_each_alert_is_on_the_operators_page() -> None:
    page = (ROOT / "docs" / "operate" / "incidents.md").read_text()
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_prometheus_itself_takes_the_rules_and_each_one_fires_when_it_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for command in (
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "torchfsl.rules.test.yml"],
    ):
        done = subprocess.run(
            [promtool, *command], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_played() -> None:
    played = yaml.safe_load((RULES.parent / "torchfsl.rules.test.yml").read_text())["tests"]
    fired = json.dumps(played[1]["promql_expr_test"])
    assert [rule["alert"] for rule in rules() if f'\\"{rule["alert"]}\\"' not in fired] == []
