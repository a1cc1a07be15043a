"""On PYTHONPATH of a lane of `layouts.py`, which has the host to itself no more than a container of its own would.

NeMo RL v0.7.0 takes Ray's GPU id, which counts all GPUs of the host, for CUDA's, which counts the visible ones, and its
memory tracker asks for any Ray of the host.
"""

import os

import ray
from ray._private import services

_found = services.canonicalize_bootstrap_address_or_die


def _own_address(addr, *args, **kwargs):
    if addr in (None, "auto") and ray.is_initialized():
        return ray.get_runtime_context().gcs_address
    return _found(addr, *args, **kwargs)


services.canonicalize_bootstrap_address_or_die = _own_address

if "LANE_GPUS" in os.environ:
    _order = os.environ["LANE_GPUS"].split(",")
    _ids_on_the_host = ray.get_gpu_ids
    ray.get_gpu_ids = lambda: [_order.index(str(gpu)) for gpu in _ids_on_the_host()]
