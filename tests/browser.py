"""A real browser for tests of pages; they are skipped with a reason where there is none."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")


def in_browser(page: Path, script: str) -> Any:
    """The JSON that `script` returns when run in the loaded page; fails on any console message."""
    probe = page.with_name("probe.html")
    run = f"<script>addEventListener('load', () => document.documentElement.append(Object.assign(\
document.createElement('pre'), {{id: 'result', textContent: JSON.stringify((() => {{ {script} }})())}})));</script>"
    probe.write_text(page.read_text(encoding="utf-8").replace("</body>", run + "</body>"), encoding="utf-8")
    assert CHROMIUM
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--window-size=1400,800", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return json.loads(html.unescape(re.findall(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)[0]))


def at_widths(page: Path, widths: tuple[int, ...], script: str) -> list[Any]:
    """What `script` returns of the page, `view` its window and `doc` its document, in a frame of each width.

    A window of a headless browser is at least 500 pixels wide; a frame may be narrower.
    """
    content = html.escape(page.read_text(encoding="utf-8"), quote=True)
    frames = "".join(f'<iframe width="{width}" height="800" srcdoc="{content}"></iframe>' for width in widths)
    outer = page.with_name("frames.html")
    outer.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}</body>", encoding="utf-8")
    look = f"frame => {{ const view = frame.contentWindow, doc = view.document; {script} }}"
    return in_browser(outer, f"return [...document.querySelectorAll('iframe')].map({look});")
