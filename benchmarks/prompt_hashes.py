"""What vLLM's hashing of prompts takes for the probes of one row: its own, and with the patch that remembers a prefix.

python -m benchmarks.prompt_hashes          # needs vLLM 0.20 importable, no GPU
"""

from __future__ import annotations

import random
import statistics
import time

from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from nemo_aopsd.engines.nemo_rl.vllm_patches import remembering

ROW, PROMPT, PROBES, REPEATS, BLOCK = 3548, 1500, 25, 7, 16


def main() -> None:
    rng, greedy = random.Random(0), SamplingParams(temperature=0.0, max_tokens=1)
    row = [rng.randrange(151936) for _ in range(ROW)]
    probes = [row[:position] + [1] * 4 for position in sorted(rng.sample(range(PROMPT, ROW), PROBES))]
    init_none_hash(sha256)
    for name, make in (("vLLM's", get_request_block_hasher), ("remembering", remembering(get_request_block_hasher))):
        hasher, found = make(BLOCK, sha256), []
        for _ in range(REPEATS):
            started = time.perf_counter()
            for probe in probes:
                Request("probe", probe, greedy, None, cache_salt="student", block_hasher=hasher)
            found.append(1000 * (time.perf_counter() - started) / PROBES)
        print(f"{name:12} {statistics.median(found):.3f} ms a request ({min(found):.3f} to {max(found):.3f})")


if __name__ == "__main__":
    main()
