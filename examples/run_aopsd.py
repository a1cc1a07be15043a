"""Train from a config file, in the manner of NeMo RL's `examples/run_*.py`. The same as `aopsd train`.

python examples/run_aopsd.py --config examples/configs/aopsd_tiny_cpu.yaml logger.log_dir=runs/mine
"""

import sys

from nemo_aopsd.cli import main

if __name__ == "__main__":
    sys.argv = ["aopsd", "train", *(word for word in sys.argv[1:] if word != "--config")]
    main()
