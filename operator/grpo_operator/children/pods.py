"""The gang's pods: rank and rendezvous environment, mounts, and the restricted security profile."""

from typing import Any

from grpo_api import names
from grpo_api.job import GRPOJob
from grpo_api.spec.reward import TokenSecret
from grpo_operator.children.claim import mounted_claim
from grpo_operator.children.configmap import JOB_KEY, reward_key
from grpo_operator.children.meta import Object, metadata

USER_ID = 10001
GRACE_SECONDS = 30


def pod(job: GRPOJob, rank: int, attempt: int, default_image: str) -> Object:
    """Manifest of the pod of one node rank."""
    template = job.spec.template
    made: Object = {
        "metadata": {},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_trainer(job, rank, default_image)],
            "volumes": _volumes(job, rank),
        },
    }
    spec = made["spec"]
    for key, value in (
        ("imagePullSecrets", [{"name": secret.name} for secret in template.image_pull_secrets]),
        ("serviceAccountName", template.service_account_name),
        ("priorityClassName", template.priority_class_name),
        ("nodeSelector", template.node_selector),
        ("tolerations", template.tolerations),
    ):
        if value:
            spec[key] = value
    merged = merge(made, template.pod_overlay)
    return _controlled(merged, job, rank, attempt)


def _trainer(job: GRPOJob, rank: int, default_image: str) -> Object:
    template = job.spec.template
    gpus = {template.gpu_resource_name: str(job.spec.trainer.n_gpus_per_node)}
    container: Object = {
        "name": names.TRAINER_CONTAINER,
        "image": template.image or default_image,
        "env": [{"name": "HOME", "value": names.SCRATCH_DIR}, *(_env(item) for item in template.env)],
        "ports": [{"name": names.TRAINER_METRICS_PORT_NAME, "containerPort": job.spec.metrics.port}],
        "resources": {
            "requests": {**{key: str(value) for key, value in template.resources.requests.items()}, **gpus},
            "limits": {**{key: str(value) for key, value in template.resources.limits.items()}, **gpus},
        },
        # No liveness probe: a long step is not a fault, and a stalled gang ends itself with its own exit code.
        "readinessProbe": {
            "httpGet": {"path": names.HEALTH_PATH, "port": names.TRAINER_METRICS_PORT_NAME},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(job, rank),
    }
    if template.image_pull_policy:
        container["imagePullPolicy"] = template.image_pull_policy
    return container


def _env(item: Any) -> Object:
    return dict(item.model_dump(by_alias=True, exclude_none=True))


def _mounts(job: GRPOJob, rank: int) -> list[Object]:
    mounts: list[Object] = [
        {"name": "job", "mountPath": names.JOB_FILE.rsplit("/", 1)[0], "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": names.SCRATCH_DIR},
    ]
    if mounted_claim(job):
        mounts.append({"name": "checkpoints", "mountPath": job.spec.checkpoint.mount_path})
    for volume, function, _ in _reward_tokens(job, rank):
        path = f"{names.REWARD_TOKENS_DIR}/{function}"
        mounts.append({"name": volume, "mountPath": path, "readOnly": True})
    return mounts


def _reward_tokens(job: GRPOJob, rank: int) -> list[tuple[str, str, TokenSecret]]:
    """Volume, function and Secret of each reward server's token. Rewards are computed in the head pod alone."""
    return [
        (f"reward-token-{index}", function.name, function.http.token_secret)
        for index, function in enumerate(job.spec.reward.functions)
        if rank == 0 and function.http is not None and function.http.token_secret is not None
    ]


def _volumes(job: GRPOJob, rank: int) -> list[Object]:
    # One projected volume: a second ConfigMap mount inside the first would need a directory that is read-only.
    items = [{"key": JOB_KEY, "path": JOB_KEY}]
    directory = names.REWARD_DIR.rsplit("/", 1)[1]
    for function in job.spec.reward.functions:
        if function.python is not None:
            key = reward_key(function.name)
            items.append({"key": key, "path": f"{directory}/{key}"})
    volumes: list[Object] = [
        {"name": "job", "configMap": {"name": names.config_map_name(job.name), "items": items}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(job.spec.template.shm_size)}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if name := mounted_claim(job):
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": name}})
    for volume, _, secret in _reward_tokens(job, rank):
        items = [{"key": secret.key, "path": names.REWARD_TOKEN_FILE}]
        source = {"secretName": secret.name, "items": items, "defaultMode": 0o440}
        volumes.append({"name": volume, "secret": source})
    return volumes


def _controlled(made: Object, job: GRPOJob, rank: int, attempt: int) -> Object:
    """What rank, recovery and safety rest on wins over any overlay."""
    name = names.pod_name(job.name, rank)
    own = metadata(job, name, more_labels={names.LABEL_NODE_RANK: str(rank), names.LABEL_ATTEMPT: str(attempt)})
    given = made["metadata"]
    own["labels"] = {**given.get("labels", {}), **own["labels"]}
    if given.get("annotations"):
        own["annotations"] = given["annotations"]
    spec = made["spec"]
    spec |= {
        "restartPolicy": "Never",
        "hostname": name,
        "subdomain": names.service_name(job.name),
        "automountServiceAccountToken": False,
    }
    environment = {
        names.ENV_NODE_RANK: str(rank),
        names.ENV_NUM_NODES: str(job.spec.trainer.nnodes),
        names.ENV_HEAD_ADDRESS: names.head_address(job.name, job.namespace),
        names.ENV_ATTEMPT: str(attempt),
    }
    for container in spec["containers"]:
        if container["name"] == names.TRAINER_CONTAINER:
            kept = [item for item in container["env"] if item["name"] not in environment]
            container["env"] = [*({"name": key, "value": value} for key, value in environment.items()), *kept]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}


_MERGE_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}


def merge(base: Any, overlay: Any, field: str = "") -> Any:
    """`overlay` over `base`: objects by key, lists of named objects by name (mounts by path), all else replaced."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return {
            key: merge(base.get(key), overlay[key], key) if key in overlay else base[key] for key in {**base, **overlay}
        }
    key = _MERGE_KEYS.get(field, "name")
    if (
        isinstance(base, list)
        and isinstance(overlay, list)
        and all(isinstance(i, dict) and key in i for i in [*base, *overlay])
    ):
        result = {item[key]: item for item in base}
        for item in overlay:
            if field in ("volumes", "volumeMounts") and item[key] in result:
                continue  # the job file, /dev/shm and the scratch directory are not for an overlay to take away
            result[item[key]] = merge(result.get(item[key]), item)
        return list(result.values())
    return overlay
