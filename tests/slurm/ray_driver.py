"""Asks every node of the running Ray cluster who it is, writes that to a file, and works there until told to end."""

import json
import os
import sys
import time
from pathlib import Path


class OnOne:
    """One a node, for each has one worker unit."""

    def who(self):
        import ray

        return [ray.get_runtime_context().get_node_id(), os.getpid()]

    def work(self):
        time.sleep(0.1)


def main(out):
    import ray  # pytest reads this file, too, where there is none

    ray.init(address=os.environ["RAY_ADDRESS"])
    remote = ray.remote(num_cpus=0, resources={"worker_units": 1})(OnOne)
    actors = [remote.remote() for _ in range(2)]
    found = ray.get([actor.who.remote() for actor in actors], timeout=120)
    out.with_suffix(".partial").write_text(json.dumps(found))
    out.with_suffix(".partial").rename(out)
    while not out.with_suffix(".end").exists():
        ray.get([actor.work.remote() for actor in actors])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
