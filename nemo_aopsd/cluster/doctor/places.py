"""Folders: is the file system shared between nodes, is there room for checkpoints, can caches be written?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, gigabytes

_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "glusterfs", "cifs", "smb3", "pvfs2"}
_ONE_NODE = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs", "squashfs", "f2fs", "vfat"}
_MOUNTS = Path("/proc/mounts")


def existing_parent(path: Path) -> Path:
    """The nearest folder on the way to `path` that is there."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Its kind, such as `lustre`; None where the system does not say."""
    if not mounts.is_file():
        return None
    place, best, kind = existing_parent(path).resolve(), Path(), None
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, mounted, name, *_ = line.split(" ")
        folder = Path(mounted.replace("\\040", " "))
        if place.is_relative_to(folder) and len(folder.parts) >= len(best.parts):
            best, kind = folder, name
    return kind


def check_shared(name: str, path: Path, num_nodes: int, mounts: Path = _MOUNTS) -> Check:
    """All nodes must see the same files; on one node any file system will do."""
    kind = file_system(path, mounts)
    found = f"{path} on {kind or 'an unknown file system'}"
    if num_nodes == 1:
        return Check(name, OK, found, "any file system, on one node")
    expected = f"a file system that all {num_nodes} nodes share, such as lustre, nfs or gpfs"
    if kind in _SHARED:
        return Check(name, OK, found, expected)
    remedy = f"Move it to a shared folder; check with: srun --nodes {num_nodes} ls {path}"
    return Check(name, ERROR if kind in _ONE_NODE else WARN, found, expected, remedy)


def check_writable(name: str, path: Path, remedy: str) -> Check:
    """A file is really made where the folder, or the nearest one above it, is."""
    parent = existing_parent(path)
    try:
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".aopsd-doctor-"):
            pass
    except OSError as error:
        return Check(name, ERROR, f"{path}: {error.strerror or error}", "a folder that can be written", remedy)
    return Check(name, OK, f"{path}, {gigabytes(shutil.disk_usage(parent).free)} free", "a folder that can be written")


def check_space(name: str, path: Path, need: float, what: str, free: int | None = None) -> Check:
    """`need` bytes, of which `what` says the sum. `free` stands in for the disk's own number."""
    free = shutil.disk_usage(existing_parent(path)).free if free is None else free
    fits = free >= need
    remedy = "" if fits else f"Free {gigabytes(need - free)}, or move it: {path}"
    return Check(name, OK if fits else ERROR, f"{gigabytes(free)} free", f"{gigabytes(need)}: {what}", remedy)


def hf_home(environment: Mapping[str, str]) -> Path:
    """Where models and data sets are downloaded to."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(environment.get("HF_HOME") or f"{cache}/huggingface"))


def converted_models(environment: Mapping[str, str]) -> Path:
    """Where NeMo RL keeps models converted for Megatron (models/policy/utils.py)."""
    return Path(environment.get("NRL_MEGATRON_CHECKPOINT_DIR") or hf_home(environment) / "nemo_rl")
