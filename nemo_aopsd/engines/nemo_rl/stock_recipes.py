"""Our recipes for NeMo RL's own scripts: `aopsd train` can read them, but would train something else, or nothing.

Blocks of other scripts of NeMo RL's are no reason: a config of AOPSD may build on a recipe of theirs.
"""

from __future__ import annotations

from nemo_aopsd.cluster.tree import Tree
from nemo_aopsd.errors import UserError


def refuse_stock_recipe(tree: Tree) -> None:
    """Raises UserError that names the script."""
    block = next((key for key in ("sft", "env.aopsd_progress") if tree[key]), None)
    if block is None:
        return
    if block == "sft":
        script, command, page = "run_sft.py", "python", "docs/nemo_rl.md"
    else:
        script, command, page = "run_grpo.py", f"python -m {__package__}.run_stock", "docs/nemo_rl_environment.md"
    raise UserError(
        f"config: with the block `{block}` this is a recipe for NeMo RL's own examples/{script}; expected a config of "
        f"AOPSD, such as examples/configs/aopsd_qwen3_4b_megatron.yaml. From the NeMo RL folder run: {command} "
        f"examples/{script} --config FILE ({page}). If it is meant for AOPSD, remove the block."
    )
