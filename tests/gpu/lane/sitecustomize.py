"""On PYTHONPATH of a lane of `layouts.py`: number its GPUs from 0, as in a container of its own.

NeMo RL v0.7.0 takes Ray's GPU id, which counts all GPUs of the host, for CUDA's, which counts the visible ones.
"""

import os

if "LANE_GPUS" in os.environ:
    import ray

    _order = os.environ["LANE_GPUS"].split(",")
    _ids_on_the_host = ray.get_gpu_ids
    ray.get_gpu_ids = lambda: [_order.index(str(gpu)) for gpu in _ids_on_the_host()]
