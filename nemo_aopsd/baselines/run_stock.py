"""Run a script of NeMo RL, unchanged, with our environment, dataset and data processor registered:

    python -m nemo_aopsd.baselines.run_stock examples/run_grpo.py --config CONFIG [OVERRIDE ...]

NeMo RL makes environments before it imports the dataset's module (setup_response_data in nemo_rl/data/utils.py), so
naming our dataset in the config comes too late for `register_env`, and no other key of a config imports anything.
"""

import runpy
import sys
from pathlib import Path

from nemo_aopsd.baselines import dataset  # noqa: F401  registers all three
from nemo_aopsd.errors import UserError


def main(arguments: list[str]) -> None:
    """As `python SCRIPT ARGUMENTS` does it. Raises UserError if there is no such script."""
    if not arguments or not Path(arguments[0]).is_file():
        found = arguments[0] if arguments else "no script given"
        wanted = "the path of a script, for example examples/run_grpo.py in the NeMo RL folder"
        raise UserError(f"{found}: expected {wanted} (looked from {Path.cwd()}).")
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
