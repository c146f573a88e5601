"""Time and cost of the operator with many jobs of two pods each, beside KubeRay's on the same rig.

    python -m benchmarks.operator_scale [--jobs 1000] [--gang none|native|gated] [--kuberay] [-o json] [--idle 60]

A real API server, scheduler and controller-manager; kwok in the kubelets' place, so that pods run as soon as they are
bound. Head pods answer `/progress`, and the operator polls them. With --kuberay, KubeRay then brings up as many
RayClusters of two pods. Run it on a quiet machine.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from ruamel.yaml import YAML

from benchmarks.scale_rig import HEAD_PORT, KUBERAY, Api, Object, Program, rig, start_operator
from grpo_api import metric_names, names
from local_cluster.control_plane import ControlPlane

JOBS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
RAY = "/apis/ray.io/v1/namespaces/default/rayclusters"
OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
CORE = "/api/v1/namespaces/default"
SCHEDULING = "/apis/scheduling.k8s.io/v1beta1/namespaces/default"
MERGE = "merge-patch+json"
CONCURRENCY = 16
POLL_SECONDS = 3.0
TIMEOUT_SECONDS = 500.0
SETTLE_SECONDS = 120.0
"""All run for this long before idleness is measured: polls of heads without news have slowed down then."""


def job(number: int, gang: str) -> Object:
    """A GRPOJob of two pods, one GPU each, without a claim."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": f"job-{number}"},
        "spec": {
            "model": {"path": "/models/m"},
            "data": {"train": {"files": ["/data/train.parquet"]}, "trainBatchSize": 8},
            "reward": {"functions": [{"name": "exact", "builtin": {"rule": "exact_match"}}]},
            "actor": {"ppoMiniBatchSize": 8},
            "trainer": {"totalSteps": 20, "nnodes": 2, "nGpusPerNode": 1},
            "gangScheduling": {"backend": gang},
            "metrics": {"port": HEAD_PORT},
        },
    }


def ray_cluster(number: int) -> Object:
    """A RayCluster of a head and a worker, one GPU each."""
    limits = {"cpu": "1", names.GPU_RESOURCE: "1"}
    container = {"name": "ray", "image": "ray", "resources": {"requests": {"cpu": "1"}, "limits": limits}}
    template = {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    worker = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": f"cluster-{number}"},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [worker | {"template": template}],
        },
    }


async def for_each(work: Callable[[int], Awaitable[Any]], count: int) -> None:
    limit = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int) -> None:
        async with limit:
            await work(number)

    await asyncio.gather(*map(one, range(count)))


async def until(what: str, count: Callable[[], Awaitable[int]], wanted: int) -> float:
    """Seconds until the count is as wanted; raises RuntimeError after the time-out."""
    began = time.monotonic()
    while (now := await count()) != wanted:
        print(f"  {now} {what} of {wanted}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if time.monotonic() - began > TIMEOUT_SECONDS:
            raise RuntimeError(f"{now} instead of {wanted} {what} after {TIMEOUT_SECONDS:.0f} s")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


async def scrape(port: int) -> list[Sample]:
    """The operator's own metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def requests(samples: list[Sample]) -> Counter[str]:
    """Requests so far by `verb resource`, without those for the Lease."""
    counts: Counter[str] = Counter()
    for sample in samples:
        if sample.name == metric_names.API_REQUESTS.name and sample.labels["resource"] != "leases":
            counts[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    return counts


def writes(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if name.split()[0] not in ("get", "list"))


def quantile(samples: list[Sample], q: float) -> float:
    """Upper bound in seconds of the histogram's bucket that holds this quantile of reconciles."""
    name = f"{metric_names.RECONCILE_SECONDS.name}_bucket"
    buckets = sorted((float(sample.labels["le"]), sample.value) for sample in samples if sample.name == name)
    return next(bound for bound, value in buckets if value >= q * buckets[-1][1])


async def measure_ours(plane: ControlPlane, count: int, gang: str, idle: float) -> dict[str, Any]:
    """Bring up, leave alone, suspend, resume, and delete without the operator. Seconds, MB, and counts a job."""
    operator, port = start_operator(plane)
    async with operator, Api(plane) as api:

        async def running() -> int:
            return (await api.column(JOBS, "State")).count("Running")

        async def pods() -> int:
            return len(await api.column(f"{CORE}/pods", "Name"))

        async def children() -> int:
            paths = [f"{CORE}/{kind}" for kind in ("pods", "services", "configmaps")]
            paths += [f"{SCHEDULING}/{kind}" for kind in ("workloads", "podgroups")]
            return sum([len(await api.items(path, OURS)) for path in paths])

        async def suspend_all(suspended: bool) -> None:
            change = {"spec": {"runPolicy": {"suspend": suspended}}}
            await for_each(lambda number: api.request("PATCH", f"{JOBS}/job-{number}", change, MERGE), count)

        await asyncio.sleep(3)
        began, cpu = time.monotonic(), operator.cpu_seconds()
        await for_each(lambda number: api.request("POST", JOBS, job(number, gang)), count)
        result: dict[str, Any] = {"jobs": count, "gang": gang, "created_s": time.monotonic() - began}
        await until("running jobs", running, count)
        result |= {"all_running_s": time.monotonic() - began, "cpu_s": operator.cpu_seconds() - cpu}
        samples = await scrape(port)
        counts = requests(samples)
        result["writes_per_job"] = writes(counts) / count
        result["requests_per_job"] = {name: round(value / count, 2) for name, value in sorted(counts.items())}
        result["reconcile_p50_s"], result["reconcile_p99_s"] = quantile(samples, 0.5), quantile(samples, 0.99)
        result["resident_mb"] = operator.resident_mb()
        if idle:
            await asyncio.sleep(SETTLE_SECONDS)
            began, cpu, before = time.monotonic(), operator.cpu_seconds(), writes(requests(await scrape(port)))
            await asyncio.sleep(idle)
            result["idle_cpu_percent"] = 100 * (operator.cpu_seconds() - cpu) / (time.monotonic() - began)
            samples = await scrape(port)
            result["idle_writes"] = writes(requests(samples)) - before
            result["queue_depth"] = next(one.value for one in samples if one.name == metric_names.QUEUE_DEPTH.name)
        began = time.monotonic()
        await suspend_all(True)
        await until("pods", pods, 0)
        result["suspend_to_no_pods_s"] = time.monotonic() - began
        began = time.monotonic()
        await suspend_all(False)
        await until("running jobs", running, count)
        result["resume_to_all_running_s"] = time.monotonic() - began
        result["peak_resident_mb"] = operator.resident_mb(peak=True)
        operator.stop()
        began = time.monotonic()
        # One by one: the API server gives a deletion of all at once a minute.
        await for_each(lambda number: api.request("DELETE", f"{JOBS}/job-{number}"), count)
        await until("children of deleted jobs", children, 0)
        result["deleted_without_operator_s"] = time.monotonic() - began
        return result


async def measure_kuberay(plane: ControlPlane, count: int) -> dict[str, Any]:
    program = KUBERAY.binary()
    async with Api(plane) as api:
        for file in (KUBERAY.source() / "config" / "crd" / "bases").glob("*.yaml"):
            definition = YAML(typ="safe").load(file.read_text())
            await api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await asyncio.sleep(5)
        flags = ["--reconcile-concurrency=10", "--enable-leader-election=false", "--metrics-addr=:0"]
        environment = {"KUBECONFIG": str(plane.kubeconfig)}
        kuberay = Program([str(program), *flags], plane.directory / "kuberay.log", environment)

        async def ready() -> int:
            return (await api.column(RAY, "Status")).count("ready")

        async with kuberay:
            await asyncio.sleep(3)
            began, cpu = time.monotonic(), kuberay.cpu_seconds()
            await for_each(lambda number: api.request("POST", RAY, ray_cluster(number)), count)
            created = time.monotonic() - began
            await until("ready clusters", ready, count)
            return {
                "created_s": created,
                "all_ready_s": time.monotonic() - began,
                "cpu_s": kuberay.cpu_seconds() - cpu,
                "peak_resident_mb": kuberay.resident_mb(peak=True),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gang", choices=("none", "native", "gated"), default="none")
    parser.add_argument("--kuberay", action="store_true", help="KubeRay too, after ours, and the ratio")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch all jobs run; 0 for none")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the rig is taken down then too
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        with rig(Path(directory) / "ours") as plane:
            results["grpo-operator"] = asyncio.run(measure_ours(plane, chosen.jobs, chosen.gang, chosen.idle))
        if chosen.kuberay:
            with rig(Path(directory) / "peer") as plane:
                results["kuberay"] = asyncio.run(measure_kuberay(plane, chosen.jobs))
            results["ratio"] = results["grpo-operator"]["all_running_s"] / results["kuberay"]["all_ready_s"]
    if chosen.output == "json":
        print(json.dumps(_rounded(results)))
        return
    for name, found in results.items():
        print(f"{name}: {found:.2f}" if isinstance(found, float) else name)
        for key, value in found.items() if isinstance(found, dict) else ():
            print(f"  {key:28} {_rounded(value)}")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
