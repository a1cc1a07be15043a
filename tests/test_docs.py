"""What the documents say about the code is true of the code."""

import ast
import re
import runpy
import shlex
from pathlib import Path
from typing import get_args

import pytest
import typer

from nemo_aopsd.cli.app import app
from nemo_aopsd.cli.options import load_chosen
from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import Weighting, keys_of
from nemo_aopsd.run import layout
from nemo_aopsd.run.metrics import GAP_THRESHOLDS

REPO = Path(__file__).parents[1]
ARCHITECTURE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
DOCUMENT = runpy.run_path(str(REPO / "docs/make_config.py"))
PAPER = REPO.parent / "shared/reference/paper.tex"


def test_the_config_reference_and_the_editor_s_schema_are_made_from_the_schema(tmp_path):
    DOCUMENT["main"](tmp_path)
    for name in ("config.md", "config.schema.json"):
        shipped = (REPO / "docs" / name).read_text(encoding="utf-8")
        assert shipped == (tmp_path / name).read_text(encoding="utf-8"), "python docs/make_config.py"


def test_the_references_of_commands_and_of_the_paper_are_made_from_both(tmp_path):
    runpy.run_path(str(REPO / "docs/make_reference.py"))["main"](tmp_path)
    for name in ("cli.md", "paper_index.md"):
        shipped = (REPO / "docs" / name).read_text(encoding="utf-8")
        assert shipped == (tmp_path / name).read_text(encoding="utf-8"), "python docs/make_reference.py"


def test_every_key_has_a_reason():
    keys = [key for key, _ in keys_of(RunKeys)]
    rows = re.findall(r"^(?:## `([\w.]+)`|\| `(\w+)` \| .* \| .* \| (.+) \|)$", DOCUMENT["markdown"](), re.MULTILINE)
    block, documented = "", []
    for heading, key, text in rows:
        block = heading or block
        if key:
            assert text.strip(), f"{block}.{key}"
            documented.append(f"{block}.{key}")
    parents = {key.rpartition(".")[0] for key in keys}
    assert sorted(documented) == sorted(set(keys) - parents)


def equation_rows():
    return re.findall(r"^\| `((?:eq|sec):[\w-]+)` \|.*?\| (.+?) \|$", ARCHITECTURE, re.MULTILINE)


def defined_in(path):
    """Names of functions and methods, `Class.method` for the latter."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef))


def test_every_place_of_the_equation_table_exists():
    places = [place for _, cell in equation_rows() for place in re.findall(r"`(\S+?):(\S+?)`", cell)]
    assert len(places) >= 8
    for file, name in places:
        assert name in set(defined_in(REPO / "nemo_aopsd" / file)), f"{file}:{name}"


def test_every_equation_of_the_paper_is_in_the_table():
    if not PAPER.exists():
        pytest.skip("the paper's source is not here")
    labels = set(re.findall(r"\\label\{(eq:[\w-]+)\}", PAPER.read_text(encoding="utf-8")))
    assert labels <= {label for label, _ in equation_rows()}


PAGES = {
    str(path.relative_to(REPO)): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "docs/*.md", "containers/*.md", "examples/data/*.md")
    for path in sorted(REPO.glob(pattern))
}
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """Those of its headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", PAGES[page]), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\(.*?\)", "", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_of_it(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", FENCE.sub("", PAGES[page])):
        path = ((REPO / page).parent / target).resolve() if target else REPO / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(str(path.relative_to(REPO))), f"{target}#{anchor}"


def test_the_contents_of_the_log_name_every_entry():
    listed = re.findall(r"^\| \S+ \| .+ \| \[(.+)\]\(#", PAGES["docs/verification.md"], re.MULTILINE)
    assert listed == re.findall(r"^## \d{4}-\d\d-\d\d, (.+)$", PAGES["docs/verification.md"], re.MULTILINE)


def test_the_readme_is_short():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) <= 180 and max(map(len, lines)) <= 120


def test_the_site_has_every_page_once():
    named = re.findall(r"^ +- .*: (\S+\.md)$", (REPO / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


NUMBER = r"(?:rollout|reward|context|judge|dag|gap|probe|train|time)/\w+"


def test_the_run_folder_page_has_every_number_of_a_step_and_no_other():
    package = REPO / "nemo_aopsd"
    sources = [*package.glob("method/**/*.py"), *package.glob("run/*.py"), *package.glob("engines/local/*.py")]
    made = set(re.findall(rf'f?"({NUMBER})"', "".join(path.read_text(encoding="utf-8") for path in sources)))
    made |= {f"gap/{kind}_share_{threshold:g}" for kind in ("token", "mass") for threshold in GAP_THRESHOLDS}
    made |= {f"probe/beta_{sign}" for sign in ("positive", "negative")}
    made |= {f"time/{stage}" for stage in ("rollout", "judge", "student", "teacher", "probes", "update")}
    table = PAGES["docs/run_folder.md"].partition("## metrics.jsonl")[2].partition("## Rollouts")[0]
    assert made == {
        name
        for row in table.splitlines()
        for name in re.findall(f"`({NUMBER})`", row.split("|")[1:2][0] if row[:1] == "|" else "")
    }


def test_the_run_folder_page_has_every_file_that_the_layout_names():
    files = PAGES["docs/run_folder.md"].partition("## metrics.jsonl")[0]
    names = {value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in names if f"`{name}" not in files} == {layout.LABELS, layout.RESULTS, layout.EPOCH}


def test_the_run_folder_page_has_every_field_of_a_rollout():
    source = (REPO / "nemo_aopsd/run/records.py").read_text(encoding="utf-8")
    page = PAGES["docs/run_folder.md"].partition("## Rollouts")[2]
    made = re.findall(r'^ +"(\w+)":', source, re.MULTILINE)
    assert len(made) > 25
    assert [name for name in ("epoch", "step", *made) if f"`{name}`" not in page] == []


def test_every_place_of_the_architecture_page_exists():
    table = ARCHITECTURE.partition("## One problem's way")[2].partition("## From equation")[0]
    for place in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)(?::\w+)?`", table):
        assert any((REPO / root / place).exists() for root in ("nemo_aopsd", "nemo_aopsd/config", "")), place


def test_every_weighting_is_in_the_architecture_page():
    table = ARCHITECTURE.partition("## Which weighting")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE)))
    assert sorted(listed) == sorted(get_args(Weighting))


def command_lines():
    """(page, line) of each command that is meant to be typed: in fenced blocks, and in the heads of example files."""
    for page, text in PAGES.items():
        for _, language, block in FENCE.findall(text):
            if language in ("bash", "sh", "") and page != "CHANGELOG.md":
                for line in block.replace("\\\n", " ").splitlines():
                    yield page, line.strip()
    for path in sorted([*REPO.glob("examples/**/*.yaml"), *REPO.glob("examples/**/*.sh"), *REPO.glob("slurm/*.sh")]):
        for line in re.findall(r"^#\s+(aopsd .+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield str(path.relative_to(REPO)), line


AOPSD_LINES = [(page, line) for page, line in command_lines() if re.match(r"(\w+=\S* )*aopsd ", line)]
RUN_LINES = [(page, line) for page, line in command_lines() if "examples/run_aopsd.py --config" in line]


def parsed(words):
    """What the command that the words name makes of the others; click raises its error where they are wrong."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if words == ["--help"]:
            return {}
        command, words = command.commands[words[0]], words[1:]
    return command.make_context("", words).params


@pytest.mark.parametrize(("page", "line"), AOPSD_LINES)
def test_every_command_of_a_page_is_one_that_aopsd_takes(page, line):
    found = parsed(shlex.split(line.partition("aopsd ")[2], comments=True))
    if settings := found.get("overrides"):
        check_settings(found.get("config") or "demo", settings, found.get("method"))


PROSE = {page: FENCE.sub("", text) for page, text in PAGES.items() if page != "CHANGELOG.md"} | {
    str(path.relative_to(REPO)): path.read_text(encoding="utf-8")
    for folder, kind in (("examples", "py"), ("examples", "yaml"), ("examples", "sh"), ("nemo_aopsd", "yaml"))
    for path in sorted((REPO / folder).rglob(f"*.{kind}"))
}


@pytest.mark.parametrize("page", sorted(PROSE))
def test_every_command_named_in_a_sentence_and_its_options_are_there(page):
    for named in re.findall(r"`(aopsd\s[^`+]+)`", PROSE[page]):
        command, words = typer.main.get_command(app), named.split()[1:]
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, named


@pytest.mark.parametrize(("page", "line"), RUN_LINES)
def test_every_command_of_a_page_for_the_cluster_is_one_that_the_program_takes(page, line):
    found = parsed(["train", *shlex.split(line.partition("--config")[2], comments=True)])
    check_settings(found["config"], found["overrides"] or [], found["method"])


def check_settings(config, settings, method):
    """As the command itself reads them; over the demo, where the page speaks of a file of the user's."""
    path = REPO / config if (REPO / config).is_file() else "demo"
    load_chosen(Path(path), settings, method)


def test_the_pages_have_as_many_commands_as_they_seem_to_have():
    assert len(AOPSD_LINES) > 90 and len(RUN_LINES) >= 3


def test_every_setting_of_a_line_for_slurm_is_read_by_a_script():
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in REPO.glob("slurm/*.sh")}
    read = {
        name for text in scripts.values() for name in re.findall(r"^ *:? ?\"?\$?\{?(AOPSD_\w+)[:=]", text, re.MULTILINE)
    }
    lines = [line for page, line in command_lines() if "slurm/" in line]
    assert len(lines) >= 6
    for line in lines:
        assert set(re.findall(r"(AOPSD_\w+)=", line)) <= read, line
        assert set(re.findall(r"slurm/(\w+)\.sh", line)) <= scripts.keys(), line
