"""The operator's settings, from its environment; the chart sets them."""

import os
import socket
from dataclasses import dataclass

from grpo_api.names import OPERATOR_METRICS_PORT, OPERATOR_PROBE_PORT


@dataclass(frozen=True)
class Settings:
    trainer_image: str
    """Image of jobs that name none (GRPO_TRAINER_IMAGE)."""
    namespaces: tuple[str, ...]
    """Namespaces watched (GRPO_WATCH_NAMESPACES, comma separated); empty for all."""
    lease_namespace: str
    """Namespace of the Lease (GRPO_LEASE_NAMESPACE)."""
    lease_name: str
    """Name of the Lease (GRPO_LEASE_NAME)."""
    identity: str
    """Holder of the Lease: the pod's name (GRPO_IDENTITY)."""
    metrics_port: int
    probe_port: int
    progress_interval: float
    """Seconds at least between two status patches that change nothing but progress (GRPO_PROGRESS_INTERVAL_SECONDS)."""
    workers: int
    """Jobs reconciled at once (GRPO_WORKERS)."""

    @staticmethod
    def from_environment() -> "Settings":
        get = os.environ.get
        namespaces = tuple(name.strip() for name in get("GRPO_WATCH_NAMESPACES", "").split(",") if name.strip())
        return Settings(
            trainer_image=get("GRPO_TRAINER_IMAGE", ""),
            namespaces=namespaces,
            lease_namespace=get("GRPO_LEASE_NAMESPACE", "default"),
            lease_name=get("GRPO_LEASE_NAME", "grpo-operator"),
            identity=get("GRPO_IDENTITY", socket.gethostname()),
            metrics_port=int(get("GRPO_METRICS_PORT", str(OPERATOR_METRICS_PORT))),
            probe_port=int(get("GRPO_PROBE_PORT", str(OPERATOR_PROBE_PORT))),
            progress_interval=float(get("GRPO_PROGRESS_INTERVAL_SECONDS", "15")),
            workers=int(get("GRPO_WORKERS", "8")),
        )
