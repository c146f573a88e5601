"""The headless Service that gives each pod a DNS name before it is ready."""

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_operator.children.meta import Object, metadata


def service(job: GRPOJob) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB_NAME: job.name},
            "ports": [{"name": names.TRAINER_METRICS_PORT_NAME, "port": job.spec.metrics.port}],
        },
    }
