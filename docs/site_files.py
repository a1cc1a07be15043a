"""A hook of mkdocs: the site keeps the paths of the repository, so a link is right both there and in a checkout."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "containers/README.md", "examples/data/README.md")
LOGS = ("docs/verification.md", "docs/results.md", "docs/results_tables.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of docs/, those beside it, and the files that a page links to."""
    pages = [ROOT / name for name in ELSEWHERE] + sorted((ROOT / "docs").glob("*.md"))
    linked = {(page.parent / name).resolve() for page in pages for name in _LINK.findall(page.read_text("utf-8"))}
    theme = [file for file in files if file.generated_by or not str(file.abs_src_path).startswith(config.docs_dir)]
    styles = [ROOT / name for name in config.extra_css]
    own = [*pages, *styles, *sorted(path for path in linked - set(pages) if path.is_file())]
    return Files([*theme, *(_file(path, config) for path in own)])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Who searches wants the page that explains a word, not the log that has it most often."""
    if page.file.src_uri in LOGS:
        page.meta["search"] = {"boost": 0.1}


def _file(path: Path, config: MkDocsConfig) -> File:
    name = path.relative_to(ROOT).as_posix()
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls)
