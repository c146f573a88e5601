"""Specs that must be refused: where, and what their messages must say. Data for the tests of both layers.

Each case changes examples/arithmetic.yaml (8 prompts, n 8, 2 pods of 1 GPU, a claim template).
"""

from dataclasses import dataclass, field
from typing import Any

ADMISSION, VALID = "admission", "valid"
"""The layer that must refuse first: schema or CEL in the API server, or `parse_job`, the operator's `Valid`."""
REMOVE = object()


@dataclass(frozen=True)
class BadSpec:
    """One case. `words` hold the value where it has one, and the repair."""

    name: str
    change: dict[str, Any]
    """Values by path below `spec`, or below the object where the path starts with a slash."""
    path: str
    """Field that the message of `parse_job` names."""
    words: tuple[str, ...]
    layer: str = ADMISSION
    admission: tuple[str, ...] = ()
    """What the API server's message must say besides the field."""
    admission_path: str = ""
    """Field that the API server names, where it is not `path`."""


@dataclass
class _Table:
    cases: list[BadSpec] = field(default_factory=list)

    def add(self, name: str, change: dict[str, Any], path: str, *words: str, **more: Any) -> None:
        self.cases.append(BadSpec(name, change, path, words, **more))

    def later(self, name: str, change: dict[str, Any], path: str, *words: str) -> None:
        self.cases.append(BadSpec(name, change, path, words, layer=VALID))


_table = _Table()
_add, _later = _table.add, _table.later

# fmt: off
# Not in this API yet
_add("sglang", {"rollout.engine": "sglang"}, "spec.rollout.engine", '"sglang"', "vllm, hf",
     "sglang is not in this API yet", admission=('"sglang"', '"vllm", "hf"'))
_add("overlong-buffer", {"reward.overlongBuffer": {"enable": True, "len": 4096}, "data.maxResponseLength": 512},
     "spec.reward.overlongBuffer.len", "4096", "data.maxResponseLength (512)", "lower it")
_add("vtrace", {"algorithm.advEstimator": "vtrace"}, "spec.algorithm.advEstimator", '"vtrace"', "grpo, dr_grpo, rloo",
     admission=('"vtrace"', '"grpo", "dr_grpo", "rloo"'))
_add("critic", {"critic": {"ppoEpochs": 1}}, "spec.critic", "not in this API yet", "remove this section",
     admission=("a critic is not in this API yet", "remove"))
_add("trainer-ppo", {"algorithm.trainer": "ppo"}, "spec.algorithm.trainer", '"ppo"',
     "ppo and dpo are not in this API yet", "remove", admission=("not in this API yet", "remove"))
_add("trainer-dpo", {"algorithm.trainer": "dpo"}, "spec.algorithm.trainer", '"dpo"', "not in this API yet",
     admission=("not in this API yet",))
_add("trainer-name-dpo", {"trainer.name": "dpo"}, "spec.trainer.name", '"dpo"', "dpo is not in this API yet",
     "remove", admission=("unknown field",))

# Unknown fields
_add("slip", {"actor.ppoMinibatchSize": 8}, "spec.actor.ppoMinibatchSize", "8", "did you mean ppoMiniBatchSize?",
     admission=("unknown field",))
_add("snake-case", {"actor.ppo_mini_batch_size": 8}, "spec.actor.ppo_mini_batch_size",
     "did you mean ppoMiniBatchSize?", admission=("unknown field",))
_add("wrong-section", {"trainer.trainBatchSize": 8}, "spec.trainer.trainBatchSize",
     "trainBatchSize belongs in spec.data", admission=("unknown field",))
_add("verl-engine-name", {"rollout.name": "vllm"}, "spec.rollout.name", '"vllm"', "here it is called engine",
     admission=("unknown field",))
_add("section-slip", {"checkpoints": {"keep": 3}}, "spec.checkpoints", "did you mean checkpoint?",
     admission=("unknown field",))
_add("lr-in-actor", {"actor.lr": 1e-05}, "spec.actor.lr", "lr belongs in spec.actor.optim",
     admission=("unknown field",))
_add("unknown-in-list", {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric"}, "wieght": 2}]},
     "spec.reward.functions[0].wieght", "did you mean weight?", admission=("unknown field",))
_add("nothing-like-it", {"metrics.zebra": 1}, "spec.metrics.zebra", "unknown field", "port",
     admission=("unknown field",))
_add("top-level", {"/sepc": {}}, "sepc", "did you mean spec?", admission=("unknown field",))
_add("section-at-top", {"/model": {"path": "m"}}, "model", "belongs below spec", admission=("unknown field",))
_add("overlay-in-template", {"template.spec": {"hostNetwork": True}}, "spec.template.spec", "write podOverlay.spec",
     admission=("unknown field",))

# Types
_add("int-as-text", {"data.trainBatchSize": "8"}, "spec.data.trainBatchSize", '"8"', "write 8 without quotes",
     admission=("integer", '"string"'))
_add("float-as-text", {"actor.optim.lr": "1e-6"}, "spec.actor.optim.lr", '"1e-6"', "without quotes",
     admission=("number", '"string"'))
_add("fraction", {"trainer.nnodes": 1.5}, "spec.trainer.nnodes", "1.5", "whole number", "try 1 or 2",
     admission=("integer", '"number"'))
_add("bool-for-int", {"rollout.n": True}, "spec.rollout.n", "true", "whole number", admission=("integer",))
_add("text-for-bool", {"data.shuffle": "yes"}, "spec.data.shuffle", '"yes"', "write true", admission=("boolean",))
_add("int-for-bool", {"data.shuffle": 1}, "spec.data.shuffle", "1", "write true", admission=("boolean",))
_add("number-for-text", {"model.revision": 123}, "spec.model.revision", "123", 'put it in quotes, as in "123"',
     admission=("string",))
_add("text-for-section", {"model": "Qwen/Qwen3-8B"}, "spec.model", '"Qwen/Qwen3-8B"', "object with the fields path",
     admission=("object",))
_add("text-for-list", {"data.train": {"files": "/data/a.jsonl"}}, "spec.data.train.files", '"/data/a.jsonl"',
     "write [/data/a.jsonl]", admission=("array",))
_add("object-for-list", {"reward.functions": {"name": "a"}}, "spec.reward.functions", "must be a list, not an object",
     admission=("unknown field",))
_add("env-as-map", {"template.env": {"A": "1"}}, "spec.template.env", "must be a list", admission=("unknown field",))
_add("env-number", {"template.env": [{"name": "A", "value": 1}]}, "spec.template.env[0].value", "1",
     'put it in quotes, as in "1"', admission=("string",))

# Missing
_add("no-model-path", {"model": {}}, "spec.model.path", "is missing", "hub id", admission=("Required value",))
_add("no-batch-size", {"data.trainBatchSize": REMOVE}, "spec.data.trainBatchSize", "is missing", "Prompts a step",
     admission=("Required value",))
_add("no-reward", {"reward": REMOVE}, "spec.reward", "is missing", "score responses", admission=("Required value",))
_add("null-actor", {"actor": None}, "spec.actor", "is missing", "needs ppoMiniBatchSize",
     admission=("Required value",))

# Bounds and choices
_add("n-of-one", {"rollout.n": 1}, "spec.rollout.n", "1", "at least 2 and at most 4096", admission=("1", "2"))
_add("lr-zero", {"actor.optim.lr": 0}, "spec.actor.optim.lr", "0", "more than 0 and at most 1", admission=("0",))
_add("lr-negative", {"actor.optim.lr": -1e-06}, "spec.actor.optim.lr", "-1e-06", "more than 0", admission=("-1e-06",))
_add("beta-of-one", {"actor.optim.betas": [0.9, 1]}, "spec.actor.optim.betas[1]", "1", "less than 1",
     admission=("1",))
_add("one-beta", {"actor.optim.betas": [0.9]}, "spec.actor.optim.betas", "[0.9]", "at least 2",
     admission=("2 items",))
_add("memory-share", {"rollout.gpuMemoryUtilization": 50}, "spec.rollout.gpuMemoryUtilization", "50", "at most 1",
     admission=("50", "1"))
_add("too-many-gpus", {"trainer.nGpusPerNode": 32}, "spec.trainer.nGpusPerNode", "32", "at most 16",
     admission=("32", "16"))
_add("save-freq", {"trainer.saveFreq": -2}, "spec.trainer.saveFreq", "-2", "at least -1", admission=("-2", "-1"))
_add("low-port", {"metrics.port": 80}, "spec.metrics.port", "80", "at least 1024", admission=("80", "1024"))
_add("dtype", {"model.dtype": "bf16"}, "spec.model.dtype", '"bf16"', "float32, bfloat16", "did you mean bfloat16?",
     admission=('"bf16"', '"float32", "bfloat16"'))
_add("case", {"checkpoint.resume": "auto"}, "spec.checkpoint.resume", '"auto"', "did you mean Auto?",
     admission=('"auto"', '"Auto", "Never"'))
_add("loss-mode", {"actor.lossAggMode": "token_mean"}, "spec.actor.lossAggMode", '"token_mean"',
     "did you mean token-mean?", admission=('"token_mean"', '"token-mean"'))
_add("managed-by-word", {"runPolicy.managedBy": "multikueue"}, "spec.runPolicy.managedBy", '"multikueue"',
     "a domain and a name", "example.com/dispatcher", admission=("a domain and a name", "grpo.dev/operator"))
_add("multikueue", {"runPolicy.managedBy": "kueue.x-k8s.io/multikueue"}, "spec.runPolicy.managedBy",
     "MultiKueue does not know GRPOJobs", "gangScheduling.queue", admission=("MultiKueue does not know GRPOJobs",))
_add("queue-without-queues", {"gangScheduling.backend": "native", "gangScheduling.queue": "team-a"},
     "spec.gangScheduling.queue", '"team-a"', "only kueue, volcano and kai", admission=("only kueue, volcano and kai",))
_add("kueue-without-queue", {"gangScheduling.backend": "kueue"}, "spec.gangScheduling.queue", "LocalQueue",
     admission=("LocalQueue",))
_add("queue-name", {"gangScheduling.queue": "Team A"}, "spec.gangScheduling.queue", '"Team A"', admission=("team-a",))
_add("managed-by-case", {"runPolicy.managedBy": "Kueue.x-k8s.io/multikueue"}, "spec.runPolicy.managedBy",
     "a domain and a name", admission=("a domain and a name",))
_add("managed-by-long", {"runPolicy.managedBy": "x.io/" + "a" * 60}, "spec.runPolicy.managedBy", "at most 63",
     admission=("63",))
_add("clean-none", {"runPolicy.cleanPodPolicy": "Never"}, "spec.runPolicy.cleanPodPolicy", '"Never"',
     "Running, All, None", admission=('"Never"', '"None"'))
_add("backend", {"gangScheduling.backend": "yunikorn"}, "spec.gangScheduling.backend", '"yunikorn"', "auto, native",
     admission=('"yunikorn"', '"auto", "native"'))
_add("topology-key", {"gangScheduling.topologyKey": "Zone A"}, "spec.gangScheduling.topologyKey", '"Zone A"',
     admission=("topology.kubernetes.io/zone",))
_add("topology-mode", {"gangScheduling.topologyMode": "required"}, "spec.gangScheduling.topologyMode", '"required"',
     "did you mean Required?", admission=('"required"', '"Required", "Preferred"'))
_add("empty-path", {"model.path": ""}, "spec.model.path", '""', "must not be empty", admission=("1 chars",))
_add("no-functions", {"reward.functions": []}, "spec.reward.functions", "[]", "must not be empty",
     admission=("1 items",))
_add("reward-name", {"reward.functions": [{"name": "Is_Correct", "builtin": {"rule": "numeric"}}]},
     "spec.reward.functions[0].name", '"Is_Correct"', "try is-correct",
     admission=('"Is_Correct"', "lower-case letters"))
_add("api-version", {"/apiVersion": "grpo.dev/v1"}, "apiVersion", '"grpo.dev/v1"', "must be grpo.dev/v1alpha1",
     admission=("no matches",), admission_path="grpo.dev/v1")

# The name
_add("name-digit", {"/metadata": {"name": "2nd-run"}}, "metadata.name", '"2nd-run"', "start with a letter",
     "try nd-run", admission=("start with a letter",))
_add("name-long", {"/metadata": {"name": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}, "metadata.name",
     "at most 52 characters", admission=("at most 52 characters",))
_add("name-upper", {"/metadata": {"name": "My_Run"}}, "metadata.name", '"My_Run"', "try my-run",
     admission=('"My_Run"',))

# Quantities
_add("quantity-gib", {"template.shmSize": "8GiB"}, "spec.template.shmSize", '"8GiB"', "write 8Gi",
     admission=("no Kubernetes quantity", "such as 8Gi"))
_add("quantity-gb", {"checkpoint.claimTemplate": {"size": "100GB"}}, "spec.checkpoint.claimTemplate.size", '"100GB"',
     "write 100G", admission=("no Kubernetes quantity",))
_add("quantity-space", {"template.resources": {"limits": {"memory": "64 Gi"}}},
     "spec.template.resources.limits.memory", '"64 Gi"', "write 64Gi",
     admission=("no Kubernetes quantity",), admission_path="limits[memory]")
_add("quantity-case", {"template.resources": {"requests": {"memory": "64gi"}}},
     "spec.template.resources.requests.memory", '"64gi"', "write 64Gi",
     admission=("no Kubernetes quantity",), admission_path="requests[memory]")
_add("quantity-word", {"template.shmSize": "half"}, "spec.template.shmSize", '"half"', "such as 8Gi",
     admission=("such as 8Gi",))
_add("quantity-negative", {"template.shmSize": "-1Gi"}, "spec.template.shmSize", '"-1Gi"', "must not be negative",
     "try 1Gi", admission=("at least one byte",))
_add("quantity-milli", {"template.shmSize": "512m"}, "spec.template.shmSize", '"512m"', "thousandth", "try 512M",
     admission=("at least one byte",))
_add("quantity-fraction", {"template.resources": {"requests": {"cpu": 0.5}}}, "spec.template.resources.requests.cpu",
     "0.5", 'write "0.5"', admission=("integer,string", '"number"'))

# One of several
_add("two-sources", {"data.train": {"files": ["/a.jsonl"], "hub": {"path": "a/b"}}}, "spec.data.train",
     '["files", "hub"]', "exactly one of files, hub, reasoningGym and mix", "keep one",
     admission=("exactly one of files, hub, reasoningGym and mix",))
_add("no-source", {"data.train": {}}, "spec.data.train", "none is set", "such as files",
     admission=("exactly one of files, hub, reasoningGym and mix",))
_add("steps-and-epochs", {"trainer.totalEpochs": 1}, "spec.trainer", "totalSteps and totalEpochs are set", "keep one",
     admission=("exactly one of totalSteps and totalEpochs",))
_add("no-length", {"trainer.totalSteps": REMOVE}, "spec.trainer", "none is set", "such as totalSteps: 100",
     admission=("exactly one of totalSteps and totalEpochs",))
_add("two-claims", {"checkpoint.claimName": "disk"}, "spec.checkpoint", '["claimName", "claimTemplate"]',
     "remove one of them", admission=("at most one of claimName and claimTemplate",))
_add("micro-and-budget", {"actor.ppoMicroBatchSizePerGpu": 8, "actor.ppoMaxTokenLenPerGpu": 4096},
     "spec.actor.ppoMicroBatchSizePerGpu", "8", "4096", "remove one of them", admission=("remove one of them",))
_add("no-rule", {"reward.functions": [{"name": "a"}]}, "spec.reward.functions[0]", "none is set",
     "builtin: {rule: numeric}", admission=("exactly one of builtin, python, module, http and classifier",))
_add("rule-and-python",
     {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric"}, "python": {"source": "compute_score = len"}}]},
     "spec.reward.functions[0]", "builtin and python are set", "keep one",
     admission=("exactly one of builtin, python, module, http and classifier",))
_add("same-name",
     {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric"}}] * 2},
     "spec.reward.functions[0].name", '"a"', "rename one", admission=("Duplicate value",),
     admission_path="spec.reward.functions[1]")
_add("value-and-from", {"template.env": [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {}}}]},
     "spec.template.env[0]", '"value"', "A: set at most one", "remove one of them", admission=("remove one of them",))

# Batch sizes
_add("mini-divides-train", {"actor.ppoMiniBatchSize": 3}, "spec.actor.ppoMiniBatchSize", "3", "try 2 or 4",
     admission=("3 prompts", "8 prompts", "[1, 2, 4, 8]"))
_add("mini-over-gpus", {"data.trainBatchSize": 9, "actor.ppoMiniBatchSize": 9, "rollout.n": 3},
     "spec.actor.ppoMiniBatchSize", "9 x 3 = 27 responses", "2 GPUs", "try ppoMiniBatchSize 8 or 10",
     admission=("9 x 3 = 27 responses", "2 GPUs", "a multiple of the GPUs"))
_add("tp", {"rollout.tensorModelParallelSize": 2}, "spec.rollout.tensorModelParallelSize", "2", "try 1",
     admission=("(2) must divide trainer.nGpusPerNode (1)", "[1]"))
_add("micro", {"actor.ppoMicroBatchSizePerGpu": 5}, "spec.actor.ppoMicroBatchSizePerGpu", "5", "64 / 2 GPUs = 32",
     "try 4 or 8", admission=("(5)", "64 / 2 GPUs = 32", "[1, 2, 4, 8, 16, 32]"))
_add("log-prob-micro", {"rollout.logProbMicroBatchSizePerGpu": 7}, "spec.rollout.logProbMicroBatchSizePerGpu", "7",
     "try 4 or 8", admission=("(7)", "64 / 2 GPUs = 32"))
_add("ref-micro", {"ref.logProbMicroBatchSizePerGpu": 7}, "spec.ref.logProbMicroBatchSizePerGpu", "7", "try 4 or 8",
     admission=("(7)", "64 / 2 GPUs = 32"))
_add("budget", {"actor.ppoMaxTokenLenPerGpu": 64}, "spec.actor.ppoMaxTokenLenPerGpu", "64", "112 or more",
     admission=("(64)", "= 112"))
_add("val-on-training-rows", {"data.val": {"reasoningGym": {"task": "chain_sum", "size": 4}}},
     "spec.data.val.reasoningGym.seed", "1", "training rows", "set another seed",
     admission=("data.val.reasoningGym.seed (1)", "set another seed"))
_add("val-two-sources", {"data.val": {"files": ["/a.jsonl"], "hub": {"path": "a/b"}}}, "spec.data.val",
     '["files", "hub"]', "exactly one of files, hub, reasoningGym and mix", "keep one",
     admission=("exactly one of files, hub, reasoningGym and mix",))
_add("val-equal-responses", {"rollout.valKwargs": {"n": 4}}, "spec.rollout.valKwargs.n", "4",
     "set rollout.valKwargs.temperature, or n: 1", admission=("need a temperature above 0",))
_add("val-top-p", {"rollout.valKwargs": {"topP": 0}}, "spec.rollout.valKwargs.topP", "0",
     admission=("greater than 0",))
_add("clip-cov-bounds", {"actor.policyLoss.clipCovLb": 5}, "spec.actor.policyLoss.clipCovLb", "5",
     "less than clipCovUb (5)", admission=("must be less than clipCovUb",))
_add("mix-two-sources", {"data.train": {"mix": [{"files": ["/a.jsonl"], "hub": {"path": "a/b"}}]}},
     "spec.data.train.mix[0]", '["files", "hub"]', "exactly one of files, hub and reasoningGym", "keep one",
     admission=("exactly one of files, hub and reasoningGym",))
_add("mix-beside-files", {"data.train": {"files": ["/a.jsonl"], "mix": [{"hub": {"path": "a/b"}}]}},
     "spec.data.train", '["files", "mix"]', "exactly one of files, hub, reasoningGym and mix", "keep one",
     admission=("exactly one of files, hub, reasoningGym and mix",))
_add("mix-of-none", {"data.train": {"mix": []}}, "spec.data.train.mix", "[]", "add an entry",
     admission=("at least 1 items",))
_add("mix-weight", {"data.train": {"mix": [{"files": ["/a.jsonl"], "weight": 0}]}}, "spec.data.train.mix[0].weight",
     "0", "more than 0", admission=("greater than 0",))
_add("val-mix-weights", {"data.val": {"mix": [{"files": ["/a.jsonl"], "weight": 2}]}}, "spec.data.val.mix", "[2.0]",
     "validation takes all rows of each dataset", "remove", admission=("validation takes all rows", "remove"))
_later("mix-few-rows", {"data.train": {"mix": [{"reasoningGym": {"task": "chain_sum", "size": 4}},
                                              {"reasoningGym": {"task": "gcd", "size": 3}}]}},
       "spec.data.train.mix", "[4, 3]", "7 rows together", "trainBatchSize is 8", "raise the sizes")
_later("val-mix-on-training-rows", {"data.val": {"mix": [{"files": ["/a.jsonl"]},
                                                        {"reasoningGym": {"task": "chain_sum", "size": 4}}]}},
       "spec.data.val.mix[1].reasoningGym.seed", "1", "training rows", "set another seed")
_later("template-argument", {"data.chatTemplateKwargs": {"tokenize": False}}, "spec.data.chatTemplateKwargs",
       '["tokenize"]', "set by the trainer", "remove them")
_add("few-rows", {"data.train": {"reasoningGym": {"task": "chain_sum", "size": 4}}},
     "spec.data.train.reasoningGym.size", "4", "trainBatchSize is 8", "raise the one or lower the other",
     admission=("(4 rows)", "trainBatchSize is 8"))
_add("hf-tp",
     {"trainer.nnodes": 1, "trainer.nGpusPerNode": 2, "rollout.engine": "hf", "rollout.tensorModelParallelSize": 2},
     "spec.rollout.tensorModelParallelSize", "2", "set it to 1", admission=("to 1, or use vllm",))
_add("flash-float32", {"model.attnImplementation": "flash_attention_2"}, "spec.model.attnImplementation",
     "flash_attention_2", "float32", "set sdpa, or dtype: bfloat16", admission=("bfloat16 only: set sdpa",))

# Pods
_add("mount-relative", {"checkpoint.mountPath": "checkpoints"}, "spec.checkpoint.mountPath", '"checkpoints"',
     "try /checkpoints", admission=("absolute path", "/checkpoints"))
_add("mount-taken", {"checkpoint.mountPath": "/dev/shm"}, "spec.checkpoint.mountPath", '"/dev/shm"',
     "try /checkpoints", admission=("try /checkpoints",))
_add("once-pod", {"checkpoint.claimTemplate": {"accessModes": ["ReadWriteOncePod"]}},
     "spec.checkpoint.claimTemplate.accessModes", '["ReadWriteOncePod"]', "use ReadWriteMany",
     admission=("use ReadWriteMany",))
_add("ray-port", {"metrics.port": 20100}, "spec.metrics.port", "20100", "Ray's workers", "try 9464",
     admission=("try 9464",))
_add("template-without-prompt", {"data.promptTemplate": "Answer the question."}, "spec.data.promptTemplate",
     '"Answer the question."', "{prompt}", admission=("{prompt}",))

# What only parse_job can see
_later("gpus-in-limits", {"template.resources": {"limits": {"nvidia.com/gpu": 4}}},
       "spec.template.resources.limits[nvidia.com/gpu]", "4", "trainer.nGpusPerNode (1)", "remove this entry")
_later("request-over-limit", {"template.resources": {"requests": {"memory": "16Gi"}, "limits": {"memory": "9G"}}},
       "spec.template.resources.requests.memory", '"16Gi"', "limits.memory (9G)", "lower the request")
_later("env-twice", {"template.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
       "spec.template.env[1].name", '"A"', "env[0]", "remove one")
_later("env-name", {"template.env": [{"name": "A=B", "value": "1"}]}, "spec.template.env[0].name", '"A=B"',
       "without =")
_later("overlay-field", {"template.podOverlay": {"nodeName": "n1"}}, "spec.template.podOverlay.nodeName", '"n1"',
       "metadata, spec")
_later("overlay-containers", {"template.podOverlay": {"spec": {"containers": {"name": "trainer"}}}},
       "spec.template.podOverlay.spec.containers", "must be a list, not an object")
_later("overlay-nameless", {"template.podOverlay": {"spec": {"volumes": [{"emptyDir": {}}]}}},
       "spec.template.podOverlay.spec.volumes[0].name", "is missing")
_later("hf-engine-args", {"rollout.engine": "hf", "rollout.engineArgs": {"max_num_seqs": 8}},
       "spec.rollout.engineArgs", "max_num_seqs", "remove them, or use engine vllm")
_later("python-syntax",
       {"reward.functions": [{"name": "mine", "python": {"source": "def compute_score(a:\n  pass"}}]},
       "spec.reward.functions[0].python.source", "mine.py, line 1", "SyntaxError")
_later("python-name", {"reward.functions": [{"name": "mine", "python": {"source": "def score(a): pass"}}]},
       "spec.reward.functions[0].python.function", '"compute_score"', "try score")
_later("regex-without-pattern", {"reward.functions": [{"name": "a", "builtin": {"rule": "regex"}}]},
       "spec.reward.functions[0].builtin.params.pattern", "is missing", "the rule regex looks for")
_later("regex-broken",
       {"reward.functions": [{"name": "a", "builtin": {"rule": "regex", "params": {"pattern": "(a"}}}]},
       "spec.reward.functions[0].builtin.params.pattern", '"(a"', "unterminated", "needs a")
_later("rule-param",
       {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric", "params": {"tolerence": 1}}}]},
       "spec.reward.functions[0].builtin.params.tolerence", "1", "did you mean tolerance?")
_add("clip-empty", {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric"}, "clip": {}}]},
     "spec.reward.functions[0].clip", "set min, max or both", admission=("set min, max or both",))
_add("clip-order",
     {"reward.functions": [{"name": "a", "builtin": {"rule": "numeric"}, "clip": {"min": 1, "max": 1}}]},
     "spec.reward.functions[0].clip.min", "1", "must be less than max (1)", "lower it",
     admission=("min must be less than max",), admission_path="spec.reward.functions[0].clip")
def _function(kind: str, **fields: Any) -> dict[str, Any]:
    return {"reward.functions": [{"name": "a", kind: fields}]}


_add("module-path", _function("module", path="rewards.math.score"), "spec.reward.functions[0].module.path",
     '"rewards.math.score"', "package.module:function", admission=("package.module:function",))
_add("module-directory", _function("module", path="rewards:score", directory="data"),
     "spec.reward.functions[0].module.directory", '"data"', "try /data", admission=("data",))
_add("http-url", _function("http", url="rewards:8000"), "spec.reward.functions[0].http.url", '"rewards:8000"',
     "must be a URL", admission=("must be a URL",))
_add("http-password", _function("http", url="http://a:b@rewards"), "spec.reward.functions[0].http.url",
     "tokenSecret", admission=("tokenSecret",))
_add("http-retries", _function("http", url="http://r", retries=21), "spec.reward.functions[0].http.retries", "21",
     "at most 20", admission=("21", "20"))
_add("http-batch", _function("http", url="http://r", batchSize=0), "spec.reward.functions[0].http.batchSize", "0",
     "at least 1", admission=("1",))
_add("http-secret", _function("http", url="http://r", tokenSecret={"name": "Token"}),
     "spec.reward.functions[0].http.tokenSecret.name", '"Token"', "try token", admission=('"Token"',))
_later("http-timeout", _function("http", url="http://r", timeoutSeconds=30),
       "spec.reward.functions[0].http.timeoutSeconds", "30", "reward.timeoutSeconds (30)", "lower it")
_add("classifier-output", _function("classifier", path="m", output="softmax"),
     "spec.reward.functions[0].classifier.output", '"softmax"', "logit, sigmoid, probability",
     admission=('"softmax"', '"logit", "sigmoid", "probability"'))
_add("classifier-input", _function("classifier", path="m", input="both"),
     "spec.reward.functions[0].classifier.input", '"both"', "response, pair, chat", admission=('"both"',))
_add("classifier-label", _function("classifier", path="m", label=1),
     "spec.reward.functions[0].classifier.label", "1", 'put it in quotes, as in "1"', admission=("string",))
_add("worker-memory", {"reward.workerMemory": "lots"}, "spec.reward.workerMemory", '"lots"', "no Kubernetes quantity",
     admission=("no Kubernetes quantity",))
for _name, _rule, _params, _field, *_words in (
    ("tolerance-negative", "numeric", {"tolerance": -1}, "tolerance", "-1", "at least 0"),
    ("gsm8k-method", "gsm8k", {"method": "exact"}, "method", '"exact"', "strict, flexible"),
    ("format-score", "gsm8k", {"format_score": 2}, "format_score", "2", "at most 1"),
    ("boxed", "math", {"boxed": "yes"}, "boxed", '"yes"', "write true"),
    ("answer-tag", "math", {"answer_tag": "<answer>"}, "answer_tag", '"<answer>"', "letters, digits and _"),
    ("tag-twice", "tags", {"tags": ["a", "a"]}, "tags", "names an element twice", "remove one"),
    ("length-bound", "length", {}, "max_tokens", "is missing", "score 1"),
    ("length-bounds", "length", {"min_tokens": 9, "max_tokens": 8}, "max_tokens", "8", "min_tokens (9)", "raise it"),
    ("schema", "json_schema", {"json_schema": {"type": "text"}}, "json_schema", "is no JSON schema", "['type']"),
    ("gym-task", "reasoning_gym", {"task": ""}, "task", '""', "must not be empty"),
    ("code-memory", "code", {"memory_mib": 1}, "memory_mib", "1", "at least 64"),
    ("code-time", "code", {"time_seconds": 30}, "time_seconds", "30", "reward.timeoutSeconds (30)", "lower it"),
    ("code-landlock", "code", {"landlock": "no"}, "landlock", '"no"', "required, if_available"),
):
    _later(f"rule-{_name}", {"reward.functions": [{"name": "a", "builtin": {"rule": _rule, "params": _params}}]},
           f"spec.reward.functions[0].builtin.params.{_field}", *_words)
# fmt: on

BAD_SPECS = _table.cases


def changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The base object (changed in place) with a case's values in it."""
    for path, value in change.items():
        *parents, last = (path[1:] if path.startswith("/") else f"spec.{path}").split(".")
        holder = base
        for part in parents:
            holder = holder.setdefault(part, {})
        if value is REMOVE:
            del holder[last]
        else:
            holder[last] = value
    return base
