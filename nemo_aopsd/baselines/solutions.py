"""Our problem files as demonstrations for NeMo RL's own `examples/run_sft.py`: `data.*.dataset_name` names the class.

A row is what the objective `sft` trains on: the bare question under the student's prompt, then the solution and the
end token. Importing this module registers the processor `aopsd_solution_processor`; the script does so by the name.
"""

from typing import Any

import torch
from nemo_rl.data.interfaces import DatumSpec, TaskDataSpec
from nemo_rl.data.processors import PROCESSOR_REGISTRY, register_processor

from nemo_aopsd.baselines.dataset import ProblemRows, check_room
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.demonstrations import demonstration
from nemo_aopsd.models.tokenizer import HFTokenizer

PROCESSOR_NAME = "aopsd_solution_processor"


class AOPSDSolutions(ProblemRows):
    """One row a problem: the student's prompt as messages, and the solution."""

    def _row(self, problem: Problem) -> dict[str, Any]:
        if not (problem.solution or "").strip():
            raise UserError(f"{problem.where}: problem {problem.id!r} has no `solution`. Add it, or drop the row.")
        return {"id": problem.id, "where": problem.where, "solution": problem.solution}


class SolutionProcessor:
    """Rows to ids: a `user` message, which NeMo RL's SFT masks, and an `assistant` message, on which it trains.

    NeMo RL's own processor would leave an over-long row out without a word. Here a solution that does not fit is cut
    and loses its end token, as in the objective `sft`; how many were is printed at the 1st, 2nd, 4th, 8th, ...
    """

    def __init__(self) -> None:
        self.cut: set[str] = set()

    def __call__(
        self,
        datum_dict: dict[str, Any],
        task_data_spec: TaskDataSpec,
        tokenizer: Any,
        max_seq_length: int,
        idx: int,
        **switches: bool,
    ) -> DatumSpec:
        """`switches`: data.add_bos, add_eos and add_generation_prompt. Raises UserError unless each is true, and for a
        prompt that leaves no room for a solution."""
        for name, value in switches.items():
            if not value:
                always = "a row of ours has the generation prompt, the end token and the model's beginning token"
                raise UserError(f"data.{name} is {value}, but {always}, as rollouts have. Set data.{name}=true.")
        ours = HFTokenizer(tokenizer, [])
        prompt = ours.render(datum_dict["messages"], thinking=None)  # by policy.tokenizer.chat_template_kwargs
        check_room(datum_dict, len(prompt), max_seq_length)
        response = demonstration(datum_dict["solution"], ours, max_seq_length - len(prompt))
        if not response.finished:
            self._count_cut(datum_dict["where"], datum_dict["id"])
        texts = {"user": datum_dict["messages"][-1]["content"], "assistant": datum_dict["solution"]}
        ids = {"user": prompt, "assistant": response.tokens}
        return {
            "message_log": [
                {"role": role, "content": texts[role], "token_ids": torch.tensor(ids[role])} for role in texts
            ],
            "length": len(prompt) + len(response.tokens),
            "extra_env_info": None,
            "loss_multiplier": 1.0,
            "idx": idx,
            "task_name": datum_dict["task_name"],
        }

    def _count_cut(self, where: str, name: str) -> None:
        known = len(self.cut)
        self.cut.add(where)
        number = len(self.cut)
        if number > known and number.bit_count() == 1:
            print(
                f"[{PROCESSOR_NAME}] solutions cut so far, for data.max_input_seq_length, and without an end token: "
                f"{number}. The last: {where}: problem {name!r}",
                flush=True,
            )


if PROCESSOR_NAME not in PROCESSOR_REGISTRY:
    register_processor(PROCESSOR_NAME, SolutionProcessor())
