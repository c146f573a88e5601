"""Alerts: every query has data in a real scrape; promtool checks the rules and plays scenarios."""

import shutil
import subprocess

import pytest
from chart_support import faults, only, render
from ruamel.yaml import YAML

JOB = '{job_namespace="team", job_name="arithmetic"'


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    made = only(render(tmp_path_factory.mktemp("rules"), {"prometheusRule": {"enabled": True}}), "PrometheusRule")
    return made["spec"]["groups"]


def test_expressions_find_data(groups, scrape):
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 11
    for rule in rules:
        assert faults(rule["expr"], scrape) == [], rule["alert"]


def test_values_reach_the_rules(tmp_path):
    values = {
        "enabled": True,
        "alertLabels": {"team": "ml", "severity": "page"},
        "runbookUrl": "https://runbooks.example/metrics",
        "disabled": ["GRPORewardFlat"],
        "stalledSeconds": 1234,
    }
    rules = only(render(tmp_path, {"prometheusRule": values}), "PrometheusRule")["spec"]["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    assert "GRPORewardFlat" not in by_name
    stalled = by_name["GRPOJobStalled"]
    assert "> 1234 " in stalled["expr"]
    assert stalled["labels"] == {"team": "ml", "severity": "page"}
    assert stalled["annotations"]["runbook_url"] == "https://runbooks.example/metrics#grpojobstalled"


def series(name: str, values: str, labels: str = "") -> dict[str, str]:
    return {"series": f"{name}{labels}", "values": values}


def job_series(name: str, values: str, more: str = "") -> dict[str, str]:
    return series(name, values, f"{JOB}{more}}}")


def state(name: str, values: str) -> dict[str, str]:
    return job_series("grpo_operator_job_info", values, f', state="{name}", gang_backend="native"')


# alert -> (input series at one a minute, minute at which it must fire, minute at which it must not)
SCENARIOS = {
    "GRPOJobStalled": ([state("Running", "1x60"), job_series("grpo_last_step_timestamp_seconds", "600x60")], 45, 35),
    "GRPOJobFailed": ([state("Running", "1x9 _x200"), state("Failed", "_x9 1x200")], 30, 75),
    "GRPOJobWaits": ([state("Pending", "1x20"), state("Scheduling", "_x20 1x60")], 40, 25),
    "GRPOJobRestartsOften": ([job_series("grpo_operator_job_restarts", "0x30 1 2 3 4x120")], 40, 20),
    "GRPOCheckpointStale": (
        [state("Running", "1x300"), job_series("grpo_checkpoint_timestamp_seconds", "0x300")],
        245,
        230,
    ),
    "GRPORewardFlat": ([job_series("grpo_reward_zero_std_groups_ratio", "0.5x10 1x90")], 70, 20),
    "GRPOLossNotANumber": ([job_series("grpo_loss", f"0.1x10 {'NaN ' * 9}")], 15, 5),
    "GRPORewardErrors": (
        [job_series("grpo_reward_errors_total", "0x10 0+1x60", ', function="f", cause="timeout"')],
        40,
        15,
    ),
    "GRPOOperatorDown": ([series("grpo_operator_leader", "1x10 0x30")], 20, 10),
    "GRPOOperatorReconcileErrors": (
        [series("grpo_operator_reconcile_errors_total", "0x10 0+1x60", '{error="KubeError"}')],
        40,
        20,
    ),
    "GRPOOperatorQueueSlow": ([series("grpo_operator_queue_oldest_seconds", "0x10 90x30")], 20, 12),
}


@pytest.fixture(scope="module")
def promtool(groups, tmp_path_factory):
    """Runs promtool in a folder with the rules; needs Debian's package `prometheus`."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not on PATH (Debian: apt-get install prometheus)")
    directory = tmp_path_factory.mktemp("promtool")
    YAML().dump({"groups": groups}, directory / "rules.yaml")

    def run(*arguments: str):
        return subprocess.run(
            [program, *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
        )

    return directory, run


def test_rules_are_valid(promtool):
    _, run = promtool
    done = run("check", "rules", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_scenario(groups):
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(SCENARIOS)


@pytest.mark.parametrize("alert", SCENARIOS)
def test_alert_fires_and_does_not(alert, promtool, groups):
    directory, run = promtool
    inputs, fires, silent = SCENARIOS[alert]
    rule = next(rule for group in groups for rule in group["rules"] if rule["alert"] == alert)
    # promtool compares labels and annotations too: let it print what fires instead, and read that.
    for minute, expected in ((fires, True), (silent, False)):
        test = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": inputs,
                    "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}],
                }
            ],
        }
        YAML().dump(test, directory / "test.yaml")
        done = run("test", "rules", "test.yaml")
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == expected, f"{alert} at minute {minute}: {output}"
        if expected:
            assert f'alertname="{alert}"' in output
            assert f'severity="{rule["labels"]["severity"]}"' in output
            assert "<no value>" not in output
            if "job_name" in rule["annotations"]["summary"]:
                assert "team/arithmetic" in output
