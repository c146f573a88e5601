"""Kueue itself beside a control plane that has no kubelet: its own chart's objects, its manager as a process here.

The chart's webhook Service becomes one of type ExternalName, which leads the API server to this machine; the name in
the certificate, which Kueue makes and hands to its webhook configurations itself, is the Service's still. What is left
of a kubelet's work is to lay the certificate's Secret where the manager looks for it.
"""

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from ruamel.yaml import YAML

from local_cluster import paths
from local_cluster.control_plane import ControlPlane, free_ports
from local_cluster.module_program import ModuleProgram

KUEUE = ModuleProgram("sigs.k8s.io/kueue", "v0.17.0", "sigs.k8s.io/kueue/cmd/kueue")
NAMESPACE = "kueue-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"
SECRET, SERVICE = "kueue-webhook-server-cert", "kueue-webhook-service"
READY_SECONDS = 60
GROUPS = {"", "kueue.x-k8s.io"}
"""API groups whose webhooks are kept: pods', and Kueue's own. No other integration is switched on."""
SKIPPED = ("Deployment", "APIService", "Service")
KUEUE_API = "kueue.x-k8s.io/v1beta2"
Object = dict[str, Any]


def kueue_object(kind: str, name: str, spec: Object | None = None, **more: Any) -> Object:
    made: Object = {"apiVersion": KUEUE_API, "kind": kind, "metadata": {"name": name}, **more}
    return made if spec is None else {**made, "spec": spec}


def queue_objects(name: str, gpus: int, flavor: str, **spec: Any) -> list[Object]:
    """A ClusterQueue whose quota is these GPUs and all that pods ask for beside them, and a LocalQueue of its name."""
    quotas = {"nvidia.com/gpu": gpus, "cpu": "10k", "memory": "100Ti"}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": flavor, "resources": resources}]}
    local = kueue_object("LocalQueue", name, {"clusterQueue": name})
    local["metadata"]["namespace"] = "default"
    return [kueue_object("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": [group], **spec}), local]


class Kueue:
    """One manager with the chart's own role."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane, self.directory = plane, directory
        self._webhook, self._health, metrics, visibility = free_ports(4)
        self._certificates = directory / "kueue-certificates"
        self._certificates.mkdir(parents=True)
        self._changes = {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "visibilityServer": {"bindPort": visibility},
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {"frameworks": ["pod"]},
            "clientConnection": {"qps": 500, "burst": 1000},
        }

    def install(self) -> None:
        """The chart's objects but its Deployment; and the manager's configuration as a file."""
        helm = [str(paths.binary("helm")), "template", "kueue", str(KUEUE.source() / "charts" / "kueue")]
        text = subprocess.run([*helm, "-n", NAMESPACE], capture_output=True, text=True, check=True).stdout
        items = [item for item in YAML(typ="safe").load_all(text) if item and _is_needed(item)]
        for item in items:
            for webhook in item.get("webhooks", []):
                webhook["clientConfig"]["service"]["port"] = self._webhook
            if "webhooks" in item:
                item["webhooks"] = [hook for hook in item["webhooks"] if _groups(hook) <= GROUPS]
            if conversion := item.get("spec", {}).get("conversion", {}).get("webhook"):
                conversion["clientConfig"]["service"]["port"] = self._webhook
            if item["kind"] == "ConfigMap":
                configuration = YAML(typ="safe").load(item["data"]["controller_manager_config.yaml"]) | self._changes
                (self.directory / "kueue.json").write_text(json.dumps(configuration))
        first = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        last: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE}}
        last["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        self.create(first, *items, last)

    def create(self, *items: Object) -> None:
        made = {"apiVersion": "v1", "kind": "List", "items": items}
        self.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(made))

    def start(self) -> None:
        """Returns once its webhooks answer."""
        kubeconfig = self.directory / "kueue.kubeconfig"
        self.plane.authority.kubeconfig(kubeconfig, "kueue", f"/CN={ACCOUNT}", self.plane.url)
        command = [str(KUEUE.binary()), f"--config={self.directory / 'kueue.json'}", "--zap-log-level=2"]
        self.plane.processes.start("kueue", command, env={"KUBECONFIG": str(kubeconfig)})
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            self._mount()
            if time.monotonic() > deadline or not self.plane.processes.alive("kueue"):
                raise RuntimeError(f"Kueue is not ready: {self.plane.processes.last_words('kueue', 20)}")
            time.sleep(0.2)

    def stop(self) -> None:
        self.plane.processes.stop("kueue")

    def _mount(self) -> None:
        """As a kubelet would: the Secret's keys are files."""
        secret = json.loads(self.kubectl("get", "secret", SECRET, "-n", NAMESPACE, "-o", "json"))
        for name, value in (secret.get("data") or {}).items():
            (self._certificates / name).write_bytes(base64.b64decode(value))

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._health}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = [str(paths.binary("kubectl")), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=True).stdout


def _is_needed(item: Object) -> bool:
    """Not what a kubelet would run or reach, nor the roles that Kueue's users get."""
    users_role = item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith(("-editor-role", "-viewer-role"))
    return item["kind"] not in SKIPPED and not users_role


def _groups(webhook: Object) -> set[str]:
    return {group for rule in webhook["rules"] for group in rule["apiGroups"]}


if __name__ == "__main__":  # before the tests, each of which has a few minutes only
    KUEUE.binary()
