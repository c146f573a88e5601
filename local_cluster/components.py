"""The programs that make up the cluster, their versions and their build flags.

Versions are read from ``gomod/cluster/go.mod``, the one place that holds them.
"""

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from local_cluster import paths

MODULE_DIR = Path(__file__).parent / "gomod" / "cluster"

# Compile time decides how long a first `make demo` takes. These flags save a good part of it against Go's defaults: no
# debugging information, and no inlining outside the standard library (which keeps it: the runtime depends on it).
TAGS = "-tags=no_btrfs,no_devmapper,no_zfs"
COMPILE_FLAGS = (
    "-trimpath",
    "-buildvcs=false",
    TAGS,
    "-gcflags=all=-dwarf=false -l",
    "-gcflags=std=-dwarf=false",
)
COMPILE_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOGC": "400"}


@dataclass(frozen=True)
class Component:
    """One binary: its file name, its Go package, and the module whose version it carries ("" for our own)."""

    name: str
    package: str
    module: str
    stage: str

    @property
    def version(self) -> str:
        return versions()[self.module] if self.module else "v1"

    @property
    def key(self) -> str:
        """Changes with all that changes the binary: module versions, build flags, and its source where it is ours."""
        digest = hashlib.sha256(build_inputs())
        if self.package.startswith("./"):
            digest.update((MODULE_DIR / self.package / "main.go").read_bytes())
        return f"{self.version.removeprefix('v')}-{digest.hexdigest()[:8]}"

    @property
    def path(self) -> Path:
        return paths.bin_dir() / f"{self.name}-{self.key}" / self.name

    @property
    def built_name(self) -> str:
        """The file name that ``go build -o directory/`` gives it: the path's last element that is no major version."""
        return next(part for part in reversed(self.package.split("/")) if not re.fullmatch(r"v\d+", part))


KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2"

# In the order of building. API-server tests need `control-plane` alone, a cluster of the user's own `tools` alone.
STAGES = ("control-plane", "node", "tools")
COMPONENTS = (
    Component("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "control-plane"),
    Component("kube-apiserver", f"{KUBERNETES}/cmd/kube-apiserver", KUBERNETES, "control-plane"),
    Component("kube-controller-manager", f"{KUBERNETES}/cmd/kube-controller-manager", KUBERNETES, "control-plane"),
    Component("kube-scheduler", f"{KUBERNETES}/cmd/kube-scheduler", KUBERNETES, "control-plane"),
    Component("containerd", f"{CONTAINERD}/cmd/containerd", CONTAINERD, "node"),
    Component("containerd-shim-runc-v2", f"{CONTAINERD}/cmd/containerd-shim-runc-v2", CONTAINERD, "node"),
    Component("ctr", f"{CONTAINERD}/cmd/ctr", CONTAINERD, "node"),
    Component("kubelet", f"{KUBERNETES}/cmd/kubelet", KUBERNETES, "node"),
    Component("kube-proxy", f"{KUBERNETES}/cmd/kube-proxy", KUBERNETES, "node"),
    Component("coredns", "./coredns", "github.com/coredns/coredns", "node"),
    Component("storage", "./storage", "", "node"),
    Component("pause", "./pause", "", "node"),
    Component("kubectl", f"{KUBERNETES}/cmd/kubectl", KUBERNETES, "tools"),
    Component("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", "tools"),
)
BY_NAME = {component.name: component for component in COMPONENTS}


@functools.cache
def versions() -> dict[str, str]:
    """Module path -> version of every requirement in go.mod."""
    text = (MODULE_DIR / "go.mod").read_text()
    return dict(re.findall(r"^(?:require )?\t?(\S+) (v\d\S*)", text, flags=re.MULTILINE))


@functools.cache
def go_version() -> tuple[int, int, int]:
    """The oldest Go that can compile the module (go.mod's own `go` line)."""
    found = re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?", (MODULE_DIR / "go.mod").read_text(), flags=re.MULTILINE)
    assert found, "gomod/cluster/go.mod has no `go` line"
    return int(found[1]), int(found[2]), int(found[3] or 0)


def link_flags() -> str:
    """Stripped, with the versions that a release build of each project would carry (Helm charts check Kubernetes')."""
    kubernetes = versions()[KUBERNETES]
    major, minor = kubernetes.removeprefix("v").split(".")[:2]
    variables = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": kubernetes,
        f"{CONTAINERD}/version.Version": versions()[CONTAINERD],
        "helm.sh/helm/v4/internal/version.version": versions()["helm.sh/helm/v4"],
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in variables.items())])


@functools.cache
def build_inputs() -> bytes:
    """What all binaries depend on: the module's requirements and the build flags."""
    flags = "\0".join([*COMPILE_FLAGS, link_flags(), repr(sorted(COMPILE_ENV.items()))])
    return (MODULE_DIR / "go.mod").read_bytes() + flags.encode()
