"""Time by phase and memory of whole steps on one GPU: rollout by vLLM, reference, update, sync.

    PYTHONPATH=api:trainer_image python benchmarks/gpu_step.py [--prompts 64] [--n 8] [--set KEY=JSON ...]

Model: Qwen2.5-1.5B's shape with random weights, bfloat16, a KL loss. Runs the trainer's own entry point, as a pod does;
prints its log, then a JSON line with the means of the steps after the first two, which compile.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo_api.job import parse_job

REPOSITORY = Path(__file__).parents[1]
WARM_UP = 2
PORT = 9464
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str) % 5\n"
SHAPE = {
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
}


def make_model(path: Path) -> None:
    """A token for each byte, so that a prompt of ASCII characters has as many tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: index for index, one in enumerate([*alphabet, "<end>"])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(path)
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPE, eos_token_id=len(alphabet), bos_token_id=None, dtype="bfloat16")
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    torch.cuda.empty_cache()


def job_of(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    letters, rows = random.Random(0), directory / "rows.jsonl"
    with rows.open("w") as file:
        for _ in range(args.prompts * args.steps):
            prompt = "".join(letters.choices("abcdefghijklmnop ", k=args.prompt))
            file.write(json.dumps({"prompt": prompt, "reward_model": {"ground_truth": ""}}) + "\n")
    spec: dict[str, Any] = {
        "model": {"path": str(directory / "model")},
        "data": {
            "train": {"files": [str(rows)]},
            "applyChatTemplate": False,
            "trainBatchSize": args.prompts,
            "maxPromptLength": args.prompt,
            "maxResponseLength": args.response,
        },
        "reward": {"functions": [{"name": "length", "python": {"source": REWARD}}]},
        "rollout": {"n": args.n},
        "actor": {"ppoMiniBatchSize": args.prompts, "useKlLoss": True},
        "trainer": {"totalSteps": args.steps},
        "metrics": {"port": PORT},
    }
    for setting in args.set:
        name, _, value = setting.partition("=")
        *sections, leaf = name.split(".")
        place = spec
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = json.loads(value)
    raw = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": {"name": "step", "namespace": "bench"}}
    return parse_job(raw | {"spec": spec}).dump()


def watch_memory(used: list[int]) -> None:
    """MiB that the driver counts, by all processes, ten times a second."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "100"]
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as process:
        used.extend(int(line) for line in process.stdout or ())


def torch_peak() -> float:
    """Bytes that the trainer's torch allocated at most in the step before."""
    with urllib.request.urlopen(f"http://localhost:{PORT}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("grpo_gpu_memory_peak_bytes{")]
    return max(float(line.rpartition(" ")[2]) for line in lines)


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    (directory / "job.json").write_text(json.dumps(job_of(args, directory)))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([f"{REPOSITORY}/api", f"{REPOSITORY}/trainer_image", *sys.path[1:]]),
        "GRPO_JOB_FILE": str(directory / "job.json"),
        "GRPO_TERMINATION_LOG": str(directory / "termination.json"),
        "RAY_AUTH_MODE": "disabled",
    }
    used: list[int] = []
    if torch.cuda.is_available():
        threading.Thread(target=watch_memory, args=(used,), daemon=True).start()
    began = time.monotonic()
    run = subprocess.Popen(
        [sys.executable, "-m", "grpo_trainer.main"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    steps: list[dict[str, float]] = []
    peak, start = 0.0, 0.0
    for line in run.stdout or ():
        print(line, end="", flush=True)
        if not line.startswith("step="):
            continue
        start = start or time.monotonic() - began
        steps.append({key: float(value) for key, value in (pair.split("=") for pair in line.split()[1:])})
        if len(steps) == WARM_UP:
            used.clear()
        if len(steps) > WARM_UP + 1 and torch.cuda.is_available():
            peak = max(peak, torch_peak())
    if run.wait():
        sys.exit((directory / "termination.json").read_text())
    measured = steps[WARM_UP:]
    means = {name: round(statistics.fmean(step[name] for step in measured), 3) for name in measured[0]}
    seconds = [step["step_s"] for step in measured]
    return {
        "settings": args.set,
        "steps_s": seconds,
        "means": means,
        "first_step_after_s": round(start, 1),
        "driver_peak_gb": round(max(used, default=0) * 2**20 / 1e9, 1),
        "torch_peak_gb": round(peak / 1e9, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("prompts", 64), ("n", 8), ("prompt", 256), ("response", 512), ("steps", WARM_UP + 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a field of the spec")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        make_model(Path(path) / "model")
        print(json.dumps(measure(args, Path(path))), flush=True)


if __name__ == "__main__":
    main()
