"""Our recipes for NeMo RL's own scripts: `aopsd train` can read them, but would train something else, or nothing.

Blocks of other scripts of NeMo RL's are no reason: a config of AOPSD may build on a recipe of theirs.
"""

from __future__ import annotations

from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.errors import UserError

_COMMANDS = {
    "sft": "python examples/run_sft.py --config FILE (docs/nemo_rl.md)",
    "env.aopsd_progress": "python -m nemo_aopsd.baselines.run_stock examples/run_grpo.py --config FILE "
    "(docs/nemo_rl_environment.md)",
}


def refuse_stock_recipe(tree: Tree) -> None:
    """Raises UserError with the command that the recipe is for."""
    for block, command in _COMMANDS.items():
        if tree[block]:
            raise UserError(
                f"config: with the block `{block}` this is a recipe for a script of NeMo RL's; expected a config of "
                "AOPSD, such as examples/configs/aopsd_qwen3_4b_megatron.yaml. From the NeMo RL folder run: "
                f"{command}. If it is meant for AOPSD, remove the block."
            )
