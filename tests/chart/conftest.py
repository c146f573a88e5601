import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "charts" / "tools")]

from chart_support import Sample, samples  # noqa: E402

from grpo_api import metric_names as m  # noqa: E402
from grpo_api.names import State  # noqa: E402


def _scrape(registry: CollectorRegistry) -> list[Sample]:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def trainer_scrape() -> list[Sample]:
    """Over HTTP, from the trainer's own metrics after a step that computed everything, and a validation."""
    from grpo_trainer.metrics import TrainerMetrics
    from grpo_trainer.validation_report import record
    from tests.step_report import REPORT, VALIDATION

    metrics = TrainerMetrics("team", "arithmetic")
    metrics.record_step(REPORT, 1000.0)
    record(VALIDATION, metrics)
    metrics.record_checkpoint(3, 1001.0, 4096)
    metrics.set(m.RESUMED_STEP, 0)
    return _scrape(metrics.registry)


@pytest.fixture(scope="session")
def operator_scrape() -> Iterator[list[Sample]]:
    """Over HTTP, from the operator's own metrics with a job in each state."""
    from grpo_operator import metrics
    from grpo_operator.cache import Cache

    cache = Cache()
    for state in State:
        cache.put_job(
            {
                "metadata": {"namespace": "team", "name": state.lower(), "uid": state, "resourceVersion": "1"},
                "status": {"state": state, "gang": {"backend": "native"}},
            }
        )
    metrics.count_request("list", "Pod", 200)
    entry = {"attempt": 0, "time": "2026-01-01T00:00:00Z", "cause": "PodDeleted"}
    metrics.count_restart({"attempt": 0}, {"attempt": 1, "restarts": [entry]})
    with pytest.raises(TimeoutError), metrics.count_errors():
        raise TimeoutError
    collector = metrics.JobCollector(cache, lambda: 0, lambda: 0.0)
    metrics.REGISTRY.register(collector)
    yield _scrape(metrics.REGISTRY)
    metrics.REGISTRY.unregister(collector)


@pytest.fixture(scope="session")
def scrape(trainer_scrape: list[Sample], operator_scrape: list[Sample]) -> list[Sample]:
    return [*trainer_scrape, *operator_scrape]
