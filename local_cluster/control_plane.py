"""etcd, API server, controller-manager and scheduler with native gang scheduling on: the cluster's, or a test's own.

>>> plane = ControlPlane(tmp_path); plane.start(); ...; plane.stop()

Needs the binaries of ``python3 -m local_cluster build control-plane`` and the openssl command; no root.
"""

import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from local_cluster import paths
from local_cluster.certificates import Authority
from local_cluster.processes import Processes

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Gang scheduling (Workload and PodGroup) is alpha in Kubernetes 1.37: off unless asked for, in each of the three.
FEATURE_GATES = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
RUNTIME_CONFIG = "scheduling.k8s.io/v1beta1=true"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ControlPlane:
    """A control plane that keeps all it has below ``directory``; a second object on the same directory is the same
    plane.

    ``port`` is the API server's, a free one if None. ``bind_address`` and ``advertise_address`` are loopback for
    tests; a cluster with pods needs an address that pods reach. ``ports`` are etcd's client and peer port, the
    controller-manager's and the scheduler's. ``extra`` maps a component to further flags. ``logs`` is
    ``directory/log`` if None.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        bind_address: str = "127.0.0.1",
        advertise_address: str = "127.0.0.1",
        ports: Sequence[int] | None = None,
        extra: Mapping[str, Sequence[str]] | None = None,
        logs: Path | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.processes = Processes(self.directory / "processes", logs or self.directory / "log")
        self.kubeconfig = self.directory / "kubeconfig"
        self._bind_address = bind_address
        self._advertise_address = advertise_address
        self._extra = dict(extra or {})
        self.port, *self._ports = self._remembered_ports(port, ports)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Authority:
        return Authority(self.directory / "pki")

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start what does not run and return once the API server is ready. Raises RuntimeError with the log's end."""
        self._write_credentials()
        for component in COMPONENTS[:2]:
            self.start_component(component)
        self.wait_ready(timeout_seconds)
        for component in COMPONENTS[2:]:
            self.start_component(component)

    def start_component(self, component: str) -> bool:
        """Start one component unless it runs already with the same arguments; True when it was started."""
        return self.processes.start(
            component, [str(paths.binary(component)), *self._flags()[component], *self._extra.get(component, ())]
        )

    def kill(self, component: str) -> None:
        """SIGKILL a component, as a crash would."""
        self.processes.kill(component)

    def stop(self) -> None:
        """Stop all four, clients before servers. The data stays in ``directory``."""
        for component in reversed(COMPONENTS):
            self.processes.stop(component)

    def alive(self) -> bool:
        return all(self.processes.alive(component) for component in COMPONENTS)

    def ready(self, *, timeout_seconds: float = 2.0) -> bool:
        """Whether the API server answers that it is ready."""
        pki = self.directory / "pki"
        try:
            context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
            with urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            ).open(f"{self.url}/readyz", timeout=timeout_seconds) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def wait_ready(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not self.ready():
            for component in COMPONENTS[:2]:
                if not self.processes.alive(component):
                    raise RuntimeError(f"{component} ended while starting:{self.processes.last_words(component)}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the API server is not ready after {timeout_seconds:.0f} s:"
                    f"{self.processes.last_words('kube-apiserver')}"
                )
            time.sleep(0.1)

    def _remembered_ports(self, port: int | None, ports: Sequence[int] | None) -> list[int]:
        """Chosen once and kept, because certificates, kubeconfigs and a restarted component depend on them."""
        file = self.directory / "ports"
        if port is None and ports is None and file.exists():
            return [int(word) for word in file.read_text().split()]
        free = free_ports(5)
        chosen = [port or free[0], *(ports or free[1:])]
        self.directory.mkdir(parents=True, exist_ok=True)
        file.write_text(" ".join(map(str, chosen)) + "\n")
        return chosen

    def _write_credentials(self) -> None:
        authority = self.authority
        authority.issue(
            "apiserver",
            "/CN=kube-apiserver",
            addresses=("127.0.0.1", API_SERVICE_IP, *{self._advertise_address} - {"127.0.0.1"}),
            names=(
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ),
        )
        authority.issue("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        authority.key_pair("service-account")
        authority.kubeconfig(
            self.directory / "controller-manager.kubeconfig",
            "controller-manager",
            "/CN=system:kube-controller-manager",
            self.url,
        )
        authority.kubeconfig(
            self.directory / "scheduler.kubeconfig", "scheduler", "/CN=system:kube-scheduler", self.url
        )
        authority.kubeconfig(self.kubeconfig, "admin", "/O=system:masters/CN=grpo-local-admin", self.url)

    def _flags(self) -> dict[str, list[str]]:
        pki = self.directory / "pki"
        etcd, peer, manager, scheduler = self._ports
        return {
            "etcd": [
                f"--data-dir={self.directory / 'etcd'}",
                "--name=grpo-local",
                f"--listen-client-urls=http://127.0.0.1:{etcd}",
                f"--advertise-client-urls=http://127.0.0.1:{etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=grpo-local=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",  # nothing here is worth a disk flush a write
                "--log-level=warn",
            ],
            "kube-apiserver": [
                f"--etcd-servers=http://127.0.0.1:{etcd}",
                f"--bind-address={self._bind_address}",
                f"--advertise-address={self._advertise_address}",
                *(["--endpoint-reconciler-type=none"] if self._advertise_address.startswith("127.") else []),
                f"--secure-port={self.port}",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                f"--tls-cert-file={pki / 'apiserver.crt'}",
                f"--tls-private-key-file={pki / 'apiserver.key'}",
                f"--client-ca-file={pki / 'ca.crt'}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={pki / 'service-account.pub'}",
                f"--service-account-signing-key-file={pki / 'service-account.key'}",
                f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
                f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
                f"--kubelet-certificate-authority={pki / 'ca.crt'}",
                "--kubelet-preferred-address-types=InternalIP",  # node names do not resolve
                f"--feature-gates={FEATURE_GATES}",
                f"--runtime-config={RUNTIME_CONFIG}",
            ],
            "kube-controller-manager": [
                *self._client_flags("controller-manager", manager),
                f"--root-ca-file={pki / 'ca.crt'}",
                f"--service-account-private-key-file={pki / 'service-account.key'}",
                f"--cluster-signing-cert-file={pki / 'ca.crt'}",
                f"--cluster-signing-key-file={pki / 'ca.key'}",
                "--use-service-account-credentials=true",
            ],
            "kube-scheduler": self._client_flags("scheduler", scheduler),
        }

    def _client_flags(self, name: str, port: int) -> list[str]:
        kubeconfig = self.directory / f"{name}.kubeconfig"
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",  # there is one of each
            "--kube-api-qps=1000",  # the defaults cap them at 20 and 50 requests a second
            "--kube-api-burst=2000",
            f"--feature-gates={FEATURE_GATES}",
        ]
