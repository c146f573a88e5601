"""Sampling by a vLLM engine in this process, fed with weights in place."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from grpo_api.job import GRPOJobSpec
from grpo_trainer.errors import SpecError
from grpo_trainer.rollout.base import Request, Response, Sampling
from grpo_trainer.rollout.vllm_arguments import vllm_arguments


class VllmEngine:
    """One engine; with `rollout.tensorModelParallelSize` > 1 one part of it, and every part makes the same calls."""

    def __init__(self, spec: GRPOJobSpec, device: torch.device):
        """Raises SpecError where vLLM refuses `rollout.engineArgs`."""
        self._cuda = device.type == "cuda"
        self._asleep = False
        self.asleep_bytes = 0
        self._sampling = Sampling.of_training(spec.rollout)
        self._max_tokens = spec.data.max_response_length
        try:
            self._llm = LLM(**vllm_arguments(spec, cuda=self._cuda))
        except (TypeError, ValueError) as error:
            raise SpecError("EngineRefused", f"vLLM refuses the model or rollout.engineArgs: {error}") from error

    def generate(self, requests: list[Request]) -> list[Response]:
        if not requests:
            return []  # of few prompts an engine may have none
        parameters = [
            SamplingParams(
                **asdict(request.sampling or self._sampling),
                seed=request.seed,
                max_tokens=self._max_tokens,
                logprobs=None if request.sampling else 0,
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": request.prompt_ids} for request in requests]
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        responses = []
        for request, output in zip(requests, outputs, strict=True):
            one = output.outputs[0]
            tokens = list(one.token_ids)
            log_probs = [entry[token].logprob for token, entry in zip(tokens, one.logprobs or [], strict=False)]
            responses.append(Response(request.group, request.number, tokens, log_probs, one.finish_reason == "length"))
        return responses

    def load_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": parameters})
        if not self._cuda:
            self._llm.collective_rpc(_repack_head)
        if self._asleep:
            self._take_memory("kv_cache")
            self._asleep, self.asleep_bytes = False, 0
        self._llm.reset_prefix_cache()

    def sleep(self) -> None:
        if self._cuda and not self._asleep:
            torch.cuda.empty_cache()  # so that what becomes free is the engine's alone
            free = torch.cuda.mem_get_info()[0]
            self._llm.sleep(level=2)
            self._asleep, self.asleep_bytes = True, torch.cuda.mem_get_info()[0] - free

    def wake(self) -> None:
        if self._asleep:
            self._take_memory("weights")

    def _take_memory(self, tag: str) -> None:
        torch.cuda.empty_cache()  # vLLM takes memory from the driver, not what torch keeps of the update for later use
        self._llm.wake_up(tags=[tag])


def _repack_head(worker: Any) -> None:
    """On CPU a layer multiplies by a packed copy of its weight. `reload_weights` makes that copy anew for each layer
    that weights were loaded for, which leaves out an output head tied to the embedding."""
    for module in worker.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
