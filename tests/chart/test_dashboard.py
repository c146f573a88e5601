"""The dashboard that the chart ships: every query has data in a real scrape, and the grid is whole."""

import itertools
import json
import re

import pytest
from chart_support import CHART, faults, only, parse, render

DASHBOARD = json.loads((CHART / "files" / "grpo.json").read_text())
PANELS = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_queries_find_data(panel, scrape):
    assert panel["targets"]
    for target in panel["targets"]:
        assert faults(target["expr"], scrape) == [], target["expr"]


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_legends_use_labels_of_the_query(panel):
    for target in panel["targets"]:
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), (label, target["expr"])


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_panels_are_described(panel):
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_ids_are_unique_and_titles_too():
    for key in ("id", "title"):
        values = [panel[key] for panel in PANELS]
        assert len(set(values)) == len(values), key


def test_panels_do_not_overlap_and_stay_in_the_grid():
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        box = panel["gridPos"]
        assert box["x"] + box["w"] <= 24, panel["title"]
        columns, lines = range(box["x"], box["x"] + box["w"]), range(box["y"], box["y"] + box["h"])
        for cell in itertools.product(columns, lines):
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]
    lowest = max(y for _, y in taken)
    assert {y for _, y in taken} == set(range(lowest + 1)), "the grid has a gap"


def test_variables(scrape):
    variables = {item["name"]: item for item in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "job"]
    for name in ("namespace", "job"):
        expression, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["query"]).groups()
        parse(expression)
        assert faults(f"max by ({label}) ({expression})", scrape) == []
    used = set(re.findall(r"\$(\w+)", " ".join(t["expr"] for panel in GRAPHS for t in panel["targets"])))
    assert used <= {*variables, "__rate_interval"}


def test_wrong_queries_are_noticed(scrape):
    assert faults("grpo_reward_maen", scrape)
    assert faults('grpo_reward_mean{job="x"}', scrape)
    assert faults("sum by (pod) (grpo_reward_mean)", scrape)
    assert faults('grpo_step_duration_seconds{phase="rollouts"}', scrape)
    assert faults("grpo_step and on (state) grpo_step", scrape)
    assert faults("rate(grpo_tokens[5m])", scrape)


def test_config_map_carries_the_dashboard(tmp_path):
    made = only(render(tmp_path), "ConfigMap", "grpo-operator-dashboard")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["grpo.json"])["uid"] == "grpo-training"
    values = {"dashboards": {"label": "my_label", "labelValue": "yes", "namespace": "monitoring"}}
    made = only(render(tmp_path, values), "ConfigMap", "grpo-operator-dashboard")
    assert (made["metadata"]["labels"]["my_label"], made["metadata"]["namespace"]) == ("yes", "monitoring")
