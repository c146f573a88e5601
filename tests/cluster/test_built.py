"""The built cluster, for real: brought up, broken and repaired. It uses the machine's one and leaves it up."""

import ipaddress
import json
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local_cluster import control_plane, images, kubectl, paths, system
from local_cluster.built import DNS_IP, FAKE_GPUS, NODE, NODE_PROCESSES, BuiltCluster, image

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("root"), pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
NAMESPACE = "cluster-test"


def up() -> float:
    """Bring the cluster up as a user would; returns the seconds that it took."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "local_cluster", "up"], cwd=ROOT, check=True)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def cluster():
    up()
    kubectl.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_seconds=120)
    kubectl.kubectl("create", "namespace", NAMESPACE)
    yield BuiltCluster()
    kubectl.kubectl("delete", "namespace", NAMESPACE, timeout_seconds=120)


def pod(name: str, *, gpus: int = 0, claim: str | None = None, group: str | None = None) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": image("pause"), "imagePullPolicy": "Never"}
    spec: dict[str, object] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    if claim:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def create(*objects: dict[str, object]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    kubectl.kubectl("apply", "--filename=-", stdin=json.dumps(items))


def wait(name: str, condition: str = "condition=Ready") -> None:
    kubectl.kubectl(
        "wait", f"pod/{name}", f"--namespace={NAMESPACE}", f"--for={condition}", "--timeout=60s", timeout_seconds=70
    )


def processes_of(cluster: BuiltCluster, name: str):
    return cluster.control_plane.processes if name in control_plane.COMPONENTS else cluster.processes


def test_up_on_a_healthy_cluster_changes_nothing_and_is_quick(cluster: BuiltCluster) -> None:
    before = cluster.own_pids()
    assert up() < 5
    assert cluster.own_pids() == before
    assert len(before) == len(NODE_PROCESSES) + len(control_plane.COMPONENTS)


def test_kubeconfig_is_private_and_not_the_users(cluster: BuiltCluster) -> None:
    assert paths.kubeconfig().stat().st_mode & 0o077 == 0
    assert Path.home() / ".kube" not in paths.kubeconfig().parents


def test_claim_binds_and_is_shared_by_two_pods(cluster: BuiltCluster) -> None:
    create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared", "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        },
        pod("writer", claim="shared"),
        pod("reader", claim="shared"),
    )
    wait("writer")
    wait("reader")
    claim = kubectl.get("persistentvolumeclaim", "shared", f"--namespace={NAMESPACE}")
    assert claim["status"]["phase"] == "Bound"
    directory = paths.state_dir() / "volumes" / claim["spec"]["volumeName"]
    assert directory.is_dir()
    kubectl.kubectl("delete", "pod", "writer", "reader", f"--namespace={NAMESPACE}", timeout_seconds=60)
    kubectl.kubectl("delete", "persistentvolumeclaim", "shared", f"--namespace={NAMESPACE}", timeout_seconds=60)
    for _ in range(150):
        if not directory.exists():
            break
        time.sleep(0.2)
    assert not directory.exists()


@pytest.mark.parametrize("component", ["kubelet", "containerd", "kube-scheduler", "etcd"])
def test_a_killed_component_is_repaired_and_running_gpu_pods_stay(cluster: BuiltCluster, component: str) -> None:
    create(pod("steady", gpus=FAKE_GPUS))
    wait("steady")
    before = kubectl.get("pod", "steady", f"--namespace={NAMESPACE}")
    processes_of(cluster, component).kill(component)
    assert cluster.problems() == [f"{component} is not running"]
    up()
    assert cluster.problems() == []
    time.sleep(3)  # A restarted kubelet admits its pods anew, and rejects those that the node has no GPUs for.
    after = kubectl.get("pod", "steady", f"--namespace={NAMESPACE}")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    node = kubectl.get("node", NODE)
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(FAKE_GPUS)
    kubectl.kubectl("delete", "pod", "steady", f"--namespace={NAMESPACE}", timeout_seconds=60)


def test_a_gang_is_bound_whole_or_not_at_all(cluster: BuiltCluster) -> None:
    size, gpus = 3, 2  # one gang fits on 8 GPUs, two do not
    names = {group: [f"{group}-{rank}" for rank in range(size)] for group in ("first", "second")}
    for group, members in names.items():
        pod_group = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": group, "namespace": NAMESPACE},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
        }
        create(pod_group, *(pod(member, gpus=gpus, group=group) for member in members))
        if group == "first":
            for member in members:
                wait(member)
    time.sleep(5)
    waiting = [kubectl.get("pod", member, f"--namespace={NAMESPACE}") for member in names["second"]]
    # One of its pods would fit.
    assert [each["spec"].get("nodeName") for each in waiting] == [None] * size
    kubectl.kubectl("delete", "pod", *names["first"], f"--namespace={NAMESPACE}", timeout_seconds=60)
    for member in names["second"]:
        wait(member)
    kubectl.kubectl("delete", "pod", *names["second"], f"--namespace={NAMESPACE}", timeout_seconds=60)


def test_names_of_services_resolve(cluster: BuiltCluster) -> None:
    assert resolve("kubernetes.default.svc.cluster.local") == control_plane.API_SERVICE_IP
    assert resolve("no-such.default.svc.cluster.local") is None


def test_image_loads_from_an_archive(cluster: BuiltCluster) -> None:
    name = "localhost/cluster-test:1"
    assert not images.exists(name)
    images.load(images.static_image(paths.binary("pause"), name, ["/pause"]), name)
    try:
        assert images.exists(name)
        broken = pod("loaded")
        broken["spec"]["containers"][0]["image"] = name  # type: ignore[index]
        create(broken)
        wait("loaded")
        kubectl.kubectl("delete", "pod", "loaded", f"--namespace={NAMESPACE}", timeout_seconds=60)
    finally:
        subprocess.run(images.ctr("images", "remove", name), check=True, capture_output=True)


def test_a_broken_archive_is_an_error(cluster: BuiltCluster, tmp_path: Path) -> None:
    (tmp_path / "broken.tar").write_bytes(b"not an archive")
    with pytest.raises(RuntimeError, match=r"loading the image localhost/broken:1 failed: ."):
        images.load(tmp_path / "broken.tar", "localhost/broken:1")


def test_status_tells_health_by_its_exit_status(cluster: BuiltCluster) -> None:
    command = [sys.executable, "-m", "local_cluster", "status"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    cluster.processes.kill("storage")
    broken = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert broken.returncode == 1
    assert "storage is not running" in broken.stdout
    up()


def test_nothing_outside_the_machine_reaches_the_api_server(cluster: BuiltCluster) -> None:
    rules = system.run("nft", "list", "chain", "inet", "grpo-local", "input")
    assert f"tcp dport {cluster.control_plane.port} iifname != " in rules


def resolve(name: str) -> str | None:
    """The first address of ``name`` by the cluster's DNS, None if it has none."""
    number = random.randrange(1 << 16)
    question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    query = struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + question + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(5)
        channel.sendto(query, (DNS_IP, 53))
        answer = channel.recv(4096)
    if struct.unpack(">H", answer[6:8])[0] == 0:
        return None
    # The query asks for nothing else, so the answer ends with the address.
    return str(ipaddress.IPv4Address(answer[-4:]))
