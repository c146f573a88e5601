"""What Prometheus reads: jobs as the cache holds them at scrape, restarts by cause, requests, errors."""

import pytest
from prometheus_client import CollectorRegistry

from grpo_operator import metrics
from grpo_operator.cache import Cache
from tests.unit.operator.operator_support import ended, raw_job, run, running, running_job


def job(name, namespace="team", **status):
    made = raw_job(name, status=status)
    made["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{name}"}
    return made


@pytest.fixture
def cache():
    found = Cache()
    found.put_job(job("a", state="Running", attempt=2, gang={"backend": "native"}))
    found.put_job(job("b", state="Running"))
    found.put_job(job("c", namespace="other", state="Failed"))
    found.put_job(job("new", namespace="other"))
    return found


@pytest.fixture
def registry(cache):
    found = CollectorRegistry()
    found.register(metrics.JobCollector(cache, lambda: 7, lambda: 1.5))
    return found


def samples(registry, name):
    """Values by labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_jobs_by_state(registry):
    assert samples(registry, "grpo_operator_jobs") == {
        ("team", "Running"): 2,
        ("other", "Failed"): 1,
        ("other", "Pending"): 1,
    }


def test_info_and_restarts_of_each_job(registry):
    info = registry.get_sample_value(
        "grpo_operator_job_info",
        {"job_namespace": "team", "job_name": "a", "state": "Running", "gang_backend": "native"},
    )
    assert info == 1
    assert samples(registry, "grpo_operator_job_restarts")["a", "team"] == 2


def test_queue_is_read_at_scrape(registry):
    assert registry.get_sample_value("grpo_operator_queue_depth") == 7
    assert registry.get_sample_value("grpo_operator_queue_oldest_seconds") == 1.5


def test_series_of_a_deleted_job_vanish(cache, registry):
    for key in (("team", "a"), ("other", "c"), ("other", "new")):
        cache.drop_job(cache.job(key))
    assert samples(registry, "grpo_operator_jobs") == {("team", "Running"): 1}
    (info,) = samples(registry, "grpo_operator_job_info")
    assert "b" in info
    assert set(samples(registry, "grpo_operator_job_restarts")) == {("b", "team")}


def test_state_that_is_over_has_no_series(cache, registry):
    cache.put_job(job("c", namespace="other", state="Succeeded"))
    assert ("other", "Failed") not in samples(registry, "grpo_operator_jobs")


def value(name, **labels):
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_restart_is_counted_once_by_its_cause():
    before = value("grpo_operator_restarts_total", cause="OOMKilled")
    held = running_job()
    status = run(held, running(0), ended(1, 137, "OOMKilled")).status
    metrics.count_restart(held["status"], status)
    metrics.count_restart(status, {**status, "state": "Starting"})
    metrics.count_restart({}, {"state": "Pending"})
    assert value("grpo_operator_restarts_total", cause="OOMKilled") == before + 1


def test_requests_and_errors_are_counted():
    labels = {"verb": "patch", "resource": "grpojobs", "code": "409"}
    requests = value("grpo_operator_api_requests_total", **labels)
    errors = value("grpo_operator_reconcile_errors_total", error="ZeroDivisionError")
    metrics.count_request("patch", "grpojobs", 409)
    with pytest.raises(ZeroDivisionError), metrics.count_errors():
        _ = 1 / 0
    assert value("grpo_operator_api_requests_total", **labels) == requests + 1
    assert value("grpo_operator_reconcile_errors_total", error="ZeroDivisionError") == errors + 1
