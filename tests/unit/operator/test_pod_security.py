"""The Pod Security Standard "restricted", control by control, and what an overlay may change of a pod.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ (cumulative: restricted holds baseline too).
"""

import kubernetes_validate
import pytest

from grpo_api.job import parse_job
from grpo_operator.children.pods import merge, pod
from tests.unit.operator.operator_support import raw_job
from tests.unit.operator.test_children import golden_job, pod_of, trainer

BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SAFE_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}


def restricted_faults(made):
    """Names of the controls that a pod breaks."""
    spec, found = made["spec"], set()
    context = spec.get("securityContext", {})
    containers = [
        *spec["containers"],
        *spec.get("initContainers", []),
        *spec.get("ephemeralContainers", []),
    ]
    contexts = [(container, container.get("securityContext", {})) for container in containers]

    def check(control, holds):
        if not holds:
            found.add(control)

    # Baseline
    check("Host Namespaces", not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")))
    check("AppArmor", context.get("appArmorProfile", {}).get("type") in (None, "RuntimeDefault", "Localhost"))
    check("Sysctls", all(item["name"] in SAFE_SYSCTLS for item in context.get("sysctls", [])))
    for held in (context, *(own for _, own in contexts)):
        check("HostProcess", not held.get("windowsOptions", {}).get("hostProcess"))
        options = held.get("seLinuxOptions", {})
        check("SELinux", options.get("type") in SELINUX_TYPES and not (options.get("user") or options.get("role")))
        profile = held.get("seccompProfile", {}).get("type")
        check("Seccomp", profile in (None, "RuntimeDefault", "Localhost"))
        check("Running as Non-root user", held.get("runAsUser") != 0)
        check("Running as Non-root", held.get("runAsNonRoot") is not False)
    for container, own in contexts:
        check("Privileged Containers", not own.get("privileged"))
        check("/proc Mount Type", own.get("procMount") in (None, "Default"))
        check("Host Ports", not any(port.get("hostPort") for port in container.get("ports", [])))
        handlers = [container.get(probe, {}) for probe in ("livenessProbe", "readinessProbe", "startupProbe")]
        handlers += [container.get("lifecycle", {}).get(hook, {}) for hook in ("postStart", "preStop")]
        for handler in handlers:
            hosts = [handler.get(action, {}).get("host") for action in ("httpGet", "tcpSocket")]
            check("Host Probes / Lifecycle Hooks", not any(hosts))
        # Restricted
        added = set(own.get("capabilities", {}).get("add", []))
        check("Capabilities", added <= BASELINE_CAPABILITIES and added <= {"NET_BIND_SERVICE"})
        check("Capabilities", "ALL" in own.get("capabilities", {}).get("drop", []))
        check("Privilege Escalation", own.get("allowPrivilegeEscalation") is False)
        check("Running as Non-root", own.get("runAsNonRoot", context.get("runAsNonRoot")) is True)
        profile = own.get("seccompProfile", context.get("seccompProfile", {})).get("type")
        check("Seccomp", profile in ("RuntimeDefault", "Localhost"))
    for volume in spec.get("volumes", []):
        check("Volume Types", set(volume) - {"name"} <= VOLUMES and len(volume) == 2)
    return found


def with_overlay(overlay, **template):
    return pod(parse_job(raw_job(template={"podOverlay": overlay, **template})), 1, 2, "registry/trainer:1")


def container(**fields):
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def env_of(made):
    return {item["name"]: item for item in trainer(made)["env"]}


@pytest.mark.parametrize("raw", [raw_job(), golden_job()], ids=["least", "everything"])
def test_pods_are_restricted(raw):
    assert restricted_faults(pod_of(raw)) == set()


@pytest.mark.parametrize(
    ("overlay", "control"),
    [
        ({"spec": {"hostNetwork": True}}, "Host Namespaces"),
        ({"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}, "Volume Types"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "Running as Non-root user"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "Running as Non-root"),
        ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "Seccomp"),
        ({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}, "Sysctls"),
        (container(securityContext={"privileged": True}), "Privileged Containers"),
        (container(securityContext={"allowPrivilegeEscalation": True}), "Privilege Escalation"),
        (container(securityContext={"capabilities": {"drop": []}}), "Capabilities"),
        (container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "Capabilities"),
        (container(ports=[{"name": "metrics", "hostPort": 80}]), "Host Ports"),
        ({"spec": {"containers": [{"name": "bare", "image": "x"}]}}, "Privilege Escalation"),
    ],
)
def test_check_of_the_profile_can_fail(overlay, control):
    """And an overlay that asks for less security gets it: admission decides."""
    assert control in restricted_faults(with_overlay(overlay))


def test_extra_container_stands_beside_the_trainer():
    made = with_overlay({"spec": {"containers": [{"name": "logs", "image": "fluent:1"}]}})
    assert [item["name"] for item in made["spec"]["containers"]] == ["trainer", "logs"]
    assert trainer(made)["image"] == "registry/trainer:1"
    assert made["spec"]["containers"][1] == {"name": "logs", "image": "fluent:1"}
    kubernetes_validate.validate(made, "1.37.0", strict=True)


def test_init_container_and_free_fields_are_added():
    overlay = {
        "spec": {
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
            "runtimeClassName": "nvidia",
        }
    }
    made = with_overlay(overlay)
    for key, value in overlay["spec"].items():
        assert made["spec"][key] == value


def test_labels_and_annotations_are_added():
    overlay = {"metadata": {"labels": {"team": "nlp"}, "annotations": {"sidecar.istio.io/inject": "false"}}}
    made = with_overlay(overlay)["metadata"]
    assert made["labels"]["team"] == "nlp"
    assert made["labels"]["grpo.dev/job-name"] == "sums"
    assert made["annotations"] == {"sidecar.istio.io/inject": "false"}


@pytest.mark.parametrize(
    "label",
    [
        *("grpo.dev/job-name", "grpo.dev/node-rank", "grpo.dev/attempt"),
        *("app.kubernetes.io/managed-by", "app.kubernetes.io/instance"),
    ],
)
def test_labels_that_recovery_rests_on_cannot_be_overridden(label):
    made = with_overlay({"metadata": {"labels": {label: "9"}}})
    assert made["metadata"]["labels"][label] == with_overlay({})["metadata"]["labels"][label] != "9"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restartPolicy", "Always"),
        ("hostname", "mine"),
        ("subdomain", "mine"),
        ("automountServiceAccountToken", True),
    ],
)
def test_fields_that_the_gang_rests_on_cannot_be_overridden(field, value):
    made = with_overlay({"spec": {field: value}})
    assert made["spec"][field] == with_overlay({})["spec"][field] != value


@pytest.mark.parametrize("name", ["GRPO_NODE_RANK", "GRPO_NUM_NODES", "GRPO_HEAD_ADDRESS", "GRPO_ATTEMPT"])
@pytest.mark.parametrize("by", ["overlay", "template.env", "valueFrom"])
def test_rank_and_rendezvous_cannot_be_overridden(name, by):
    mine = {"name": name, "value": "9"}
    if by == "valueFrom":
        mine = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    made = with_overlay({}, env=[mine]) if by == "template.env" else with_overlay(container(env=[mine]))
    assert [item for item in trainer(made)["env"] if item["name"] == name] == [env_of(with_overlay({}))[name]]


def test_overlays_environment_goes_over_the_templates():
    overlay = container(env=[{"name": "NCCL_DEBUG", "value": "TRACE"}, {"name": "NEW", "value": "1"}])
    env = env_of(with_overlay(overlay, env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "OLD", "value": "2"}]))
    assert [env[name]["value"] for name in ("NCCL_DEBUG", "NEW", "OLD", "HOME")] == ["TRACE", "1", "2", "/tmp"]


def test_volume_and_mount_are_added():
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "rows"}}
    mount = {"name": "data", "mountPath": "/data", "readOnly": True}
    made = with_overlay({"spec": {"volumes": [data], **container(volumeMounts=[mount])["spec"]}})
    assert data in made["spec"]["volumes"]
    assert mount in trainer(made)["volumeMounts"]
    assert {"/etc/grpo", "/dev/shm", "/tmp"} < {item["mountPath"] for item in trainer(made)["volumeMounts"]}
    assert restricted_faults(made) == set()


def test_second_mount_of_one_volume_is_added():
    mounts = [{"name": "scratch", "mountPath": "/a"}, {"name": "scratch", "mountPath": "/b", "subPath": "b"}]
    paths = [item["mountPath"] for item in trainer(with_overlay(container(volumeMounts=mounts)))["volumeMounts"]]
    assert paths == ["/etc/grpo", "/dev/shm", "/tmp", "/a", "/b"]


@pytest.mark.parametrize("name", ["job", "shm", "scratch"])
def test_volume_of_our_name_keeps_one_source(name):
    """The API server refuses a volume of two types."""
    mine = {"name": name, "persistentVolumeClaim": {"claimName": "mine"}}
    volumes = with_overlay({"spec": {"volumes": [mine]}})["spec"]["volumes"]
    (volume,) = [item for item in volumes if item["name"] == name]
    assert len(volume) == 2


def test_job_file_cannot_be_hidden():
    """spec.template: the mounts that the operator makes win over the overlay."""
    mine = {"name": "mine", "emptyDir": {}}
    mount = {"name": "mine", "mountPath": "/etc/grpo"}
    made = with_overlay({"spec": {"volumes": [mine], **container(volumeMounts=[mount])["spec"]}})
    (held,) = [item for item in trainer(made)["volumeMounts"] if item["mountPath"] == "/etc/grpo"]
    assert held["name"] == "job"


@pytest.mark.parametrize("port", [{"containerPort": 5678}, {"name": "debug", "containerPort": 5678}])
def test_further_port_leaves_the_probes_port(port):
    ports = trainer(with_overlay(container(ports=[port])))["ports"]
    assert port in ports
    assert {"name": "metrics", "containerPort": 9464} in ports


def test_resources_of_the_overlay_go_over_the_templates():
    template = {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}
    overlay = container(resources={"requests": {"rdma/hca": "1"}, "limits": {"rdma/hca": "1", "memory": "2Gi"}})
    assert trainer(with_overlay(overlay, **template))["resources"] == {
        "requests": {"cpu": "1", "nvidia.com/gpu": "1", "rdma/hca": "1"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "1", "rdma/hca": "1"},
    }


@pytest.mark.parametrize("overlay", [{"metadata": {"name": "x"}}, {"metadata": {"ownerReferences": []}}])
def test_pods_identity_is_not_in_an_overlay(overlay):
    raw = raw_job(template={"podOverlay": overlay})
    with pytest.raises(ValueError, match=r"spec\.template\.podOverlay\.metadata"):
        parse_job(raw)


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ([{"name": "a", "x": 1}], [{"name": "a", "y": 2}], [{"name": "a", "x": 1, "y": 2}]),
        ([{"name": "a"}], [{"name": "b"}], [{"name": "a"}, {"name": "b"}]),
        ([{"name": "a"}], [], [{"name": "a"}]),
        (["a"], ["b"], ["b"]),
        (None, {"a": 1}, {"a": 1}),
        ({"a": 1}, None, None),
        (1, 2, 2),
    ],
)
def test_merge(base, overlay, merged):
    assert merge(base, overlay) == merged
