"""Manifests: the golden file, the schemas of Kubernetes 1.37, and what ranks, recovery and deletion rest on."""

import copy
import json
import re
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from grpo_api.job import parse_job
from grpo_api.validation import size_faults
from grpo_operator import children_of
from grpo_operator.children.claim import claim
from grpo_operator.children.configmap import config_map
from grpo_operator.children.pods import pod
from grpo_operator.children.service import service
from grpo_operator.gang.base import Gang
from grpo_operator.gang.native import NativeGang
from grpo_operator.observe import Observed
from tests.unit.operator.operator_support import (
    NATIVE,
    NOTHING,
    UID,
    raw_job,
)

GOLDEN = Path(__file__).parent / "data" / "children.yaml"
KUBERNETES = "1.37.0"
CONFIG_MAP_LIMIT = 1024 * 1024
"""Bytes: kubernetes.io, "ConfigMaps": data stored in a ConfigMap cannot exceed 1 MiB."""


def golden_job():
    """One that uses everything that the children read."""
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
    return raw_job(
        reward={"functions": [{"name": "mine", "python": {"source": source}}]},
        trainer={"nGpusPerNode": 4},
        gangScheduling={"backend": "native", "topologyKey": "topology.kubernetes.io/zone"},
        checkpoint={
            "claimTemplate": {"size": "100Gi", "storageClassName": "fast"},
            "mountPath": "/ckpt",
            "whenDeleted": "Retain",
        },
        metrics={"port": 9999},
        template={
            "image": "registry/mine:7",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "trainer",
            "priorityClassName": "high",
            "resources": {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "96Gi"}},
            "shmSize": "16Gi",
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "env": [
                {"name": "NCCL_DEBUG", "value": "INFO"},
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            ],
        },
    )


def children(raw, attempt=0, *, native=True):
    observed = Observed(job=raw, capabilities=NATIVE if native else NOTHING, default_image="registry/trainer:1")
    made = children_of.wanted(parse_job(raw), attempt, observed)
    assert made.fault is None
    return made.manifests


def pod_of(raw=None, rank=0, attempt=0):
    return pod(parse_job(raw or raw_job()), rank, attempt, "registry/trainer:1")


def trainer(made):
    (found,) = [item for item in made["spec"]["containers"] if item["name"] == "trainer"]
    return found


def test_golden():
    """Review a difference against the Kubernetes API before you change the file."""
    made = children(golden_job(), 1)
    for item in made:
        if item["kind"] == "ConfigMap":
            item["data"]["job.json"] = "(see test_job_file)"
    assert made == list(YAML(typ="safe").load_all(GOLDEN.read_text()))


@pytest.mark.parametrize("raw", [golden_job(), raw_job()], ids=["everything", "least"])
def test_children_match_the_schemas_of_kubernetes(raw):
    for item in children(raw):
        kubernetes_validate.validate(item, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["sums", "a" * 52])
def test_names_are_dns_labels(name):
    """RFC 1123 labels: at most 63 characters; a Service's name and a hostname must be one."""
    raw = raw_job(name, nodes=512, data={"trainBatchSize": 512}, actor={"ppoMiniBatchSize": 512})
    for item in (*children(raw)[:2], pod_of(raw, rank=511)):
        names = [item["metadata"]["name"], item["spec"].get("hostname", "x") if "spec" in item else "x"]
        for found in names:
            assert len(found) <= 63
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", found)


def test_job_file_holds_the_spec_with_its_defaults_and_no_status():
    raw = golden_job()
    raw["metadata"] |= {"annotations": {"big": "x" * 1000}, "managedFields": [{}]}
    made = config_map(parse_job({**raw, "status": {"state": "Running"}}))
    document = json.loads(made["data"]["job.json"])
    assert document["metadata"] == {"name": "sums", "namespace": "team", "uid": UID}
    assert "status" not in document
    assert document["spec"]["trainer"]["saveFreq"] == 20
    assert parse_job(document).spec == parse_job(raw).spec
    assert made["immutable"] is True


def test_trainer_finds_job_file_and_rewards_where_the_names_say():
    made = pod_of(golden_job())
    (mount,) = [item for item in trainer(made)["volumeMounts"] if item["name"] == "job"]
    (volume,) = [item for item in made["spec"]["volumes"] if item["name"] == "job"]
    assert volume["configMap"]["name"] == "sums-config"
    paths = {f"{mount['mountPath']}/{item['path']}": item["key"] for item in volume["configMap"]["items"]}
    data = config_map(parse_job(golden_job()))["data"]
    assert set(paths) == {"/etc/grpo/job.json", "/etc/grpo/reward/mine.py"}
    assert set(paths.values()) == set(data)
    assert data[paths["/etc/grpo/reward/mine.py"]].startswith("def compute_score")
    assert mount["readOnly"] is True


@pytest.mark.parametrize("size", [1_000, 250_000, 262_100])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_config_map_is_below_the_limit_or_a_fault(size, count, letter):
    source = "def compute_score(*args):\n    return 0\n#" + letter * (size - 60)
    raw = raw_job(reward={"functions": [{"name": f"r{i}", "python": {"source": source}} for i in range(count)]})
    job = parse_job(raw)
    faults = size_faults(job.spec)
    total = sum(len(key) + len(value.encode()) for key, value in config_map(job)["data"].items())
    if total > CONFIG_MAP_LIMIT:
        assert faults
    if total < 900_000:
        assert faults == []
    for fault in faults:
        assert fault.path == "spec.reward.functions"
        assert "999000: move large sources into the image" in fault.message


def test_every_child_belongs_to_the_job_but_a_retained_claim():
    for item in children(golden_job()):
        owners = item["metadata"].get("ownerReferences", [])
        if item["kind"] == "PersistentVolumeClaim":
            assert owners == []
            continue
        owner, *others = owners
        assert [one["kind"] for one in others] == (["Workload"] if item["kind"] == "PodGroup" else [])
        assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("grpo.dev/v1alpha1", "GRPOJob", "sums")
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert not owner.get("blockOwnerDeletion"), "needs a right on finalizers, and holds up foreground deletion"


def test_every_child_carries_the_labels_that_are_watched():
    for item in children(golden_job(), 3):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "grpo-operator"
        assert labels["grpo.dev/job-name"] == "sums"
        assert item["metadata"]["namespace"] == "team"


@pytest.mark.parametrize(("when_deleted", "owned"), [("Retain", False), ("Delete", True), (None, False)])
def test_claim_outlives_the_job_unless_asked(when_deleted, owned):
    checkpoint = {"claimTemplate": {}} | ({"whenDeleted": when_deleted} if when_deleted else {})
    made = claim(parse_job(raw_job(checkpoint=checkpoint)))
    assert ("ownerReferences" in made["metadata"]) == owned
    assert made["metadata"]["name"] == "sums-checkpoints"
    assert made["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "50Gi"}}}


def test_existing_claim_is_mounted_and_not_made():
    raw = raw_job(checkpoint={"claimName": "shared"})
    assert claim(parse_job(raw)) is None
    made = pod_of(raw)
    assert {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}} in made["spec"]["volumes"]
    assert {"name": "checkpoints", "mountPath": "/checkpoints"} in trainer(made)["volumeMounts"]


def test_a_reward_servers_token_is_a_file_of_the_head_pod_alone():
    server = {"url": "http://rewards:8000", "tokenSecret": {"name": "rewards", "key": "api-token"}}
    functions = [
        {"name": "open", "http": {"url": "http://rewards:8000"}},
        {"name": "guarded", "http": server},
    ]
    job = parse_job(raw_job(reward={"functions": functions}))
    head, other = (pod(job, rank, 0, "image")["spec"] for rank in (0, 1))
    secrets = [volume for volume in head["volumes"] if "secret" in volume]
    assert secrets == [
        {
            "name": "reward-token-1",
            "secret": {"secretName": "rewards", "items": [{"key": "api-token", "path": "token"}], "defaultMode": 0o440},
        }
    ]
    mount = {"name": "reward-token-1", "mountPath": "/run/secrets/grpo.dev/reward/guarded", "readOnly": True}
    assert mount in head["containers"][0]["volumeMounts"]
    assert not any("secret" in volume for volume in other["volumes"])
    assert not any(one["name"].startswith("reward") for one in other["containers"][0]["volumeMounts"])


def test_without_a_claim_nothing_is_mounted():
    assert "/checkpoints" not in [mount["mountPath"] for mount in trainer(pod_of())["volumeMounts"]]
    assert claim(parse_job(raw_job())) is None


def test_service_resolves_each_pod_before_it_is_ready():
    made, head = service(parse_job(raw_job())), pod_of(rank=0)
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is True
    assert made["spec"]["selector"].items() <= head["metadata"]["labels"].items()
    # kubernetes.io, "DNS for Services and Pods": hostname.subdomain.namespace.svc, subdomain being the Service's name
    assert head["spec"]["subdomain"] == made["metadata"]["name"]
    address = f"{head['spec']['hostname']}.{head['spec']['subdomain']}.{head['metadata']['namespace']}.svc"
    assert {"name": "GRPO_HEAD_ADDRESS", "value": address} in trainer(pod_of(rank=1))["env"]


@pytest.mark.parametrize(("rank", "attempt"), [(0, 0), (1, 7)])
def test_rank_attempt_and_size_are_in_environment_and_labels(rank, attempt):
    made = pod_of(rank=rank, attempt=attempt)
    env = {item["name"]: item.get("value") for item in trainer(made)["env"]}
    found = (env["GRPO_NODE_RANK"], env["GRPO_NUM_NODES"], env["GRPO_ATTEMPT"])
    assert found == (str(rank), "2", str(attempt))
    labels = made["metadata"]["labels"]
    assert (labels["grpo.dev/node-rank"], labels["grpo.dev/attempt"]) == (str(rank), str(attempt))
    assert made["metadata"]["name"] == made["spec"]["hostname"] == f"sums-{rank}"


def test_pod_is_never_restarted_in_place_and_reads_no_token():
    made = pod_of()
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["spec"]["automountServiceAccountToken"] is False
    assert made["spec"]["enableServiceLinks"] is False


def test_dev_shm_is_memory_of_the_size_asked_for():
    made = pod_of(golden_job())
    (mount,) = [item for item in trainer(made)["volumeMounts"] if item["mountPath"] == "/dev/shm"]
    (volume,) = [item for item in made["spec"]["volumes"] if item["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_gpus_are_requested_and_limited_alike():
    """kubernetes.io, "Schedule GPUs": both must be equal where both are given."""
    resources = trainer(pod_of(golden_job()))["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "4"
    other = trainer(pod_of(raw_job(template={"gpuResourceName": "amd.com/gpu"})))["resources"]
    assert other == {"requests": {"amd.com/gpu": "1"}, "limits": {"amd.com/gpu": "1"}}


def test_image_of_the_job_else_the_operators():
    assert trainer(pod_of())["image"] == "registry/trainer:1"
    assert trainer(pod_of(golden_job()))["image"] == "registry/mine:7"


def test_no_liveness_probe_ends_a_long_step():
    assert "livenessProbe" not in trainer(pod_of())
    port = trainer(pod_of(golden_job()))["ports"][0]
    assert (port["containerPort"], trainer(pod_of())["readinessProbe"]["httpGet"]["port"]) == (9999, port["name"])


def test_gang_of_all_pods_or_none():
    raw = golden_job()
    gang, native = Gang(parse_job(raw), 2), NativeGang(NATIVE)
    workload, group = native.objects(gang)
    assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert group["spec"]["workloadRef"]["workloadName"] == workload["metadata"]["name"]
    assert group["spec"]["workloadRef"]["templateName"] == workload["spec"]["podGroupTemplates"][0]["name"]
    assert group["spec"]["disruptionMode"] == {"all": {}}
    plain = pod_of(raw)
    before = copy.deepcopy(plain)
    member = native.decorate(plain, gang)
    assert member["spec"].pop("schedulingGroup") == {"podGroupName": group["metadata"]["name"]}
    assert member == plain == before


def test_children_are_the_same_each_time():
    assert children(golden_job()) == children(golden_job())
