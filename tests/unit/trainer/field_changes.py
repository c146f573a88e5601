"""For each field of the sections that decide what is learned: a change of it, and the probe that must see it."""

from typing import Any

HERE = "tests.unit.trainer.field_probes"
Change = dict[str, Any]

A, B = ["PLACE/a.jsonl"], ["PLACE/b.jsonl"]
TRAIN, ONE = "data.train", "reward.functions.0"
MIX = {TRAIN: {"mix": [{"files": A}, {"files": B}]}, "data.applyChatTemplate": False}
GYM = {TRAIN: {"reasoningGym": {"task": "chain_sum", "size": 20}}, "data.maxPromptLength": 4000}
HUB = {TRAIN: {"hub": {"path": "org/a"}}}
SHORT = {"data.maxPromptLength": 10}
VAL = {"rollout.valKwargs": {"n": 2, "temperature": 0.5}, "data.applyChatTemplate": False}
MODULE = {ONE: {"name": "one", "module": {"path": "a.b:c"}}}
HTTP = {ONE: {"name": "one", "http": {"url": "http://a/b"}}}
CLASSIFIER = {ONE: {"name": "one", "classifier": {"path": "org/a"}}}
CUT = {"data.maxPromptLength": 20, "data.overlongPrompts": "TruncateLeft"}
BUFFER = {"reward.overlongBuffer": {"enable": True, "len": 4}}
KL_LOSS = {"actor.useKlLoss": True, "actor.klLossCoef": 0.5}
ADAPTIVE = {"algorithm.klCtrl": {"type": "adaptive", "klCoef": 0.1, "horizon": 100}}
CORRECTION = "algorithm.rolloutCorrection."
MASKED = {CORRECTION + "rolloutIsThresholdLower": 0.6}
REJECTED = {CORRECTION + "rolloutRs": "token_k1"}
FILTER = {"algorithm.filterGroups.enable": True}


def loss(mode: str) -> Change:
    return {"actor.policyLoss.lossMode": mode}


CLIP_COV = {"actor.policyLoss": {"lossMode": "clip_cov", "clipCovRatio": 0.2, "clipCovLb": -1}}
ACTS: dict[str, tuple[str, Change, Change]] = {
    # field: probe, what the spec says besides, the change
    "DataSource.files": ("batches", {}, {TRAIN + ".files": B}),
    "HubSource.path": ("hub", HUB, {TRAIN + ".hub.path": "org/b"}),
    "HubSource.name": ("hub", HUB, {TRAIN + ".hub.name": "main"}),
    "HubSource.split": ("hub", HUB, {TRAIN + ".hub.split": "test"}),
    "HubSource.revision": ("hub", HUB, {TRAIN + ".hub.revision": "v1"}),
    "ReasoningGymSource.task": ("batches", GYM, {TRAIN + ".reasoningGym.task": "gcd"}),
    "ReasoningGymSource.size": ("batches", GYM, {TRAIN + ".reasoningGym.size": 21}),
    "ReasoningGymSource.seed": ("batches", GYM, {TRAIN + ".reasoningGym.seed": 2}),
    "ReasoningGymSource.params": ("batches", GYM, {TRAIN + ".reasoningGym.params": {"min_digits": 3}}),
    "MixedSource.files": ("batches", MIX, {TRAIN + ".mix.1.files": A}),
    "MixedSource.weight": ("batches", MIX, {TRAIN + ".mix.1.weight": 3}),
    "MixedSource.prompt_key": ("batches", MIX, {TRAIN + ".mix.1.promptKey": "q"}),
    "MixedSource.ground_truth_key": ("batches", MIX, {TRAIN + ".mix.1.groundTruthKey": "t"}),
    "DataSpec.val_batch_size": ("validated", VAL, {"data.valBatchSize": 2}),
    "DataSpec.val_max_samples": ("validated", VAL, {"data.valMaxSamples": 2}),
    "DataSpec.prompt_key": ("batches", {}, {"data.promptKey": "q"}),
    "DataSpec.ground_truth_key": ("batches", {}, {"data.groundTruthKey": "t"}),
    "DataSpec.data_source_key": ("batches", {}, {"data.dataSourceKey": "from"}),
    "DataSpec.system_prompt": ("batches", {"data.maxPromptLength": 99}, {"data.systemPrompt": "Be brief."}),
    "DataSpec.prompt_template": ("batches", {}, {"data.promptTemplate": "{prompt}?"}),
    "DataSpec.apply_chat_template": ("batches", {}, {"data.applyChatTemplate": False}),
    "DataSpec.chat_template_kwargs": ("batches", {}, {"data.chatTemplateKwargs": {"style": "loud"}}),
    "DataSpec.train_batch_size": ("batches", {}, {"data.trainBatchSize": 3, "actor.ppoMiniBatchSize": 3}),
    "DataSpec.max_prompt_length": ("batches", CUT, {"data.maxPromptLength": 10}),
    "DataSpec.max_response_length": (
        "weights", {"actor.lossAggMode": "seq-mean-token-sum-norm"}, {"data.maxResponseLength": 20},
    ),
    "DataSpec.overlong_prompts": ("batches", CUT, {"data.overlongPrompts": "TruncateRight"}),
    "DataSpec.shuffle": ("batches", {}, {"data.shuffle": False}),
    "DataSpec.seed": ("batches", {}, {"data.seed": 2}),
    # reward
    "RewardFunction.name": ("processes", {}, {ONE + ".name": "other"}),
    "RewardFunction.weight": ("rewards", {}, {ONE + ".weight": 2}),
    "ClipSpec.min": ("rewards", {}, {ONE + ".clip": {"min": -1}}),
    "ClipSpec.max": ("rewards", {}, {ONE + ".clip": {"max": 1}}),
    "BuiltinReward.rule": ("processes", {}, {ONE + ".builtin.rule": "gsm8k"}),
    "BuiltinReward.params": ("processes", {}, {ONE + ".builtin.params": {"ignore_case": True}}),
    "PythonReward.source": ("processes", {}, {"reward.functions.1.python.source": "def compute_score(batch): ..."}),
    "PythonReward.function": ("processes", {}, {"reward.functions.1.python.function": "other"}),
    "PythonReward.params": ("processes", {}, {"reward.functions.1.python.params": {"a": 1}}),
    "ModuleReward.path": ("processes", MODULE, {ONE + ".module.path": "a.b:d"}),
    "ModuleReward.directory": ("processes", MODULE, {ONE + ".module.directory": "/volume"}),
    "ModuleReward.params": ("processes", MODULE, {ONE + ".module.params": {"a": 1}}),
    "HttpReward.url": ("processes", HTTP, {ONE + ".http.url": "http://a/c"}),
    "HttpReward.batch_size": ("processes", HTTP, {ONE + ".http.batchSize": 2}),
    "HttpReward.concurrency": ("processes", HTTP, {ONE + ".http.concurrency": 2}),
    "HttpReward.timeout_seconds": ("processes", HTTP, {ONE + ".http.timeoutSeconds": 2}),
    "HttpReward.retries": ("processes", HTTP, {ONE + ".http.retries": 2}),
    "HttpReward.backoff_seconds": ("processes", HTTP, {ONE + ".http.backoffSeconds": 2}),
    "ClassifierReward.path": ("processes", CLASSIFIER, {ONE + ".classifier.path": "org/b"}),
    "ClassifierReward.revision": ("processes", CLASSIFIER, {ONE + ".classifier.revision": "v1"}),
    "ClassifierReward.label": ("processes", CLASSIFIER, {ONE + ".classifier.label": "good"}),
    "ClassifierReward.output": ("processes", CLASSIFIER, {ONE + ".classifier.output": "sigmoid"}),
    "ClassifierReward.input": ("processes", CLASSIFIER, {ONE + ".classifier.input": "pair"}),
    "ClassifierReward.max_length": ("processes", CLASSIFIER, {ONE + ".classifier.maxLength": 99}),
    "ClassifierReward.batch_size": ("processes", CLASSIFIER, {ONE + ".classifier.batchSize": 2}),
    "ClassifierReward.threads": ("processes", CLASSIFIER, {ONE + ".classifier.threads": 2}),
    "RewardSpec.timeout_seconds": ("processes", {}, {"reward.timeoutSeconds": 2}),
    "RewardSpec.workers": ("processes", {}, {"reward.workers": 3}),
    "RewardSpec.worker_memory": ("processes", {}, {"reward.workerMemory": "3Gi"}),
    "RewardSpec.on_error": ("rewards", {}, {"reward.onError": "Zero"}),
    "RewardSpec.on_none": ("rewards", {}, {"reward.onNone": "Error"}),
    "OverlongBufferSpec.enable": ("penalties", {}, BUFFER),
    "OverlongBufferSpec.len": ("penalties", BUFFER, {"reward.overlongBuffer.len": 2}),
    "OverlongBufferSpec.penalty_factor": ("penalties", BUFFER, {"reward.overlongBuffer.penaltyFactor": 2}),
    # algorithm
    "AlgorithmSpec.adv_estimator": ("advantages", {}, {"algorithm.advEstimator": "rloo"}),
    "AlgorithmSpec.adv_estimator_path": ("advantages", {}, {"algorithm.advEstimatorPath": f"{HERE}:mine_advantages"}),
    "AlgorithmSpec.norm_adv_by_std_in_grpo": ("advantages", {}, {"algorithm.normAdvByStdInGrpo": False}),
    "AlgorithmSpec.gamma": ("advantages", {"algorithm.advEstimator": "reinforce_plus_plus"}, {"algorithm.gamma": 0.5}),
    "AlgorithmSpec.lam": ("advantages", {"algorithm.advEstimator": "gae"}, {"algorithm.lam": 0.5}),
    "AlgorithmSpec.use_kl_in_reward": ("controlled", {}, {"algorithm.useKlInReward": True}),
    "AlgorithmSpec.kl_penalty": ("kl", {}, {"algorithm.klPenalty": "mse"}),
    "AlgorithmSpec.mask_truncated_responses": ("controlled", {}, {"algorithm.maskTruncatedResponses": True}),
    "KlCtrlSpec.type": ("kl", {}, {"algorithm.klCtrl.type": "adaptive"}),
    "KlCtrlSpec.kl_coef": ("kl", {}, {"algorithm.klCtrl.klCoef": 0.5}),
    "KlCtrlSpec.target_kl": ("kl", ADAPTIVE, {"algorithm.klCtrl.targetKl": 10}),
    "KlCtrlSpec.horizon": ("kl", ADAPTIVE, {"algorithm.klCtrl.horizon": 10}),
    "FilterGroupsSpec.enable": ("controlled", {}, FILTER),
    "FilterGroupsSpec.max_num_gen_batches": ("controlled", FILTER, {"algorithm.filterGroups.maxNumGenBatches": 2}),
    "RolloutCorrectionSpec.rollout_is": ("weights", {}, {CORRECTION + "rolloutIs": "sequence"}),
    "RolloutCorrectionSpec.rollout_is_threshold": ("weights", {}, {CORRECTION + "rolloutIsThreshold": 1.1}),
    "RolloutCorrectionSpec.rollout_is_threshold_lower": ("weights", {}, MASKED),
    "RolloutCorrectionSpec.rollout_rs": ("weights", {}, REJECTED),
    "RolloutCorrectionSpec.rollout_rs_threshold": ("weights", REJECTED, {CORRECTION + "rolloutRsThreshold": 1.3}),
    "RolloutCorrectionSpec.rollout_rs_threshold_lower": (
        "weights", REJECTED, {CORRECTION + "rolloutRsThresholdLower": 0.9},
    ),
    # rollout
    "RolloutSpec.engine": ("chosen_engine", {}, {"rollout.engine": "hf"}),
    "RolloutSpec.n": ("controlled", {}, {"rollout.n": 2}),
    "RolloutSpec.tensor_model_parallel_size": ("engine", {}, {"rollout.tensorModelParallelSize": 2}),
    "RolloutSpec.temperature": ("weights", {}, {"rollout.temperature": 0.5}),
    "RolloutSpec.top_p": ("drawn", {}, {"rollout.topP": 0.5}),
    "RolloutSpec.top_k": ("drawn", {}, {"rollout.topK": 2}),
    "RolloutSpec.min_p": ("drawn", {}, {"rollout.minP": 0.3}),
    "RolloutSpec.gpu_memory_utilization": ("engine", {}, {"rollout.gpuMemoryUtilization": 0.7}),
    "RolloutSpec.enforce_eager": ("engine", {}, {"rollout.enforceEager": True}),
    "RolloutSpec.log_prob_micro_batch_size_per_gpu": ("policy_rows", {}, {"rollout.logProbMicroBatchSizePerGpu": 2}),
    "RolloutSpec.log_prob_max_token_len_per_gpu": ("policy_rows", SHORT, {"rollout.logProbMaxTokenLenPerGpu": 19}),
    "RolloutSpec.seed": ("controlled", {}, {"rollout.seed": 2}),
    "RolloutSpec.engine_args": ("engine", {}, {"rollout.engineArgs": {"max_num_seqs": 3}}),
    "ValKwargsSpec.n": ("validated", VAL, {"rollout.valKwargs.n": 3}),
    "ValKwargsSpec.temperature": ("validated", VAL, {"rollout.valKwargs.temperature": 0.6}),
    "ValKwargsSpec.top_p": ("validated", VAL, {"rollout.valKwargs.topP": 0.6}),
    "ValKwargsSpec.top_k": ("validated", VAL, {"rollout.valKwargs.topK": 6}),
    # actor
    "ActorSpec.ppo_mini_batch_size": ("controlled", {}, {"actor.ppoMiniBatchSize": 2}),
    "ActorSpec.ppo_micro_batch_size_per_gpu": ("update_rows", {}, {"actor.ppoMicroBatchSizePerGpu": 2}),
    "ActorSpec.ppo_max_token_len_per_gpu": ("update_rows", SHORT, {"actor.ppoMaxTokenLenPerGpu": 19}),
    "ActorSpec.ppo_epochs": ("controlled", {}, {"actor.ppoEpochs": 2}),
    "PolicyLossSpec.loss_mode": ("weights", {}, loss("gspo")),
    "PolicyLossSpec.loss_path": ("weights", {}, {"actor.policyLoss.lossPath": f"{HERE}:mine_loss"}),
    "PolicyLossSpec.clip_cov_ratio": ("weights", CLIP_COV, {"actor.policyLoss.clipCovRatio": 0.5}),
    "PolicyLossSpec.clip_cov_lb": ("weights", CLIP_COV, {"actor.policyLoss.clipCovLb": 0.5}),
    "PolicyLossSpec.clip_cov_ub": ("weights", CLIP_COV, {"actor.policyLoss.clipCovUb": 0.5}),
    "PolicyLossSpec.kl_cov_ratio": ("weights", loss("kl_cov"), {"actor.policyLoss.klCovRatio": 0.5}),
    "PolicyLossSpec.ppo_kl_coef": ("weights", loss("kl_cov"), {"actor.policyLoss.ppoKlCoef": 2}),
    "ActorSpec.clip_ratio": ("weights", {}, {"actor.clipRatio": 0.9}),
    "ActorSpec.clip_ratio_low": ("weights", {}, {"actor.clipRatioLow": 0.9}),
    "ActorSpec.clip_ratio_high": ("weights", {}, {"actor.clipRatioHigh": 0.9}),
    "ActorSpec.clip_ratio_c": ("weights", {}, {"actor.clipRatioC": 1.5}),
    "ActorSpec.tau_pos": ("weights", loss("sapo"), {"actor.tauPos": 2}),
    "ActorSpec.tau_neg": ("weights", loss("sapo"), {"actor.tauNeg": 2}),
    "ActorSpec.loss_agg_mode": ("weights", {}, {"actor.lossAggMode": "seq-mean-token-mean"}),
    "ActorSpec.use_kl_loss": ("weights", {"actor.klLossCoef": 0.5}, {"actor.useKlLoss": True}),
    "ActorSpec.kl_loss_coef": ("weights", KL_LOSS, {"actor.klLossCoef": 0.9}),
    "ActorSpec.kl_loss_type": ("weights", KL_LOSS, {"actor.klLossType": "mse"}),
    "ActorSpec.entropy_coeff": ("weights", {}, {"actor.entropyCoeff": 0.1}),
    "ActorSpec.grad_clip": ("weights", {}, {"actor.gradClip": 0.001}),
    "OptimSpec.lr": ("weights", {}, {"actor.optim.lr": 2e-2}),
    "OptimSpec.weight_decay": ("weights", {}, {"actor.optim.weightDecay": 0.5}),
    "OptimSpec.betas": ("weights", {}, {"actor.optim.betas": [0.5, 0.9]}),
    "OptimSpec.lr_warmup_steps": ("weights", {}, {"actor.optim.lrWarmupSteps": 2}),
    "OptimSpec.lr_scheduler_type": ("weights", {}, {"actor.optim.lrSchedulerType": "linear"}),
    "FsdpSpec.reshard_after_forward": ("sharding", {}, {"actor.fsdp.reshardAfterForward": False}),
    # ref
    "RefSpec.log_prob_micro_batch_size_per_gpu": ("reference_rows", KL_LOSS, {"ref.logProbMicroBatchSizePerGpu": 2}),
    "RefSpec.log_prob_max_token_len_per_gpu": ("reference_rows", KL_LOSS | SHORT, {"ref.logProbMaxTokenLenPerGpu": 19}),
}  # fmt: skip

ELSEWHERE = {
    "TokenSecret.name": (
        "tests/unit/operator/test_children.py",
        "test_a_reward_servers_token_is_a_file_of_the_head_pod_alone",
    ),
    "TokenSecret.key": (
        "tests/unit/operator/test_children.py",
        "test_a_reward_servers_token_is_a_file_of_the_head_pod_alone",
    ),
}
"""Tests that change the field in pods."""
