"""What the chart renders, for many values: valid objects, least rights, the restricted profile."""

import json

import kubernetes_validate
import pytest
from chart_support import CHART, helm, only, render, template
from ruamel.yaml import YAML

from grpo_api import names
from grpo_api.crd import crd
from grpo_operator.gang.choice import BACKENDS, KINDS, READ_KINDS
from grpo_operator.handlers import WATCHED_CHILDREN
from grpo_operator.kube import RESOURCES, resource_of
from grpo_operator.settings import Settings

KUBERNETES = "1.37"
DIGEST = f"sha256:{'ab' * 32}"
MONITORED = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
EVERYTHING = {
    **MONITORED,
    "watchNamespaces": ["team-a", "team-b"],
    "replicas": 2,
    "image": {"repository": "registry.example/grpo-operator", "digest": DIGEST},
    "trainerImage": {"repository": "registry.example/grpo-trainer", "tag": "cuda"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"cost": "ml"},
    "serviceAccount": {"annotations": {"role": "arn"}},
}
VALUES = {"default": {}, "everything": EVERYTHING, "no crd": {"crds": {"enabled": False}}}


def container(objects):
    return only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def environment(objects):
    return {item["name"]: item.get("value") for item in container(objects)["env"]}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_objects_are_valid(values, tmp_path):
    objects = render(tmp_path, values)
    for item in objects:
        if not item["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
    identities = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(identities)) == len(identities)
    for item in objects:
        assert "finalizers" not in item["metadata"]
        assert not [key for key in item["metadata"].get("annotations", {}) if key.startswith("helm.sh/hook")]


def test_lint():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


def test_crd_is_the_generated_one(tmp_path):
    made = only(render(tmp_path), "CustomResourceDefinition")
    assert made["spec"] == crd()["spec"]
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    loose = only(render(tmp_path, {"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in loose["metadata"]
    absent = render(tmp_path, {"crds": {"enabled": False}})
    assert "CustomResourceDefinition" not in {item["kind"] for item in absent}


def granted(role):
    """(group, resource, verb) of a role; refuses wildcards and Secrets."""
    rules = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert not [rule for rule in rules if "*" in "".join(rule) or rule[1].startswith("secrets")]
    return rules


GATED = {("", "nodes", "list"), ("", "nodes", "watch"), ("", "pods", "patch")}
"""What `gated` needs to see free room and to lift gates."""


WAITING_OWNER = ("scheduling.k8s.io", "workloads/finalizers", "update")
"""A PodGroup names its Workload as an owner that waits for it; OwnerReferencesPermissionEnforcement asks for this."""


def needed(gang_kinds=KINDS, read_kinds=READ_KINDS):
    """From the operator's own lists: what it watches, creates as a child, and deletes."""
    verbs = {
        kind: {"create", "get", "list", "watch"} | (set() if kind == "PersistentVolumeClaim" else {"delete"})
        for kind in (*WATCHED_CHILDREN, *gang_kinds)
    }
    verbs |= {kind: {"delete", "get"} for kind in read_kinds}
    verbs |= {names.KIND: {"delete", "list", "watch"}, "Event": {"create", "list", "patch"}}
    rules = {(names.GROUP, f"{names.PLURAL}/status", "patch")}
    for kind, wanted in verbs.items():
        api_version, plural = resource_of(kind)
        group = api_version.rpartition("/")[0]
        rules |= {(group, plural, verb) for verb in wanted}
    return rules | ({WAITING_OWNER} if set(BACKENDS["native"].kinds) <= set(gang_kinds) else set())


def test_role_over_all_namespaces_is_exactly_what_the_operator_needs(tmp_path):
    objects = render(tmp_path)
    assert granted(only(objects, "ClusterRole", "grpo-operator")) == needed() | GATED
    assert environment(objects)["GRPO_WATCH_NAMESPACES"] == ""


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "none"])
def test_role_lets_go_of_a_backend_that_is_not_wanted(backend, tmp_path):
    others = [name for name in BACKENDS if name not in (backend, "none")]
    role = only(render(tmp_path, {"rbac": {"gangBackends": others}}), "ClusterRole", "grpo-operator")
    made, read = ({kind for name in others for kind in getattr(BACKENDS[name], field)} for field in ("kinds", "reads"))
    assert granted(role) == needed(made, read) | (GATED if "gated" in others else set())


def test_watched_namespaces_get_roles_and_nothing_is_cluster_wide(tmp_path):
    objects = render(tmp_path, {"watchNamespaces": ["team-a", "team-b"], **MONITORED})
    roles = [item for item in objects if item["kind"] == "Role" and item["metadata"]["name"] == "grpo-operator"]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert all(granted(role) == needed() for role in roles)
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    bindings = [item for item in objects if item["kind"] == "RoleBinding"]
    account = only(objects, "ServiceAccount")["metadata"]
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert environment(objects)["GRPO_WATCH_NAMESPACES"] == "team-a,team-b"
    assert only(objects, "PodMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_lease_role(tmp_path):
    objects = render(tmp_path)
    role = only(objects, "Role", "grpo-operator-lease")
    group = RESOURCES["Lease"][0].rpartition("/")[0]
    assert granted(role) == {(group, "leases", verb) for verb in ("create", "get", "update")}
    (named,) = [rule for rule in role["rules"] if "get" in rule["verbs"]]
    assert named["resourceNames"] == [environment(objects)["GRPO_LEASE_NAME"]]
    assert role["metadata"]["namespace"] == environment(objects)["GRPO_LEASE_NAMESPACE"]


def test_aggregated_roles(tmp_path):
    objects = render(tmp_path)
    view, edit = (only(objects, "ClusterRole", f"grpo-operator-{name}") for name in ("view", "edit"))
    assert {verb for _, _, verb in granted(view)} == {"get", "list", "watch"}
    assert {resource for _, resource, _ in granted(edit)} == {names.PLURAL}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    aggregated = {key.removeprefix(prefix) for key in edit["metadata"]["labels"] if key.startswith(prefix)}
    assert aggregated == {"edit", "admin"}


def test_pod_meets_the_restricted_profile(tmp_path):
    pod = only(render(tmp_path), "Deployment")["spec"]["template"]["spec"]
    (only_container,) = pod["containers"]
    context = only_container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} == {"emptyDir"}


def test_environment_is_what_the_operator_reads(tmp_path, monkeypatch):
    values = {
        "trainerImage": {"repository": "r/trainer", "tag": "t"},
        "watchNamespaces": ["a", "b"],
        "progressIntervalSeconds": 2,
        "workers": 3,
    }
    for key, value in environment(render(tmp_path, values, "train")).items():
        monkeypatch.setenv(key, value or "the-pod")
    assert Settings.from_environment() == Settings(
        trainer_image="r/trainer:t",
        namespaces=("a", "b"),
        lease_namespace="grpo-system",
        lease_name="train-grpo-operator",
        identity="the-pod",
        metrics_port=names.OPERATOR_METRICS_PORT,
        probe_port=names.OPERATOR_PROBE_PORT,
        progress_interval=2.0,
        workers=3,
    )


def test_ports_are_those_of_the_contract(tmp_path):
    objects = render(tmp_path, MONITORED)
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert ports == {"metrics": names.OPERATOR_METRICS_PORT, "probes": names.OPERATOR_PROBE_PORT}
    service = only(objects, "Service")
    assert service["spec"]["ports"][0]["port"] == names.OPERATOR_METRICS_PORT
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert endpoint["path"] == names.METRICS_PATH


def test_services_and_monitors_select_what_exists(tmp_path):
    objects = render(tmp_path, MONITORED)
    pod = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service = only(objects, "Service")
    assert service["spec"]["selector"].items() <= pod.items()
    monitor = only(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= service["metadata"]["labels"].items()
    assert only(objects, "Deployment")["spec"]["selector"]["matchLabels"].items() <= pod.items()


def test_pod_monitor_finds_the_pods_that_the_operator_makes(tmp_path):
    from grpo_api.job import parse_job
    from grpo_operator.children.meta import labels

    example = YAML(typ="safe").load((CHART.parents[1] / "examples" / "arithmetic.yaml").read_text())
    spec = only(render(tmp_path, MONITORED), "PodMonitor")["spec"]
    assert spec["selector"]["matchLabels"].items() <= labels(parse_job(example)).items()
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == names.TRAINER_METRICS_PORT_NAME
    sources = {rule["targetLabel"]: rule["sourceLabels"][0] for rule in endpoint["relabelings"]}
    sanitized = names.LABEL_JOB_NAME.replace(".", "_").replace("/", "_").replace("-", "_")
    assert sources["job_name"] == f"__meta_kubernetes_pod_label_{sanitized}"


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor", "prometheusRule"])
def test_monitors_are_optional_and_labelled(kind, tmp_path):
    name = kind[0].upper() + kind[1:]
    assert name not in {item["kind"] for item in render(tmp_path)}
    made = only(render(tmp_path, {kind: {"enabled": True, "labels": {"release": "prometheus"}}}), name)
    assert made["metadata"]["labels"]["release"] == "prometheus"


def test_digest_wins_over_tag(tmp_path):
    assert container(render(tmp_path))["image"] == "grpo-operator:0.1.0"
    image = {"repository": "r/operator", "tag": "t"}
    assert container(render(tmp_path, {"image": image}))["image"] == "r/operator:t"
    image["digest"] = DIGEST
    assert container(render(tmp_path, {"image": image}))["image"] == f"r/operator@{DIGEST}"


def test_budget_only_for_several_replicas(tmp_path):
    assert "PodDisruptionBudget" not in {item["kind"] for item in render(tmp_path)}
    assert only(render(tmp_path, {"replicas": 2}), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"watchNamespace": "team"}, "watchNamespace"),
        ({"image": {"registry": "x"}}, "registry"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"replicas": "two"}, "/replicas"),
        ({"podMonitor": {"interval": "15"}}, "/podMonitor/interval"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name must name"),
    ],
)
def test_bad_values_are_refused_by_name(values, named, tmp_path):
    done = template(tmp_path, values, check=False)
    assert done.returncode != 0
    assert named in done.stderr


def test_schema_knows_every_value():
    def shape(value):
        return {key: shape(child) for key, child in value.items()} if isinstance(value, dict) and value else None

    def schema_shape(node):
        return {key: schema_shape(child) for key, child in node["properties"].items()} if "properties" in node else None

    values = shape(YAML(typ="safe").load((CHART / "values.yaml").read_text()))
    schema = json.loads((CHART / "values.schema.json").read_text())
    described = schema_shape(schema)
    del described["global"]
    values["resources"] = described["resources"]  # amounts are the user's
    assert values == described


def test_every_value_is_documented():
    lines = (CHART / "values.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if ":" in line and not line.lstrip().startswith("#") and not line.rstrip().endswith(":"):
            inside_resources = any(word in line for word in ("cpu:", "memory:"))
            assert inside_resources or lines[number - 1].lstrip().startswith("#"), line
