"""Environment of the trainer's processes: set once, before Ray, torch or vLLM start, and inherited by all of them."""

import logging
import os
import pwd
import socket
import warnings

import psutil

from grpo_api.job import GRPOJobSpec
from grpo_api.names import SCRATCH_DIR
from grpo_api.spec.model_data import ModelSpec
from grpo_trainer.errors import SpecError, UserInputError

_ALWAYS = {
    "RAY_memory_monitor_refresh_ms": "0",  # the kernel's limit on the pod rules, and its OOMKilled says more
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default, which starves workers where anything else runs
    "RAY_raylet_start_wait_time_s": "120",
    # A node that died is told by its closed sockets in about 4 s, one that is cut off after 20 s.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "4",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_DEFAULTS = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CONFIGURE_LOGGING": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "GLOG_minloglevel": "2",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_CACHE_ROOT": f"{SCRATCH_DIR}/vllm",
    "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH_DIR}/inductor",
    "TRITON_CACHE_DIR": f"{SCRATCH_DIR}/triton",
    "HF_HOME": f"{SCRATCH_DIR}/huggingface",
    "XDG_CACHE_HOME": f"{SCRATCH_DIR}/cache",
    "MPLCONFIGDIR": f"{SCRATCH_DIR}/matplotlib",
}
_CPU_DEFAULTS = {
    # Pods that share a machine's cores must neither spin on them nor pin their threads to the same one.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The image has no compiler, and compiling vLLM's sampler costs more than a short run gains.
    "TORCHDYNAMO_DISABLE": "1",
}


def prepare(address: str, *, has_gpu: bool) -> None:
    """Sets what is unset; `address` is this node's own. Containers run under user ids that have no passwd entry."""
    os.environ.update(_ALWAYS)
    for name, value in (_DEFAULTS | ({} if has_gpu else _CPU_DEFAULTS)).items():
        os.environ.setdefault(name, value)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", "grpo")
        os.environ.setdefault("LOGNAME", "grpo")
    os.environ.setdefault("VLLM_HOST_IP", address)
    if interface := _interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def check_device(spec: GRPOJobSpec, *, has_gpu: bool) -> None:
    """Raises SpecError where this machine cannot run the spec."""
    if has_gpu:
        return
    if spec.model.dtype != "float32":
        raise SpecError(
            "DtypeNotOnCPU", f"model.dtype is {spec.model.dtype}, but this pod has no GPU: set float32, or ask for GPUs"
        )
    if spec.rollout.tensor_model_parallel_size > 1:
        raise SpecError(
            "TensorParallelNotOnCPU",
            f"rollout.tensorModelParallelSize is {spec.rollout.tensor_model_parallel_size}, but this pod has no GPU: "
            "set 1, or ask for GPUs",
        )


def check_paths(model: ModelSpec) -> None:
    """Raises UserInputError where a directory that the model section names is not in this pod."""
    for name, path, reason in (
        ("model.path", model.path, "ModelNotLoaded"),
        ("model.tokenizerPath", model.tokenizer_path, "TokenizerNotLoaded"),
    ):
        if path and path.startswith("/") and not os.path.exists(path):
            raise UserInputError(
                reason,
                f"{name} {path} does not exist in the pod: correct it, or mount the volume that holds it "
                "(template.podOverlay)",
            )


def set_up_logging() -> None:
    """Our own lines, and nothing below an error of the libraries."""
    logging.basicConfig(format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S", level=logging.ERROR)
    logging.getLogger("grpo_trainer").setLevel(logging.INFO)
    warnings.simplefilter("ignore")


def own_address(head: str, *, is_head: bool) -> str:
    """This node's IP address, as its peers see it: the one that the kernel would speak to the head from.

    Raises OSError where neither a route nor the head's name leads to one.
    """
    candidates = ["192.0.2.1", head] if is_head else [head]
    failure: OSError = OSError(f"no address to reach {head!r} from")
    for target in candidates:
        try:
            family, _, _, _, destination = socket.getaddrinfo(target, 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(destination)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def _interface_of(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return None


def port_answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
