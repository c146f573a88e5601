"""`gangScheduling`, `checkpoint`, `runPolicy`, `template` and `metrics`: where and how the pods run."""

from typing import Literal

from pydantic import ConfigDict, Field

from grpo_api import names
from grpo_api.base import ApiModel, FreeObject, Name, Path, Quantity, ShortText, Size, cel, cel_rules
from grpo_api.names import DEFAULT_CHECKPOINT_MOUNT, GPU_RESOURCE, TRAINER_METRICS_PORT

TAKEN_MOUNTS = ("", names.JOB_FILE.rsplit("/", 1)[0], names.SCRATCH_DIR, "/dev/shm")
"""Directories that the pod needs for other things."""
PORTS_OF_RAY = (
    (names.RAY_GCS_PORT, names.RAY_GCS_PORT, "Ray"),
    (names.RAY_OBJECT_MANAGER_PORT, names.RAY_DASHBOARD_AGENT_PORT, "Ray"),
    (names.RAY_MIN_WORKER_PORT, names.RAY_MAX_WORKER_PORT, "Ray's workers"),
    (names.TORCH_RENDEZVOUS_PORT, names.TORCH_RENDEZVOUS_PORT, "torch's rendezvous"),
)
"""First port, last port and owner."""
_PORT_RULE = cel(
    " && ".join(f"!(self >= {first} && self <= {last})" for first, last, _ in PORTS_OF_RAY),
    f"is taken by Ray or torch in the same pod: try {TRAINER_METRICS_PORT}",
)
_MOUNT_RULES = {
    "pattern": "^/",
    **cel_rules(
        cel("self.startsWith('/')", f"must be an absolute path, such as {DEFAULT_CHECKPOINT_MOUNT}"),
        cel(
            f"!(self in {[*(f'{path}/' for path in TAKEN_MOUNTS), *TAKEN_MOUNTS]})",
            f"is where the pod has other things: try {DEFAULT_CHECKPOINT_MOUNT}",
        ),
    ),
}


LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_MANAGER = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$"
)
_MANAGER_RULE = cel(
    f"self.matches('{_MANAGER}')",
    f"must be a domain and a name, such as example.com/dispatcher, or {names.CONTROLLER} for this operator",
)
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
NO_MULTIKUEUE = (
    "MultiKueue does not know GRPOJobs, so nothing would run the job: leave managedBy out, apply the job in the "
    "cluster that is to run it, and name a queue there in gangScheduling.queue"
)
_MULTIKUEUE_RULE = cel(f"self != '{MULTIKUEUE}'", NO_MULTIKUEUE)


QUEUE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_QUEUE_RULE = cel(f"self.matches('{QUEUE}')", "must be the name of a queue, such as team-a")
_TOPOLOGY_RULE = cel(f"self.matches('{LABEL_KEY}')", "must be a node label's key, such as topology.kubernetes.io/zone")


QUEUED_BACKENDS = ("auto", "kueue", "volcano", "kai")
NO_QUEUE = "only kueue, volcano and kai have queues: remove queue, or set backend to one of them or to auto"
QUEUE_NEEDED = ("kueue", "kai")
QUEUE_MISSING = (
    "is needed by the backends kueue and kai: name the queue, which for kueue is a LocalQueue of the namespace"
)
_QUEUE_RULES = (
    # Rules are tried on the section's own default too, an empty object.
    cel(
        f"!has(self.queue) || !has(self.backend) || self.backend in {list(QUEUED_BACKENDS)}",
        NO_QUEUE,
        fieldPath=".queue",
    ),
    cel(
        f"has(self.queue) || !has(self.backend) || !(self.backend in {list(QUEUE_NEEDED)})",
        QUEUE_MISSING,
        fieldPath=".queue",
    ),
)


class GangSchedulingSpec(ApiModel):
    """All pods of the gang are placed, or none. The gang's size is fixed: elastic jobs are out of scope."""

    model_config = ConfigDict(json_schema_extra=cel_rules(*_QUEUE_RULES))
    backend: Literal["auto", "native", "kueue", "volcano", "coscheduling", "kai", "gated", "none"] = "auto"
    """`native`: Workload and PodGroup of Kubernetes 1.37's scheduling.k8s.io/v1beta1. `kueue`, `volcano`,
    `coscheduling` (scheduler-plugins) and `kai`: what these projects install. `gated`: the operator holds pods back by
    scheduling gates until it sees room for all of them. `none`: plain pods. `auto`: kueue where `queue` is set, else
    native where the cluster serves that API, else gated where the operator may see all nodes and pods, else none."""
    queue: str | None = Field(
        default=None, min_length=1, max_length=63, pattern=QUEUE, json_schema_extra=cel_rules(_QUEUE_RULE)
    )
    """Queue in which the gang waits for its quota: Kueue's LocalQueue in the job's namespace, Volcano's or KAI's Queue.
    Volcano's `default` where unset."""
    topology_key: str | None = Field(
        default=None, min_length=1, max_length=317, pattern=LABEL_KEY, json_schema_extra=cel_rules(_TOPOLOGY_RULE)
    )
    """Node label whose value all pods of the gang share, such as topology.kubernetes.io/zone or a rack's or NVLink
    domain's; anywhere where unset."""
    topology_mode: Literal["Required", "Preferred"] = "Required"
    """`Required`: the gang waits until one domain of `topologyKey` has room for all of it. `Preferred`: it takes one
    domain where one has room, else several."""
    schedule_timeout_seconds: int = Field(default=600, ge=10, le=604_800)
    """Seconds that part of a gang may hold resources while another pod of it has none; then all its pods are deleted
    and tried again later."""


class ClaimTemplate(ApiModel):
    """A PersistentVolumeClaim that the operator makes for the job."""

    storage_class_name: ShortText | None = None
    """Storage class; the cluster's default where unset."""
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]] = Field(
        default=["ReadWriteMany"], min_length=1, max_length=3
    )
    """Access modes; a gang over several nodes needs ReadWriteMany."""
    size: Size = "50Gi"
    """Requested size in bytes, as a Kubernetes quantity. A checkpoint takes 12 to 16 bytes a parameter, and
    `checkpoint.keep` + 1 of them must fit."""


class CheckpointSpec(ApiModel):
    """Checkpoints: an existing claim, or one made from a template, or, with neither, none at all."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "!(has(self.claimName) && has(self.claimTemplate))",
                "set at most one of claimName and claimTemplate: remove one of them",
            )
        )
    )
    claim_name: ShortText | None = None
    """Name of an existing PersistentVolumeClaim in the job's namespace. Excludes `claimTemplate`."""
    claim_template: ClaimTemplate | None = None
    """Claim `<job>-checkpoints`, made by the operator. Excludes `claimName`."""
    mount_path: Path = Field(default=DEFAULT_CHECKPOINT_MOUNT, json_schema_extra=_MOUNT_RULES)
    """Absolute path at which the claim is mounted in the pods."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Complete checkpoints kept; older ones are deleted after a newer one is readable."""
    resume: Literal["Auto", "Never"] = "Auto"
    """`Auto` goes on from the newest complete checkpoint of this job's name; `Never` starts at step 0, though a restart
    of the gang still resumes."""
    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """What happens to a claim made from the template when the job is deleted."""


class RunPolicySpec(ApiModel):
    """Life of the job; may change while it runs, but for `managedBy`."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "has(self.managedBy) == has(oldSelf.managedBy) && "
                "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
                "managedBy cannot change after creation: delete the job and apply it again",
                fieldPath=".managedBy",
            )
        )
    )
    managed_by: str | None = Field(
        default=None,
        min_length=3,
        max_length=63,
        pattern=_MANAGER,
        json_schema_extra=cel_rules(_MANAGER_RULE, _MULTIKUEUE_RULE),
    )
    """Controller that runs the job, by a domain and a name: with any but `grpo.dev/operator`, such as
    `example.com/dispatcher`, this operator leaves the job and its status alone. This operator's where unset."""
    suspend: bool = False
    """Delete the pods, keep the claim; false again resumes from the newest checkpoint."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """Failures after which the job fails. Preemption, eviction, node loss and deleted pods do not count."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Seconds from the first pods (after a suspension: from resuming) until the job fails; no limit where unset."""
    stall_timeout_seconds: int | None = Field(default=None, ge=60, le=604_800)
    """Seconds of training without a finished step after which the gang restarts, which counts as a failure; longer than
    the longest step. No limit where unset."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """Seconds after its end until the job is deleted, with all that it owns; kept for ever where unset."""
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Pods deleted when the job ends: those still running, all, or none but those that have no node yet."""


class EnvVar(ApiModel):
    """An environment variable, as in a pod."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            cel(
                "!(has(self.value) && has(self.valueFrom))",
                "set at most one of value and valueFrom: remove one of them",
            )
        )
    )
    name: ShortText
    """Name."""
    value: str | None = Field(default=None, max_length=32768)
    """Literal value, as text: put numbers in quotes. Excludes `valueFrom`."""
    value_from: FreeObject | None = None
    """Source of the value, such as `secretKeyRef`."""


class LocalObjectReference(ApiModel):
    """Name of an object in the job's namespace."""

    name: ShortText
    """Name of the object."""


class ResourcesSpec(ApiModel):
    """Requests and limits of each pod. GPUs come from `trainer.nGpusPerNode` and need not be repeated here."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=10)
    """Least amounts, by resource name, such as `cpu: 8` or `memory: 64Gi`; at most 10."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=10)
    """Greatest amounts, by resource name; none less than its request."""


class OverlayItem(ApiModel):
    """An entry of a list that merges by name; its other fields are not looked at."""

    model_config = ConfigDict(extra="allow")
    name: str


class OverlayContainer(OverlayItem):
    """A container of an overlay."""

    env: list[OverlayItem] = Field(default_factory=list)


class OverlayPodSpec(ApiModel):
    """`spec` of an overlay."""

    model_config = ConfigDict(extra="allow")
    containers: list[OverlayContainer] = Field(default_factory=list)
    init_containers: list[OverlayContainer] = Field(default_factory=list)
    volumes: list[OverlayItem] = Field(default_factory=list)


class OverlayMetadata(ApiModel):
    """`metadata` of an overlay."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodOverlay(ApiModel):
    """The shape of `podOverlay` that the merge rests on. Not in the CRD: the API server keeps what it does not know."""

    metadata: OverlayMetadata = Field(default_factory=OverlayMetadata)
    spec: OverlayPodSpec = Field(default_factory=OverlayPodSpec)


class TemplateSpec(ApiModel):
    """The gang's pods. What the operator must control (rank, rendezvous, mounts it makes) wins over this section."""

    image: str | None = Field(default=None, min_length=1, max_length=1024)
    """Trainer image; the operator's default where unset."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy; Kubernetes' default where unset."""
    image_pull_secrets: list[LocalObjectReference] = Field(default_factory=list, max_length=16)
    """Secrets for private registries."""
    service_account_name: Name | None = None
    """Service account of the pods; no API token is mounted, unless `podOverlay` projects one."""
    priority_class_name: Name | None = None
    """Priority class of the pods."""
    gpu_resource_name: ShortText = GPU_RESOURCE
    """Extended resource by which a GPU is requested."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Requests and limits of each pod."""
    shm_size: Size = "8Gi"
    """Size limit in bytes of the memory-backed /dev/shm, as a Kubernetes quantity; it counts as the pod's memory."""
    node_selector: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Labels that a node must have."""
    tolerations: list[FreeObject] = Field(default_factory=list, max_length=64)
    """Tolerations, as in a pod."""
    env: list[EnvVar] = Field(default_factory=list, max_length=256)
    """Environment of the trainer container, with distinct names."""
    pod_overlay: FreeObject = Field(default_factory=dict)
    """Any other fields of a pod template (`metadata`, `spec`), merged over what the operator makes; containers and
    volumes merge by name, and the trainer's container is called `trainer`."""


class MetricsSpec(ApiModel):
    """The trainer's metrics endpoint."""

    port: int = Field(default=TRAINER_METRICS_PORT, ge=1024, le=65535, json_schema_extra=cel_rules(_PORT_RULE))
    """Port of /metrics, /progress and /healthz in every pod."""
