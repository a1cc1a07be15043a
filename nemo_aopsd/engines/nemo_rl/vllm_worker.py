"""A NeMo RL vLLM worker that samples with settings per call, continues branches and scores them.

Ray cannot derive from an actor class, so the logic is in `...Impl` and the actor is an empty shell (as in NeMo RL).

vLLM's scheduler runs in this process: NeMo RL starts its vLLM workers with VLLM_ENABLE_V1_MULTIPROCESSING=0, and
refusals.py keeps `async_engine` false. So the first patch of vllm_patches.py is applied here, before the engine is
made. The second one belongs into vLLM's own workers, which are other processes under tensor parallelism:
`collective_rpc` calls it in each of them, as a method of `WeightBankExtension`.
"""

from functools import cached_property
from typing import Any
from unittest.mock import patch

import ray
import torch
from nemo_rl.models.generation.vllm.vllm_worker import VllmGenerationWorkerImpl
from torch import Tensor

from nemo_aopsd.config.schema import ProbeRunner
from nemo_aopsd.engines.nemo_rl import branch_runner, vllm_patches
from nemo_aopsd.engines.nemo_rl.branch_runner import Ask
from nemo_aopsd.types import Branch, Generation, Sampling, Tokens, TopK

EXTENSION = "nemo_aopsd.engines.nemo_rl.vllm_extension.WeightBankExtension"


class ProbingVllmWorkerImpl(VllmGenerationWorkerImpl):
    """Rows are lists of token ids. `salt` keeps what is cached under one set of weights from the other."""

    sleep_level = 1
    num_left = 0  # probes that could not be run in batches, so far

    def _create_engine(self, llm_kwargs: dict[str, Any]) -> None:
        vllm_patches.limit_prefix_hits()
        super()._create_engine(llm_kwargs | {"worker_extension_cls": EXTENSION})
        self.llm.collective_rpc("score_rows")

    def let_weights_go(self) -> None:
        """The next `sleep` need not keep the weights, because a refit comes before the next use."""
        is_fp8 = self.cfg["vllm_cfg"]["precision"] == "fp8"  # whose scales are made when a model is loaded
        self.sleep_level = 2 if not is_fp8 and all(self.llm.collective_rpc("refit_is_enough")) else 1
        self.llm.collective_rpc("let_student_go")

    def sleep(self) -> None:
        """NeMo RL's, at vLLM's level 2 if the weights may go: it copies buffers to the host, and no weights."""
        level, self.sleep_level = self.sleep_level, 1
        fall_asleep = self.llm.sleep
        with patch.object(self.llm, "sleep", lambda **_: fall_asleep(level=level)):
            super().sleep()

    def call_extension(self, method: str, **kwargs: Any) -> None:
        """Call `method` of the extension in each worker of this engine."""
        self.llm.collective_rpc(method, kwargs=kwargs)

    def sample(
        self, prompts: list[Tokens], sampling: Sampling, seed: int, end_ids: list[int], salt: str
    ) -> list[Generation]:
        """A response each; one without room for a single token is empty and unfinished."""
        limits = [min(sampling.max_new_tokens, self.cfg["vllm_cfg"]["max_model_len"] - len(p)) for p in prompts]
        results = [Generation([], False, torch.empty(0))] * len(prompts)
        self.llm.collective_rpc("seed_sampler", args=(seed,))
        params = {
            index: self.SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                max_tokens=limit,
                stop_token_ids=end_ids,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for index, limit in enumerate(limits)
            if limit > 0
        }
        outputs = self._run([prompts[index] for index in params], list(params.values()), salt)
        for index, output in zip(params, outputs, strict=True):
            sampled = output.outputs[0]
            logprobs = torch.tensor(sampled.logprobs.logprobs)
            results[index] = Generation(list(sampled.token_ids), sampled.finish_reason == "stop", logprobs)
        return results

    def continue_branches(
        self,
        prompts: list[Tokens],
        responses: list[Tokens],
        branches: list[list[Branch]],
        length: int,
        end_ids: list[int],
        salt: str,
        runner: ProbeRunner = "requests",
    ) -> list[list[Branch]]:
        """`LanguageModel.continue_greedily`. Prefixes are sent once a row, and read once by vLLM's prefix cache."""
        rows = _whole(prompts, responses)
        extended = [list(row) for row in branches]
        growing = [
            (index, place, branch)
            for index, row in enumerate(branches)
            for place, branch in enumerate(row)
            if len(branch.tokens) < length and not (branch.tokens and branch.tokens[-1] in end_ids)
        ]
        asks = [
            Ask(index, len(prompts[index]) + start.position, start.tokens, length - len(start.tokens))
            for index, _, start in growing
        ]
        found, left = self._run_branches(rows, asks, salt, runner)
        wholes = [rows[ask.row][: ask.shared] + ask.tokens for ask in left.values()]
        params = [
            self.SamplingParams(temperature=0.0, max_tokens=ask.new, stop_token_ids=end_ids, detokenize=False)
            for ask in left.values()
        ]
        for place, output in zip(left, self._run(wholes, params, salt), strict=True):
            found[place] = list(output.outputs[0].token_ids)
        for (index, place, start), tokens in zip(growing, found, strict=True):
            ends = (i + 1 for i, token in enumerate(tokens) if token in end_ids)
            extended[index][place] = Branch(start.position, start.tokens + tokens[: next(ends, None)])
        return extended

    def score_branches(
        self,
        prompts: list[Tokens],
        responses: list[Tokens],
        branches: list[list[Branch]],
        salt: str,
        runner: ProbeRunner = "requests",
    ) -> list[list[Tensor]]:
        """`LanguageModel.branch_logprobs`: raw log-softmax of its own tokens, in one prefill behind the cache."""
        rows = _whole(prompts, responses)
        asks = [
            Ask(index, len(prompts[index]) + branch.position, branch.tokens)
            for index, row in enumerate(branches)
            for branch in row
        ]
        found, left = self._run_branches(rows, asks, salt, runner)
        contexts = [rows[ask.row][: ask.shared] for ask in left.values()]
        scores = self._score(contexts, [ask.tokens for ask in left.values()], 0, salt)
        for place, (logprobs, _) in zip(left, scores, strict=True):
            found[place] = logprobs[:, 0]
        by_branch = iter(found)
        return [[next(by_branch) for _ in row] for row in branches]

    def score_choices(
        self, prompts: list[Tokens], responses: list[Tokens], branches: list[list[Branch]], choices: Tokens, salt: str
    ) -> list[list[Tensor]]:
        """`LanguageModel.next_logprobs`: a request a branch, whose last row predicts every choice."""
        rows = zip(prompts, responses, branches, strict=True)
        contexts = [prompt + response[: b.position] + b.tokens for prompt, response, row in rows for b in row]
        scored = iter(self._score(contexts, [choices] * len(contexts), 0, salt, are_choices=True))
        return [[next(scored)[0][:, 0] for _ in row] for row in branches]

    def score_top_k(self, prompts: list[Tokens], responses: list[Tokens], k: int, salt: str) -> list[TopK]:
        """`LanguageModel.top_logprobs`, in one prefill."""
        scored = self._score(prompts, responses, k, salt)
        return [TopK(ids, logprobs[:, 1:-1], logprobs[:, -1]) for logprobs, ids in scored]

    def _score(
        self, contexts: list[Tokens], tokens: list[Tokens], top_k: int, salt: str, are_choices: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """Log-probs and ids of `vllm_patches.Scores`, for all of `tokens` behind each context, or as its next one.

        The last token of a row need not be read. Raises RuntimeError if vLLM left rows out: it read the cache too far.
        """
        width = 1 + (top_k and top_k + 1)
        found = [(torch.empty(len(row), width), torch.empty(len(row), top_k, dtype=torch.int32)) for row in tokens]
        missing = [torch.ones(len(row), dtype=torch.bool) for row in tokens]
        asked = [
            vllm_patches.Wanted(key, len(context) - 1, row, top_k, are_choices)
            for key, (context, row) in enumerate(zip(contexts, tokens, strict=True))
            if row
        ]
        params = [
            self.SamplingParams(
                temperature=0.0,
                max_tokens=1,
                detokenize=False,
                extra_args={vllm_patches.SCORED: tuple(wanted)},
                skip_clone=True,  # a deep copy would walk through all tokens
            )
            for wanted in asked
        ]
        read = [[] if are_choices else wanted.tokens[:-1] for wanted in asked]
        self._run([contexts[wanted.key] + more for wanted, more in zip(asked, read, strict=True)], params, salt)
        for key, start, *columns in self.llm.collective_rpc("take_scores")[-1]:  # of the last pipeline stage
            end = start + len(columns[0])
            missing[key][start:end] = False
            for target, values in zip(found[key], columns, strict=True):
                target[start:end] = values
        if lost := [(len(row), int(row.sum())) for row in missing if row.any()]:
            rows = f"{lost[0][1]} of {lost[0][0]} rows of a request, and rows of {len(lost)} requests in all"
            raise RuntimeError(f"vLLM left out {rows}: vllm_patches.py does not fit this version of vLLM")
        return found

    def _run_branches(
        self, rows: list[Tokens], asks: list[Ask], salt: str, runner: ProbeRunner
    ) -> tuple[list[Any], dict[int, Ask]]:
        """What `branch_runner.run` found, and by place those that are left to requests, where it is None."""
        if runner == "requests" or not asks or self._no_runner:
            return [None] * len(asks), dict(enumerate(asks))
        once = self.SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        read = lambda beginnings: self._run(beginnings, [once] * len(beginnings), salt)  # noqa: E731
        found = branch_runner.run(self.llm, rows, asks, salt, read)
        left = {place: asks[place] for place, result in enumerate(found) if result is None}
        if number := sum(bool(ask.tokens or ask.new) for ask in left.values()):
            self.num_left += number
            print(f"aopsd: {number} of {len(asks)} probes go by requests, since vLLM's cache did not keep their rows")
        return found, left

    @cached_property
    def _no_runner(self) -> str | None:
        """Why branches go by requests whatever is asked for."""
        why = self.llm.collective_rpc("why_no_branches")[0]
        print(f"aopsd.probes.runner: {f'requests, because this vLLM has {why}' if why else 'batched'}")
        return why

    def _run(self, prompts: list[Tokens], params: list[Any], salt: str) -> list[Any]:
        if not prompts:
            return []
        requests = [{"prompt_token_ids": prompt, "cache_salt": salt} for prompt in prompts]
        return self.llm.generate(requests, params, use_tqdm=False)


def _whole(prompts: list[Tokens], responses: list[Tokens]) -> list[Tokens]:
    return [prompt + response for prompt, response in zip(prompts, responses, strict=True)]


@ray.remote
class ProbingVllmWorker(ProbingVllmWorkerImpl):
    pass
