"""The contract's metrics and what the real exporters serve are the same; generated files are fresh."""

import subprocess
import sys

import pytest
from chart_support import ROOT

from grpo_api.metric_names import JOB_LABELS, OPERATOR_METRICS, TRAINER_METRICS


@pytest.mark.parametrize("room", ["trainer", "operator"])
def test_scrape_equals_contract(room, request):
    scraped = request.getfixturevalue(f"{room}_scrape")
    metrics, implied = (TRAINER_METRICS, JOB_LABELS) if room == "trainer" else (OPERATOR_METRICS, ())
    expected = {}
    for metric in metrics:
        labels = {*implied, *metric.labels}
        if metric.kind == "histogram":
            expected |= {f"{metric.name}_{part}": labels for part in ("count", "sum")}
            expected[f"{metric.name}_bucket"] = {*labels, "le"}
        else:
            expected[metric.name] = labels
    found = {sample.name: set(sample.labels) for sample in scraped if not sample.name.endswith("_created")}
    assert found == expected


def test_generated_files_are_fresh():
    done = subprocess.run(
        [sys.executable, str(ROOT / "charts" / "tools" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
