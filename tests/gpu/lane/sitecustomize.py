"""On PYTHONPATH of a lane of `layouts.py`: makes it see its own GPUs and its own Ray only, as a container would.

NeMo RL v0.7.0 takes Ray's GPU id, which counts all GPUs of the host, for CUDA's, which counts the visible ones, its
memory tracker asks for any Ray of the host, and vLLM looks for a free port from the same number on in every run.
"""

import importlib.util
import os


def number_gpus_from_0(order):
    ids_on_the_host = ray.get_gpu_ids
    ray.get_gpu_ids = lambda: [order.index(str(gpu)) for gpu in ids_on_the_host()]


def use_own_ray():
    from ray._private import services

    found = services.canonicalize_bootstrap_address_or_die

    def own(addr, *args, **kwargs):
        if addr in (None, "auto") and ray.is_initialized():
            return ray.get_runtime_context().gcs_address
        return found(addr, *args, **kwargs)

    services.canonicalize_bootstrap_address_or_die = own


def use_own_ports():
    """Once: what a worker starts in its turn inherits the number that is found here."""
    if "VLLM_PORT" in os.environ and "LANE_PORTS" in os.environ:
        os.environ["VLLM_PORT"] = str(int(os.environ["VLLM_PORT"]) + int(os.environ.pop("LANE_PORTS")))


use_own_ports()
if importlib.util.find_spec("ray"):
    import ray

    use_own_ray()
    if "LANE_GPUS" in os.environ:
        number_gpus_from_0(os.environ["LANE_GPUS"].split(","))
