"""python3 -m local_cluster COMMAND. Standard library only: it runs before anything is installed."""

import argparse
import sys

from local_cluster import builder, components, mode, others, paths
from local_cluster.built import BuiltCluster
from local_cluster.locks import locked


def up() -> None:
    with locked(paths.cache_dir() / "cluster.lock", "another command on the local cluster"):
        chosen = mode.choose()
        file = paths.state_dir() / "mode"
        if file.exists() and mode.current() != chosen:
            raise SystemExit(
                f"A local cluster of another kind ({mode.current()}) is up: run `python3 -m local_cluster down` first."
            )
        if chosen == "built":
            cluster = BuiltCluster()
            cluster.up()
        else:
            builder.build(["tools"])
            mode.remember(chosen)
            others.use_named() if chosen == "named" else others.up_kind()
    print(
        f"Kubernetes is up ({chosen}). Use it in this shell with:\n\n"
        '    eval "$(python3 -m local_cluster env)"\n    kubectl get nodes\n'
    )


def down(keep_images: bool) -> None:
    with locked(paths.cache_dir() / "cluster.lock", "another command on the local cluster"):
        if not paths.state_dir().exists():
            print("There is no local cluster.")
            return
        # What was interrupted before it knew its mode can only be a built one.
        current = mode.current() if (paths.state_dir() / "mode").exists() else "built"
        if current == "built":
            BuiltCluster().remove(keep_images=keep_images)
        else:
            others.down(current)
    print(
        "The local cluster is removed."
        if current != "named"
        else "The cluster of yours is left as it is; our copy of its kubeconfig is deleted."
    )


def status() -> int:
    """Print what runs; exit status 0 when the cluster is healthy, 1 when it is not, 3 when there is none."""
    if not (paths.state_dir() / "mode").exists():
        print("There is no local cluster.")
        return 3
    current = mode.current()
    print(f"Cluster: {current}, kubeconfig {paths.kubeconfig()}")
    if current != "built":
        return 0
    cluster = BuiltCluster()
    for processes in (cluster.control_plane.processes, cluster.processes):
        for name in processes.names():
            record = processes.record(name)
            state = f"process {record.pid}" if record is not None and record.alive else "not running"
            print(f"  {name:24} {state:16} {processes.log(name)}")
    problems = cluster.problems()
    print("Healthy." if not problems else "\n".join(f"Problem: {problem}" for problem in problems))
    return 1 if problems else 0


def env() -> None:
    """Print shell assignments: the cluster's kubeconfig, and PATH with our kubectl and helm in front."""
    directories = ":".join(str(paths.binary(name).parent) for name in ("kubectl", "helm"))
    print(f"export KUBECONFIG='{paths.kubeconfig()}'\nexport PATH='{directories}':\"$PATH\"")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m local_cluster", description=f"Local Kubernetes for the demo and the tests. {mode.__doc__}"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("preflight", help="check that this machine can run the whole demo; changes nothing")
    commands.add_parser("up", help="start or repair the cluster; a healthy one is left as it is")
    downing = commands.add_parser("down", help="stop the cluster and delete what it holds")
    downing.add_argument("--keep-images", action="store_true", help="leave loaded container images for the next `up`")
    commands.add_parser("status", help="show what runs; exit status 1 if something does not, 3 if there is no cluster")
    building = commands.add_parser("build", help="compile the cluster's programs into the cache, once")
    building.add_argument(
        "stage", nargs="*", default=components.STAGES, help=f"some of {', '.join(components.STAGES)}; all by default"
    )
    commands.add_parser("clean", help="delete Go's download and build caches; binaries stay")
    commands.add_parser("kubeconfig", help="print the path of the cluster's kubeconfig")
    commands.add_parser("env", help='print shell assignments for `eval "$(...)"`')
    arguments = parser.parse_args()
    match arguments.command:
        case "preflight":
            if mode.choose() == "built":
                BuiltCluster().preflight(whole_demo=True)
        case "up":
            up()
        case "down":
            down(arguments.keep_images)
        case "status":
            return status()
        case "build":
            if unknown := set(arguments.stage) - set(components.STAGES):
                parser.error(f"unknown stage {', '.join(sorted(unknown))}: choose from {', '.join(components.STAGES)}")
            builder.build(arguments.stage)
        case "clean":
            builder.clean()
        case "kubeconfig":
            mode.current()
            print(paths.kubeconfig())
        case "env":
            env()
    return 0


if __name__ == "__main__":
    sys.exit(main())
