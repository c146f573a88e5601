"""The command line. Installed as `grpoctl` and as kubectl's plugin `kubectl grpo`."""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grpo_api import names
from grpo_api.batch_plan import make_batch_plan
from grpo_api.memory_plan import gpu_bytes, make_memory_plan, memory_faults
from grpoctl.batch_view import plan_table
from grpoctl.cluster import Cluster
from grpoctl.display import LiveView, PlainView, reward_text, state_text
from grpoctl.errors import CliError, Forbidden
from grpoctl.follow import Followed, Outcome, View, follow
from grpoctl.import_verl import import_app
from grpoctl.jobfile import read_job
from grpoctl.memory_view import find_shape, memory_table
from grpoctl.records import check_picture, write_csv, write_curve
from grpoctl.replace import replace
from grpoctl.reward_try import reward_app
from grpoctl.screens import print_jobs, print_status
from grpoctl.source import RETRY_SECONDS, ClusterSource, LogReader
from grpoctl.steps import StepTable, parse_line
from grpoctl.terminal import make_console
from grpoctl.why import explain, gather

app = typer.Typer(
    help="Plan, run and watch GRPOJobs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(reward_app, name="reward")
app.add_typer(import_app, name="import")
console = make_console()

File = Annotated[str, typer.Argument(help="YAML file with one GRPOJob; - reads standard input.")]
Job = Annotated[str, typer.Argument(help="Name of the job.")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Kubeconfig file (default: as kubectl).")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace (default: the context's).")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to follow; exit code 124 after.")]
Curve = Annotated[Path | None, typer.Option("--curve", help="Write the reward curve (.png, .svg, .pdf) at the end.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the table of steps at the end.")]
STATUS_LOG_LINES = 200
"""Of the head's log, for the mean of the last steps' rewards."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"grpoctl {metadata.version('grpo-operator')}")
        raise typer.Exit


@app.callback()
def _before_command(
    context: typer.Context,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
    namespace: Namespace = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan, run and watch GRPOJobs."""
    given = {"kubeconfig": kubeconfig, "context": kube_context, "namespace": namespace}
    options = {name: value for name, value in given.items() if value is not None}
    context.default_map = dict.fromkeys(context.command.list_commands(context), options)


@app.command()
def plan(
    file: File,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="Estimate memory on such GPUs: a type like H100-80GB, or a size like 80Gi."),
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option("--model-config", help="The model's config.json, where neither model.path nor its hub id tells."),
    ] = None,
) -> None:
    """Check a job file and show every number that follows from its batch sizes. Needs no cluster."""
    if output not in ("table", "json"):
        raise CliError(f"-o {output}: use table or json", 2)
    try:
        capacity = None if gpu is None else gpu_bytes(gpu)
    except ValueError as error:
        raise CliError(f"--gpu {error}", 2) from error
    _, job = read_job(file)
    made = make_batch_plan(job.spec)
    shape = find_shape(job.spec, model_config)
    memory = None if capacity is None or shape is None else make_memory_plan(job.spec, shape, capacity)
    faults = [] if memory is None else memory_faults(job.spec, memory)
    if output == "json":
        found = made.model_dump(by_alias=True, exclude_none=True)
        if memory is not None:
            found["memory"] = memory.model_dump(by_alias=True) | {"warnings": [str(fault) for fault in faults]}
        print(json.dumps(found, indent=2))
    else:
        console.print(plan_table(job.spec, made))
        if memory is not None:
            console.print()
            console.print(memory_table(job.spec, memory))
    if capacity is not None and shape is None:
        unknown = f"the shape of {job.spec.model.path} is not known here: pass --model-config with its config.json"
        print(f"no memory estimate: {unknown}", file=sys.stderr)
    for fault in faults:
        print(f"warning: by this estimate {fault}", file=sys.stderr)


@app.command()
def run(
    file: File,
    watch: Annotated[bool, typer.Option("--follow/--no-follow", help="Follow the job to its end.")] = True,
    replace_old: Annotated[
        bool, typer.Option("--replace", help="Delete a job of that name first, and wait until it is gone.")
    ] = False,
    timeout: Timeout = None,
    curve: Curve = None,
    table: Csv = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Create a job and follow it. Exit code 0: it succeeded."""
    if curve is not None:
        check_picture(curve)
    raw, job = read_job(file)
    given = job.metadata.get("namespace")
    if given and namespace and given != namespace:
        raise CliError(f"the file's metadata.namespace is {given}, and -n is {namespace}; drop one of them", 2)
    cluster = Cluster.connect(kubeconfig, context, namespace or given)
    if replace_old:
        replace(cluster, job.name, console)
    elif (old := cluster.find_job(job.name)) is not None:
        state = (old.get("status") or {}).get("state", "Pending")
        raise CliError(
            f"GRPOJob {job.name} exists already in namespace {cluster.namespace} (state {state}); follow it with "
            f"`{cluster.command('follow', job.name)}`, or pass --replace to delete it first"
        )
    cluster.create_job({**raw, "metadata": {**raw["metadata"], "namespace": cluster.namespace}})
    console.print(f"grpojob.{names.GROUP}/{job.name} created in namespace {cluster.namespace}")
    if watch:
        _follow(cluster, job.name, timeout, curve, table)


@app.command("follow")
def follow_command(
    job: Job,
    timeout: Timeout = None,
    curve: Curve = None,
    table: Csv = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show a job's progress until it ends. Exit code 0: it succeeded; 1: it failed; 2: it is gone; 124: --timeout."""
    if curve is not None:
        check_picture(curve)
    cluster = Cluster.connect(kubeconfig, context, namespace)
    cluster.get_job(job)
    _follow(cluster, job, timeout, curve, table)


def _follow(cluster: Cluster, job: str, timeout: float | None, curve: Path | None, table: Path | None) -> None:
    view: View = LiveView(console) if console.is_terminal else PlainView(console, time.monotonic())
    outcome, followed = follow(ClusterSource(cluster, job), view, job, timeout)
    _print_end(cluster, outcome, followed)
    if outcome is not Outcome.INTERRUPTED:
        _write_records(followed, curve, table)
    raise typer.Exit(outcome)


def _print_end(cluster: Cluster, outcome: Outcome, followed: Followed) -> None:
    name = followed.name
    reward = f"; reward {known}" if (known := reward_text(followed.steps)) else ""
    if outcome is Outcome.SUCCEEDED:
        console.print(
            state_text(followed.state).append(f"  {followed.status.get('message') or ''}{reward}", style="default")
        )
    elif outcome is Outcome.FAILED:
        console.print(state_text(followed.state).append(f"  {followed.cause}", style="default"))
    elif outcome is Outcome.GONE:
        console.print(f"GRPOJob {name} was deleted while it was followed", style="red")
    elif outcome is Outcome.TIMED_OUT:
        text = f"--timeout passed while the job was {followed.state}"
        cause = f": {followed.cause}" if followed.cause else ""
        console.print(f"{text}{cause}{reward}; it goes on", style="red", markup=False)
    else:
        console.print(f"stopped watching; the job goes on. Watch it again with: {cluster.command('follow', name)}")


def _write_records(followed: Followed, curve: Path | None, table: Path | None) -> None:
    if table is not None:
        write_csv(table, followed.steps)
    if curve is not None and followed.steps.rewards():
        write_curve(curve, followed.steps, f"GRPOJob {followed.name}")
    elif curve is not None:
        console.print(f"no step with a reward was seen, so {curve} is not written", style="yellow")


@app.command()
def status(job: Job, kubeconfig: Kubeconfig = None, context: Context = None, namespace: Namespace = None) -> None:
    """One job on one screen: state, conditions, progress, checkpoint, restarts, batch plan."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    print_status(console, cluster.get_job(job), _logged_steps(cluster, job))


@app.command()
def why(job: Job, kubeconfig: Kubeconfig = None, context: Context = None, namespace: Namespace = None) -> None:
    """Why a job does not run, in a paragraph; of a job that runs or has ended, how it does or did."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    text = explain(gather(cluster, job), datetime.now(UTC))
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _logged_steps(cluster: Cluster, job: str) -> StepTable:
    """The last steps by the head pod's log; none where it is gone, has not begun, or may not be read."""
    steps = StepTable()
    try:
        for _, line in cluster.pod_log(names.pod_name(job, 0), follow=False, last=STATUS_LOG_LINES):
            if (row := parse_line(line)) is not None:
                steps.add(row)
    except CliError:
        pass
    return steps


@app.command("list")
def list_command(
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="In every namespace.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """All jobs of a namespace."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    jobs = cluster.list_jobs(all_namespaces)
    if jobs:
        print_jobs(console, jobs, with_namespace=all_namespaces)
    else:
        console.print("no GRPOJobs" + ("" if all_namespaces else f" in namespace {cluster.namespace}"))


@app.command()
def logs(
    job: Job,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Node rank: 0 is the head, which logs the steps.")] = 0,
    watch: Annotated[bool, typer.Option("--follow", "-f", help="Go on, across restarts, until the job ends.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """The trainer's log of one rank's pod."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    found = cluster.get_job(job)
    nodes = found["spec"]["trainer"].get("nnodes", 1)
    if rank >= nodes:
        raise CliError(f"--rank {rank}: the job has ranks 0 to {nodes - 1}", 2)
    pod = names.pod_name(job, rank)
    reader = LogReader(cluster, pod)
    if watch:
        _follow_log(cluster, reader, job)
    elif not reader.read(_print_line, follow=False):
        advice = cluster.command("status", job)
        raise CliError(f"pod {pod} has no log: it is not there or has not started; see {advice}")


def _follow_log(cluster: Cluster, reader: LogReader, job: str) -> None:
    """Print what comes until the job has ended; what cannot be read meanwhile is told once and tried again."""
    trouble = ""
    while True:
        there, ended = True, False
        try:
            found = cluster.find_job(job)
            there = found is not None
            if found is not None:
                ended = (found.get("status") or {}).get("state") in names.TERMINAL_STATES
                reader.read(_print_line, follow=True)
            trouble = ""
        except CliError as error:
            if ended or isinstance(error, Forbidden):
                raise
            if str(error) != trouble:
                trouble = str(error)
                print(f"{trouble}; trying again", file=sys.stderr)
        if not there:
            raise CliError(f"GRPOJob {job} was deleted while its log was followed", Outcome.GONE)
        if ended:
            return
        time.sleep(RETRY_SECONDS)


def _print_line(_: int, line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Entry point of both names."""
    code = _run_app()
    if threading.active_count() == 1:
        sys.exit(code)
    # A thread that follows a job may wait for the API server for a minute, too long to join it. Where its socket call
    # returns while Python shuts down, Python ends it by pthread_exit from inside that call, and glibc aborts the
    # process (SIGABRT, exit code 134). Such threads hold nothing that is still to be written.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, here or at the other end
            stream.flush()
    os._exit(code)


def _run_app() -> int:
    name = "kubectl grpo" if Path(sys.argv[0]).name.startswith("kubectl") else "grpoctl"
    try:
        app(prog_name=name)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except CliError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        return int(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return 0


if __name__ == "__main__":
    main()
