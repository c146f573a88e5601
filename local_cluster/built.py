"""The built cluster: control plane, container runtime and one node on this machine, as processes of root."""

import shutil
import socket
import string
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local_cluster import builder, components, control_plane, images, kubectl, mode, packages, paths, preflight, system
from local_cluster.control_plane import ControlPlane
from local_cluster.processes import Processes
from local_cluster.progress import Progress

NODE = "grpo-local"
FAKE_GPUS = 8
POD_CIDR = "10.244.0.0/16"
DNS_IP = "10.96.0.10"
API_PORT = 16443
# etcd's client and peer port, controller-manager, scheduler.
CONTROL_PLANE_PORTS = (16444, 16445, 16446, 16447)
KUBELET_PORT, KUBELET_HEALTH_PORT, PROXY_METRICS_PORT, PROXY_HEALTH_PORT = range(16448, 16452)
NODE_PROCESSES = ("containerd", "kubelet", "kube-proxy", "storage")
MANIFESTS = Path(__file__).parent / "manifests"


class NotReady(RuntimeError):
    """The cluster did not come up; the message says what was waited for."""


class BuiltCluster:
    def __init__(self) -> None:
        self.state = paths.state_dir()
        self.run = paths.run_dir()
        self.processes = Processes(self.state / "processes", paths.log_dir())
        self.control_plane = ControlPlane(
            self.state / "control-plane",
            port=API_PORT,
            ports=CONTROL_PLANE_PORTS,
            bind_address="0.0.0.0",
            advertise_address=system.NODE_IP,
            logs=paths.log_dir(),
        )

    def up(self) -> None:
        """Bring the cluster up or repair it; a healthy one is left as it is. Raises SystemExit with the repair."""
        if not builder.missing() and not self.problems():
            return
        self.preflight()
        packages.install(packages.missing(packages.NODE_PACKAGES), why="to run containers")
        builder.build()
        existed = (self.state / "control-plane" / "etcd").exists()
        try:
            self.start()
        except (NotReady, RuntimeError) as error:
            if not existed:
                raise SystemExit(f"The cluster did not start: {error}\nLogs: {paths.log_dir()}") from error
            print(f"The cluster of an earlier run cannot be repaired ({error}): replacing it.", flush=True)
            self.remove(keep_images=True)
            try:
                self.start()
            except (NotReady, RuntimeError) as again:
                raise SystemExit(f"The cluster did not start: {again}\nLogs: {paths.log_dir()}") from again

    def preflight(self, *, whole_demo: bool = False) -> None:
        """Exit with the repairs if this machine cannot run the cluster; one that runs already is no obstacle.

        ``whole_demo`` asks for the disk that building the programs and images takes too, unless that is done.
        """
        ports = [
            API_PORT,
            *CONTROL_PLANE_PORTS,
            KUBELET_PORT,
            KUBELET_HEALTH_PORT,
            PROXY_METRICS_PORT,
            PROXY_HEALTH_PORT,
        ]
        first_time = builder.missing() or not (paths.cache_dir() / "buildah").exists()
        needed = preflight.NEEDED_FREE_GB if whole_demo and first_time else preflight.NEEDED_FREE_CLUSTER_GB
        preflight.check(ports, self.own_pids(), needed_free_gb=needed)

    def start(self) -> None:
        """Start what does not run, in order, and wait until pods can run."""
        mode.remember("built")
        with Progress("Starting Kubernetes") as progress:
            values = self._values()
            for directory in (self.state, self.run, paths.log_dir()):
                directory.mkdir(parents=True, exist_ok=True)
            (self.state / "resolv.conf").write_text(
                "".join(f"nameserver {ip}\n" for ip in system.upstream_nameservers())
            )
            system.set_up_network(_filled("firewall.nft", values), self.state)
            system.set_up_cgroup()
            progress.update("container runtime and API server")
            with ThreadPoolExecutor(1) as beside:
                runtime = beside.submit(self._start_runtime, values)
                self.control_plane.start()
                runtime.result()
            progress.update("node")
            self._start_node(values)
            self._configure(values)
            self._wait(progress)
            progress.end("ready")

    def _start_runtime(self, values: dict[str, str]) -> None:
        self._write("containerd", self.state / "containerd.toml", _filled("containerd.toml", values))
        self._write("containerd", self.state / "cni" / "10-grpo-local.conflist", _filled("cni.conflist", values))
        self._start("containerd", "--config", str(self.state / "containerd.toml"))
        deadline = time.monotonic() + 30
        while True:
            try:
                system.run(*images.ctr("version"))
                break
            except RuntimeError as error:
                if time.monotonic() > deadline or not self.processes.alive("containerd"):
                    raise NotReady(
                        f"containerd does not answer ({error}){self.processes.last_words('containerd')}"
                    ) from error
                time.sleep(0.1)
        for name in ("pause", "coredns"):
            if not images.exists(image(name)):
                images.load(images.static_image(paths.binary(name), image(name), [f"/{name}"]), image(name))

    def _start_node(self, values: dict[str, str]) -> None:
        authority = self.control_plane.authority
        server = f"https://127.0.0.1:{API_PORT}"
        shutil.copyfile(self.control_plane.kubeconfig, paths.kubeconfig())
        paths.kubeconfig().chmod(0o600)
        authority.issue("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", addresses=(system.NODE_IP,), names=(NODE,))
        kubelet_config = authority.kubeconfig(
            self.state / "kubelet.kubeconfig", "node", f"/O=system:nodes/CN=system:node:{NODE}", server
        )
        authority.kubeconfig(self.state / "kube-proxy.kubeconfig", "kube-proxy", "/CN=system:kube-proxy", server)
        self._write("kubelet", self.state / "kubelet.yaml", _filled("kubelet.yaml", values))
        self._write("kube-proxy", self.state / "kube-proxy.yaml", _filled("kube-proxy.yaml", values))
        volumes = self.state / "volumes"
        volumes.mkdir(exist_ok=True)
        self._start(
            "kubelet",
            f"--config={self.state / 'kubelet.yaml'}",
            f"--kubeconfig={kubelet_config}",
            f"--hostname-override={NODE}",
            f"--node-ip={system.NODE_IP}",
            f"--root-dir={self.state / 'kubelet'}",
        )
        self._start("kube-proxy", f"--config={self.state / 'kube-proxy.yaml'}")
        self._start("storage", f"--kubeconfig={paths.kubeconfig()}", f"--node={NODE}", f"--root={volumes}")

    def _configure(self, values: dict[str, str]) -> None:
        kubectl.kubectl("apply", "--filename=-", stdin=_filled("cluster.yaml", values))

    def _wait(self, progress: Progress) -> None:
        deadline = time.monotonic() + 120
        while problems := self.problems():
            if any("GPU" in problem for problem in problems):
                kubectl.set_fake_gpus(NODE, FAKE_GPUS)
                continue
            for name in NODE_PROCESSES:
                if not self.processes.alive(name):
                    raise NotReady(f"{name} ended:{self.processes.last_words(name)}")
            if time.monotonic() > deadline:
                raise NotReady("; ".join(problems))
            progress.update(problems[0])
            time.sleep(0.3)

    def problems(self) -> list[str]:
        """What keeps the cluster from working, in words; nothing when it is healthy."""
        dead = [name for name in NODE_PROCESSES if not self._runs_current(self.processes, name)]
        dead += [
            name for name in control_plane.COMPONENTS if not self._runs_current(self.control_plane.processes, name)
        ]
        if dead:
            return [f"{name} is not running" for name in dead]
        if not self.control_plane.ready() or not paths.kubeconfig().exists():
            return ["the API server is not ready"]
        # The node's condition says Ready for a while after its kubelet died.
        if not self._kubelet_healthy():
            return ["the kubelet is not ready"]
        try:
            found = kubectl.get("nodes,deployments,storageclasses", "--namespace=kube-system")["items"]
        except kubectl.KubectlError as error:
            return [f"the API server does not answer: {error}"]
        objects = {(item["kind"], item["metadata"]["name"]): item for item in found}
        node = objects.get(("Node", NODE), {}).get("status", {})
        problems = []
        ready = [condition for condition in node.get("conditions", []) if condition["type"] == "Ready"]
        if not ready or ready[0]["status"] != "True":
            problems.append(f"the node is not ready ({ready[0]['message'] if ready else 'not registered'})")
        elif node["allocatable"].get("nvidia.com/gpu") != str(FAKE_GPUS):
            problems.append(f"the node does not offer {FAKE_GPUS} GPUs")
        if not objects.get(("Deployment", "coredns"), {}).get("status", {}).get("readyReplicas"):
            problems.append("CoreDNS is not ready")
        if ("StorageClass", "local-directory") not in objects:
            problems.append("the storage class is missing")
        return problems

    def remove(self, *, keep_images: bool = False) -> None:
        """Stop, unmount and delete all that the cluster made; ``keep_images`` leaves containerd's store."""
        # The kubelet first, or it would start again what is killed below.
        for name in ("kubelet", "kube-proxy", "storage"):
            self.processes.stop(name)
        self.processes.stop("containerd")
        # Before the API server, which waits for its clients to hang up.
        system.kill_containers(components.BY_NAME["containerd-shim-runc-v2"].path)
        self.control_plane.stop()
        system.unmount_below(self.run, self.state)
        system.remove_cgroup()
        system.tear_down_network(self.state)
        system.remove_traces(self.state)
        shutil.rmtree(self.run, ignore_errors=True)
        for path in list(self.state.iterdir()) if self.state.exists() else []:
            if not (keep_images and path.name == "containerd"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep_images:
            shutil.rmtree(self.state, ignore_errors=True)

    def own_pids(self) -> set[int]:
        every = [
            processes.record(name)
            for processes in (self.processes, self.control_plane.processes)
            for name in processes.names()
        ]
        return {record.pid for record in every if record is not None and record.alive}

    def _runs_current(self, processes: Processes, name: str) -> bool:
        """Alive, and of the version that the tree asks for now."""
        record = processes.record(name)
        return record is not None and record.alive and record.command[0] == str(components.BY_NAME[name].path)

    def _kubelet_healthy(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", KUBELET_HEALTH_PORT), timeout=2):
                return True
        except OSError:
            return False

    def _write(self, process: str, path: Path, text: str) -> None:
        """Write a configuration file; a process that runs with another one is stopped, to be started anew."""
        if path.exists() and path.read_text() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.processes.stop(process)
        path.write_text(text)

    def _start(self, name: str, *flags: str) -> None:
        # runc, mount and the like lie in /usr/sbin, which not every user's PATH has. containerd looks for its shim on
        # PATH; if it finds none after a restart, it drops the containers that run.
        shims = paths.binary("containerd-shim-runc-v2").parent
        path = f"{shims}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.processes.start(name, [str(paths.binary(name)), *flags], env={"PATH": path})

    def _values(self) -> dict[str, str]:
        nameservers = system.upstream_nameservers()
        return {
            "STATE": str(self.state), "RUN": str(self.run), "PKI": str(self.control_plane.directory / "pki"),
            "NODE": NODE, "NODE_IP": system.NODE_IP, "POD_CIDR": POD_CIDR, "DNS_IP": DNS_IP, "CGROUP": system.CGROUP,
            "PAUSE_IMAGE": image("pause"), "COREDNS_IMAGE": image("coredns"),
            "FORWARD": f"forward . {' '.join(nameservers)}" if nameservers else "", "API_PORT": str(API_PORT),
            "KUBELET_PORT": str(KUBELET_PORT), "KUBELET_HEALTH_PORT": str(KUBELET_HEALTH_PORT),
            "PROXY_METRICS_PORT": str(PROXY_METRICS_PORT), "PROXY_HEALTH_PORT": str(PROXY_HEALTH_PORT),
        }  # fmt: skip


def image(name: str) -> str:
    return f"localhost/{name}:{components.BY_NAME[name].key}"


def _filled(manifest: str, values: dict[str, str]) -> str:
    return string.Template((MANIFESTS / manifest).read_text()).substitute(values)
