"""Entry point of every pod of the gang: the head trains, the others lend it their GPUs."""

import json
import logging
import os
import signal
import sys
import time
import traceback
import urllib.request
from pathlib import Path
from types import FrameType
from typing import NoReturn

from grpo_api import names
from grpo_api.errors import InvalidJobError
from grpo_api.job import GRPOJob, parse_job
from grpo_api.names import ExitCode
from grpo_trainer import environment, preflight
from grpo_trainer.errors import PeerLostError, SpecError, TrainerError, plain
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.progress import ProgressServer, write_termination_report

log = logging.getLogger("grpo_trainer.main")

ENV_JOB_FILE = "GRPO_JOB_FILE"
"""Another job file than names.JOB_FILE, for runs outside a pod."""
ENV_TERMINATION_LOG = "GRPO_TERMINATION_LOG"
HEAD_LOST_SECONDS = 30.0
"""The head counts as lost when it has been silent for so long, after it was heard once."""
HEAD_WAIT_SECONDS = 900.0
"""The head's DNS name and its Ray may take so long to appear: its preflight runs first."""
STOPPED = "stopped on request (SIGTERM)"
_FAREWELL_SECONDS = 6.0
"""The head goes on telling that it is done for so long; the others ask every second."""


def main() -> NoReturn:
    environment.set_up_logging()
    metrics_server: ProgressServer | None = None
    try:
        job = _read_job()
        metrics = TrainerMetrics(job.namespace, job.name)
        metrics_server = ProgressServer(job.spec.metrics.port, metrics)
        signal.signal(signal.SIGTERM, lambda number, frame: _stop(metrics_server, number, frame))
        rank = int(os.environ.get(names.ENV_NODE_RANK, "0"))
        nodes = int(os.environ.get(names.ENV_NUM_NODES, job.spec.trainer.nnodes))
        if nodes != job.spec.trainer.nnodes:
            raise SpecError("GangSize", f"trainer.nnodes is {job.spec.trainer.nnodes}, but the gang has {nodes} pods")
        head = os.environ.get(names.ENV_HEAD_ADDRESS, "localhost")
        if rank == 0:
            _lead(job, head, metrics_server, metrics)
        else:
            _follow(job, rank, head)
        _end(metrics_server, ExitCode.DONE, "Completed", "")
    except TrainerError as error:
        _end(metrics_server, error.exit_code, error.reason, error.message)
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        _end(metrics_server, ExitCode.STOPPED, "Stopped", STOPPED)  # by Ray's handler, while it connects
    except Exception as error:  # the pod's log and status get the cause of every end
        sys.stderr.write(plain(traceback.format_exc()))
        _end(metrics_server, 1, type(error).__name__, str(error))


def _read_job() -> GRPOJob:
    path = Path(os.environ.get(ENV_JOB_FILE, names.JOB_FILE))
    try:
        return parse_job(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise SpecError("JobFile", f"{path}: {error}") from error
    except InvalidJobError as error:
        raise SpecError("InvalidSpec", str(error)) from error


def _lead(job: GRPOJob, head: str, server: ProgressServer, metrics: TrainerMetrics) -> None:
    spec, has_gpu = job.spec, _has_gpu()
    environment.check_device(spec, has_gpu=has_gpu)
    environment.check_paths(spec.model)
    preflight.check_algorithm(spec)
    vocabulary = preflight.check_model(spec)
    tokenizer = preflight.load_tokenizer(spec.model)
    from grpo_trainer.data_mix import make_loader
    from grpo_trainer.rewards.pool import RewardPool
    from grpo_trainer.validation import Validator

    loader = make_loader(spec.data, tokenizer)
    validator = Validator(spec, tokenizer) if spec.data.val else None
    data = [loader, validator] if validator else [loader]
    preflight.check_tokens(spec.model, max(one.largest_token for one in data), vocabulary)
    pool = RewardPool(spec.reward, os.environ.get("GRPO_REWARD_DIR", names.REWARD_DIR))
    for prompt in [prompt for one in data for prompt in one.samples()]:
        sample = "" if prompt.ground_truth is None else str(prompt.ground_truth)
        pool.check(prompt.reward_row(sample, len(tokenizer.encode(sample))))
    log.info("preflight ok: model, tokenizer, data and reward functions")

    address = environment.own_address(head, is_head=True)
    environment.prepare(address, has_gpu=has_gpu)
    from grpo_trainer.controller import Controller
    from grpo_trainer.ray_gang import Gang, RayNode

    node = RayNode(spec, 0, address, None)
    gang = Gang(spec, node, address)
    attempt = int(os.environ.get(names.ENV_ATTEMPT, "0"))
    Controller(
        job,
        gang,
        loader=loader,
        tokenizer=tokenizer,
        pool=pool,
        server=server,
        metrics=metrics,
        attempt=attempt,
        validator=validator,
    ).run()
    server.set_phase("done")
    log.info("done")
    pool.close()
    if spec.trainer.nnodes > 1:
        time.sleep(_FAREWELL_SECONDS)
    node.stop()


def _follow(job: GRPOJob, rank: int, head: str) -> None:
    """Lends this pod to the head. Returns when the head is done; raises PeerLostError when it is lost."""
    from grpo_trainer.ray_gang import RayNode

    url = f"http://{head}:{job.spec.metrics.port}{names.PROGRESS_PATH}"
    began = time.monotonic()
    log.info("node rank %d waits for the head at %s", rank, head)
    while _phase(url) in (None, "starting") and not environment.port_answers(head, names.RAY_GCS_PORT):
        if time.monotonic() - began > HEAD_WAIT_SECONDS:
            raise PeerLostError("HeadMissing", f"the head {head} was not there in {HEAD_WAIT_SECONDS:.0f} s")
        time.sleep(1.0)
    address = environment.own_address(head, is_head=False)
    environment.prepare(address, has_gpu=_has_gpu())
    node = RayNode(job.spec, rank, address, head)
    log.info("joining the head's Ray as node rank %d from %s", rank, address)
    heard = time.monotonic()
    while True:
        phase = _phase(url)
        if phase == "done":
            log.info("the head is done")
            node.stop()
            return
        if phase is not None:
            heard = time.monotonic()
        if not node.alive:
            raise PeerLostError("RayEnded", f"this pod's Ray ended: the head was lost. {node.output()}")
        if time.monotonic() - heard > HEAD_LOST_SECONDS:
            raise PeerLostError("HeadLost", f"the head {head} has not answered for {HEAD_LOST_SECONDS:.0f} s")
        time.sleep(1.0)


def _phase(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(json.load(answer)["phase"])
    except (OSError, ValueError, KeyError):
        return None


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _stop(server: ProgressServer | None, number: int, frame: FrameType | None) -> None:
    _end(server, ExitCode.STOPPED, "Stopped", STOPPED)


def _end(server: ProgressServer | None, code: int, reason: str, message: str) -> NoReturn:
    """Leaves the report and ends at once: threads that hang in a collective must not hold the pod."""
    report = server.report if server else None
    message = plain(message)
    if code not in (ExitCode.DONE, ExitCode.STOPPED):
        log.error("%s: %s (exit code %d)", reason, message, code)
    write_termination_report(
        os.environ.get(ENV_TERMINATION_LOG, names.TERMINATION_LOG),
        int(code),
        reason,
        message,
        progress=report.progress if report else None,
        checkpoint=report.checkpoint if report else None,
        phase=report.phase if report else "starting",
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main()
