"""`aopsd data prepare` by id: the hub's own library, in a process of its own, against a hub on this machine."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests import REPO
from tests.hub_server import HubServer

HUB_ID = "GAIR/LIMO-v2"
ROWS = [
    {"question": f"What is ${number}+{number}$?", "answer": str(2 * number), "solution": f"\\boxed{{{2 * number}}}"}
    for number in range(1, 6)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
FILES = {"README.md": b"---\n---\n", "data/train-00000.jsonl": LINES, "data/test-00000.jsonl": b"{}\n"}
LOCAL = "aopsd data prepare LIMO-v2.parquet"


def prepare(folder, url, source=HUB_ID, *options, **environment):
    """(exit code, what was printed, rows) of the command in `folder`, with an empty cache and no token."""
    out = folder / "limo.jsonl"
    out.parent.mkdir(exist_ok=True)
    # The library reads its environment when it is imported, so it needs a process that has not imported it yet.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", "from nemo_aopsd.cli import main; main()", "data", "prepare", source, "--out", str(out)]
        + list(options),
        env=kept | {"HF_ENDPOINT": url, "HF_HOME": str(folder / "cache"), "NO_PROXY": "*"} | environment,
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    return done.returncode, said, out.read_text(encoding="utf-8") if out.is_file() else None


def unused_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_by_id_gives_the_same_rows_as_from_a_local_copy(tmp_path):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(LINES)
    with HubServer(HUB_ID, FILES) as hub:
        code, said, rows = prepare(tmp_path / "hub", hub.url)
        assert code == 0, said
        asked = [path for path in hub.paths if "/resolve/" in path]
    assert rows == prepare(tmp_path / "local", unused_url(), str(copy))[2]
    assert len(rows.splitlines()) == len(ROWS) and "5  kept" in said
    assert asked and not any(path.endswith("README.md") for path in asked)
    code, _, again = prepare(tmp_path / "hub", hub.url)  # the hub has gone, the cache has it
    assert code == 0 and again == rows


@pytest.mark.parametrize(("status", "code", "found"), [(404, "RepoNotFound", "404"), (401, "GatedRepo", "401")])
def test_a_hub_that_refuses(tmp_path, status, code, found):
    with HubServer(HUB_ID, FILES, status=status, code=code) as hub:
        exit_code, said, rows = prepare(tmp_path / "x", hub.url, HUB_ID, "--revision", "abc")
    assert exit_code == 2 and rows is None and found in said and f"error: {HUB_ID}: " in said and LOCAL in said


def test_a_download_that_breaks_off(tmp_path):
    with HubServer(HUB_ID, FILES, cut=10) as hub:
        code, said, rows = prepare(tmp_path / "x", hub.url)
    assert code == 2 and rows is None and "cannot be downloaded" in said and LOCAL in said


@pytest.mark.parametrize(
    ("source", "environment", "found"),
    [
        (HUB_ID, {}, "cannot be downloaded"),
        ("GAIR/LIMO--v2", {}, "no id of the hub"),
        (HUB_ID, {"HF_TOKEN": "hush\u00e4hush"}, "HF_TOKEN"),
    ],
)
def test_what_never_reaches_the_hub(tmp_path, source, environment, found):
    code, said, _ = prepare(tmp_path / "x", unused_url(), source, **environment)
    assert code == 2 and found in said and "hush" not in said
