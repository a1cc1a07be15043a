"""On PYTHONPATH of a lane of `layouts.py`: makes it see its own GPUs and its own Ray only, as a container would.

NeMo RL v0.7.0 takes Ray's GPU id, which counts all GPUs of the host, for CUDA's, which counts the visible ones, and its
memory tracker asks for any Ray of the host. A stacked lane has more ranks than GPUs: Ray counts LANE_RANKS of them,
each is the one GPU, and what tells GPUs apart (their UUID, for refits; NCCL's host, which refuses a GPU twice) tells
ranks apart instead.
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


def stack(num_ranks):
    import pynvml
    from ray._private.accelerators import NvidiaGPUAcceleratorManager as Gpus

    ranks = [str(rank) for rank in range(num_ranks)]
    Gpus.get_current_node_num_accelerators = staticmethod(lambda: num_ranks)
    Gpus.get_current_process_visible_accelerator_ids = staticmethod(lambda: ranks)
    Gpus.set_current_process_visible_accelerator_ids = staticmethod(lambda ids: None)
    ray._private.worker.global_worker.original_visible_accelerator_ids["GPU"] = ranks  # read when Ray was imported
    ranks_of_this_process, uuid_of = ray.get_gpu_ids, pynvml.nvmlDeviceGetUUID

    def one_gpu():
        ranks = ranks_of_this_process()
        if ranks:
            os.environ["NCCL_HOSTID"] = f"rank{ranks[0]}"
        return [0 for _ in ranks]

    def uuid_of_rank(handle):
        uuid = uuid_of(handle)
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        return "-".join([uuid, *map(str, ranks_of_this_process())]) if ray.is_initialized() else uuid

    ray.get_gpu_ids, pynvml.nvmlDeviceGetUUID = one_gpu, uuid_of_rank


if importlib.util.find_spec("ray"):
    import ray

    use_own_ray()
    if "LANE_RANKS" in os.environ:
        stack(int(os.environ["LANE_RANKS"]))
    if "LANE_GPUS" in os.environ:
        number_gpus_from_0(os.environ["LANE_GPUS"].split(","))
