"""What this engine reads from NeMo RL's blocks, after the checks of refusals.py."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from nemo_aopsd.cluster.rules import refuse
from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.config.schema import Config, ProbeRunner, Scoring
from nemo_aopsd.engines.nemo_rl.refusals import find_faults
from nemo_aopsd.models.config_json import find_model_config
from nemo_aopsd.models.limits import check_row, check_words


@dataclass(frozen=True)
class Settings:
    """Sizes are GPUs, rows or tokens, as their names say."""

    backend: Literal["megatron", "dtensor"]
    num_nodes: int
    gpus_per_node: int
    train_global_batch_size: int
    scoring_rows_multiple: int  # what the number of rows of a log-prob call must be a multiple of
    divisible_by: int  # row lengths are padded to a multiple of it
    scoring: Scoring
    probe_runner: ProbeRunner


def read_settings(config: Config, environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a config that the core's checks have passed. Raises UserError with one line for each fault."""
    tree = Tree(config.raw)
    refuse(find_faults(tree, environment))
    if model := find_model_config(tree["policy.model_name"], tree["policy.hf_config_overrides"]):
        check_words(config, model.vocabulary, model.where)
        check_row(config, model)
    copies = tree.num_gpus // prod(tree.model_parallel_sizes.values())  # of the model; they share a batch
    rows = 1 if tree.token_budgets else tree.size("policy.logprob_batch_size")  # by tokens, or by number
    return Settings(
        backend="megatron" if tree.uses_megatron else "dtensor",
        num_nodes=tree.size("cluster.num_nodes"),
        gpus_per_node=tree.size("cluster.gpus_per_node"),
        train_global_batch_size=tree.size("policy.train_global_batch_size"),
        scoring_rows_multiple=copies * rows,
        divisible_by=tree.size("policy.make_sequence_length_divisible_by"),
        scoring=config.aopsd.scoring,
        probe_runner=config.aopsd.probes.runner,
    )
