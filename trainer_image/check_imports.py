"""Fails an image's build where its packages do not work together, without a GPU.

Usage: check_imports.py PACKAGE=VERSION...
"""

import importlib
import sys
from importlib.metadata import version

IMPORTS = (
    "datasets",
    "jsonschema",
    "math_verify",
    "prometheus_client",
    "psutil",
    "pyarrow.parquet",
    "pydantic",
    "ray",
    "ray._private.workers.default_worker",
    "ray.dashboard.agent",
    "reasoning_gym",
    "ruamel.yaml",
    "safetensors.torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
    "vllm.entrypoints.llm",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
)


def main(pins: list[str]) -> None:
    for pin in pins:
        name, wanted = pin.split("=")
        if version(name) != wanted:
            sys.exit(f"{name} is {version(name)}, the image was written for {wanted}")
    import torch

    if (torch.ones(2, 2) @ torch.ones(2, 2)).sum() != 8:
        sys.exit("torch does not multiply")
    for name in IMPORTS:
        importlib.import_module(name)
    print("imports work:", ", ".join(pins))


if __name__ == "__main__":
    main(sys.argv[1:])
