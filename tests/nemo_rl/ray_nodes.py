"""Ray nodes as separate processes of this machine, each with an address and ports of its own, for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import ray

HEAD, OTHER = "127.0.0.2", "127.0.0.3"


class RayNodes:
    """Two nodes; this process is a driver on the first. Everything ends with the block, whatever happened in it.

    Never `ray stop`, which would end every Ray of the machine.
    """

    def __enter__(self) -> RayNodes:
        self._folder = Path(tempfile.mkdtemp(prefix="ray-nodes-"))  # short: sockets lie in it
        self._nodes: dict[str, subprocess.Popen] = {}
        try:
            self.address = f"{HEAD}:{_free_port()}"
            port = f"--port={self.address.partition(':')[2]}"
            client = f"--ray-client-server-port={_free_port()}"
            self._start(HEAD, "--head", port, client, f"--temp-dir={self._folder}/ray", "--include-dashboard=false")
            _wait(lambda: _answers(self.address), 60, "the head does not answer")
            self._start(OTHER, f"--address={self.address}")
            ray.init(address=self.address, _node_ip_address=HEAD, logging_level="ERROR")
            _wait(lambda: set(self.alive()) == {HEAD, OTHER}, 60, "the second node does not join")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        ray.shutdown()
        trees = [each for process in self._nodes.values() for each in _tree(process)]
        for process in reversed(self._nodes.values()):
            process.terminate()
        psutil.wait_procs(trees, timeout=20)
        _kill(trees)
        for process in self._nodes.values():
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def alive(self) -> dict[str, str]:
        """Node ids by address."""
        return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def kill(self, address: str) -> None:
        """As a power cut would: nothing of the node says goodbye."""
        _kill(_tree(self._nodes[address]))
        self._nodes[address].wait()

    def _start(self, address: str, *words: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--node-ip-address={address}"]
        command += ["--disable-usage-stats", "--num-cpus=2", "--object-store-memory=80000000"]
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        environment["RAY_memory_monitor_refresh_ms"] = "0"  # it ends actors for what others on the machine use
        with (self._folder / f"{address}.log").open("w") as log:
            self._nodes[address] = subprocess.Popen(
                [*command, *words], env=environment, stdout=log, stderr=log, start_new_session=True
            )


def _tree(process: subprocess.Popen) -> list[psutil.Process]:
    """With all descendants, since Ray gives its workers process groups of their own. Empty once it has ended."""
    if process.poll() is not None:
        return []
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def _wait(condition, seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.2)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
