"""Our problem files as a NeMo RL dataset, for stock recipes: `data.*.dataset_name` is the dotted name of the class.

Importing this module registers the processor `aopsd_data_processor` and the environment `aopsd_progress`.
"""

import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from nemo_rl.data import ResponseDatasetConfig
from nemo_rl.data.datasets.raw_dataset import RawDataset
from nemo_rl.data.interfaces import DatumSpec, TaskDataSpec
from nemo_rl.data.processors import PROCESSOR_REGISTRY, register_processor

from nemo_aopsd.baselines import environment  # noqa: F401  registers it
from nemo_aopsd.data.dag import to_raw
from nemo_aopsd.data.problems import Problem, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages

PROCESSOR_NAME = "aopsd_data_processor"
_KEYS = {"data_path", "prompts", "split_validation_size", "seed"}


class ProblemRows(RawDataset):
    """A problem file as rows: the student's prompt as messages, the task's name, and what `_row` adds."""

    def __init__(
        self,
        data_path: str,
        prompts: str = "default",
        split_validation_size: float = 0,
        seed: int = 42,
        own_keys: tuple[str, ...] = (),
        **others: Any,
    ):
        """`prompts`: a folder of nemo_aopsd/prompts, or a path. Raises UserError on a bad file, on what `_row`
        refuses, and on settings that would be ignored."""
        _refuse_ignored(others, _KEYS.union(own_keys))
        self.task_name = f"aopsd_{Path(data_path).stem}"
        rows = [
            {"messages": student_messages(problem, prompts), "task_name": self.task_name} | self._row(problem)
            for problem in load_problems(data_path)
        ]
        self.dataset = Dataset.from_list(rows)
        self.val_dataset = None
        self.split_train_validation(split_validation_size, seed)

    def _row(self, problem: Problem) -> dict[str, Any]:
        raise NotImplementedError


class AOPSDProblems(ProblemRows):
    """For the environment: each row also holds the problem itself as JSON.

    A problem without DAG is refused unless `require_dag` is off, for a reward without progress.
    """

    def __init__(self, data_path: str, prompts: str = "default", require_dag: bool = True, **options: Any):
        self._require_dag = require_dag
        super().__init__(data_path, prompts, own_keys=("require_dag",), **options)

    def _row(self, problem: Problem) -> dict[str, Any]:
        if self._require_dag and problem.dag is None:
            remedy = "Add it, or set `require_dag: false` under `data.default` and reward only correct answers."
            raise UserError(f"{problem.where}: problem {problem.id!r} has no `dag`, which progress needs. {remedy}")
        return {"record": json.dumps(to_record(problem))}  # text, as Arrow would give all rows one shape


def aopsd_data_processor(
    datum_dict: dict[str, Any], task_data_spec: TaskDataSpec, tokenizer: Any, max_seq_length: int | None, idx: int
) -> DatumSpec:
    """The student's prompt in ids, as the rest of the package renders it, and the problem as `extra_env_info`.

    Raises UserError if the prompt takes `max_seq_length` tokens or more: NeMo RL's own processors would cut it.
    """
    text = tokenizer.apply_chat_template(datum_dict["messages"], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    info = json.loads(datum_dict["record"])
    check_room(info, len(ids), max_seq_length)
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": ids}],
        "length": len(ids),
        "extra_env_info": info,
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": datum_dict["task_name"],
    }


def check_room(row: dict[str, Any], num_tokens: int, limit: int | None) -> None:
    """Raise UserError if a row's prompt leaves no room for an answer."""
    if limit is not None and num_tokens >= limit:
        sizes = f"its prompt takes {num_tokens} tokens, but data.max_input_seq_length is {limit}"
        raise UserError(f"{row['where']}: problem {row['id']!r}: {sizes}. Raise it, or drop the row.")


def to_record(problem: Problem) -> dict[str, Any]:
    """What the environment needs of a problem; `nemo_aopsd.data.problems.parse_problem` reads it back."""
    record: dict[str, Any] = {name: getattr(problem, name) for name in ("id", "problem", "answer", "where")}
    if problem.dag is not None:
        record["dag"] = to_raw(problem.dag)
    return record


def _refuse_ignored(others: dict[str, Any], own_keys: set[str]) -> None:
    """Raise UserError for what a dataset of ours was given beside `own_keys` and would not heed."""
    known = {*own_keys, *ResponseDatasetConfig.__annotations__}
    for key, value in others.items():
        if key in ("prompt_file", "system_prompt_file") and value is not None:
            raise UserError(f"data: `{key}` is {value!r}, but `prompts` chooses our wording. Set {key} to null.")
        if key not in known:
            raise UserError(f"data: unknown key `{key}` of a dataset. Known: {', '.join(sorted(known))}.")


if PROCESSOR_NAME not in PROCESSOR_REGISTRY:
    register_processor(PROCESSOR_NAME, aopsd_data_processor)
