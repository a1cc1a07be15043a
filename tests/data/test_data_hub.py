"""`aopsd data prepare` by id: the hub's own library, in a process of its own, against a hub on this machine."""

import json
import os
import re
import socket
import subprocess
import sys
import time

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
LOCAL = "Download it elsewhere and pass the file: aopsd data prepare LIMO-v2.parquet"


def prepare(folder, url, source=HUB_ID, *options, **environment):
    """(exit code, what was printed, rows) of the command in `folder`, with an empty cache and no token."""
    out = folder / "limo.jsonl"
    out.parent.mkdir(exist_ok=True)
    # The library reads its environment when it is imported, so it needs a process that has not imported it yet.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    started = time.monotonic()
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
    assert "Traceback" not in said and time.monotonic() - started < 60
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


@pytest.mark.parametrize(
    ("status", "code", "found"),
    [
        (404, "RepoNotFound", "the hub refused it: .*404.* Check the id, or log in"),
        (401, "GatedRepo", "the hub refused it: .*401.* Check the id, or log in"),
        (404, "RevisionNotFound", r"the hub has no revision abc\. Choose another --revision"),
        (404, "", r"the hub cannot be reached \(.*404"),
        (500, "", r"the hub cannot be reached \(.*500"),
    ],
)
def test_a_hub_that_refuses(tmp_path, status, code, found):
    with HubServer(HUB_ID, FILES, status=status, code=code) as hub:
        exit_code, said, rows = prepare(tmp_path / "x", hub.url, HUB_ID, "--revision", "abc")
    assert exit_code == 2 and rows is None and re.search(f"error: {HUB_ID}: {found}", said), said
    assert LOCAL in said or code == "RevisionNotFound"


def test_a_hub_that_refuses_connections(tmp_path):
    code, said, _ = prepare(tmp_path / "x", unused_url())
    assert code == 2 and "the hub cannot be reached (" in said and LOCAL in said


def test_a_download_that_breaks_off(tmp_path):
    with HubServer(HUB_ID, FILES, cut=10) as hub:
        code, said, rows = prepare(tmp_path / "x", hub.url)
    assert code == 2 and rows is None and "the download failed" in said and LOCAL in said


@pytest.mark.parametrize(
    ("source", "environment", "found"),
    [
        ("GAIR/LIMO--v2", {}, "no id of the hub"),
        (HUB_ID, {"HF_ENDPOINT": "nonsense"}, "the download failed: UnsupportedProtocol"),
        (
            HUB_ID,
            {"HF_TOKEN": "hush\u00e4hush"},
            "the hub's token has a character that is not ASCII. Set HF_TOKEN anew",
        ),
    ],
)
def test_what_never_reaches_the_hub(tmp_path, source, environment, found):
    code, said, _ = prepare(tmp_path / "x", unused_url(), source, **environment)
    assert code == 2 and found in said and "hush" not in said
