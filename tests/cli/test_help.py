"""The help: every command in a user's order, with examples that parse; and the list of methods."""

import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError

import pytest
import typer
from rich.console import Console

from nemo_aopsd.cli import app as cli
from nemo_aopsd.cli.compare import list_briefly
from nemo_aopsd.config.shipped import list_methods
from nemo_aopsd.errors import UserError
from tests import REPO


def commands(command=None, words=()):
    """Name and command of all that there are, in the order of the help."""
    command = command or typer.main.get_command(cli.app)
    if inside := getattr(command, "commands", None):
        for name in command.list_commands(None):
            yield from commands(inside[name], (*words, name))
    else:
        yield " ".join(words), command


def parsed(line):
    """The command of a line, once click has taken its options and arguments. Raises what click does."""
    _, *words = shlex.split(line)
    command, names = typer.main.get_command(cli.app), []
    while inside := getattr(command, "commands", None):
        names.append(words.pop(0))
        command = inside[names[-1]]
    command.make_context(names[-1], words)
    return " ".join(names)


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda each: each if isinstance(each, str) else "")
def test_every_command_shows_three_examples_that_parse(name, command):
    head, *lines = command.epilog.split("\n\n")
    assert head == "Examples:" and len(set(lines)) == len(lines) == 3
    assert [parsed(line) for line in lines] == [name] * 3


@pytest.mark.parametrize("line", ["aopsd evaluate", "aopsd train demo --stepz 3", "aopsd grade a.jsonl b.jsonl"])
def test_a_line_that_is_wrong_does_not_parse(line):
    with pytest.raises(typer.BadParameter.__base__):
        parsed(line)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("aopsd train demo --method aopsd --method=opsd", "--method"),
        ("aopsd evaluate a --thinking --no-thinking", "--thinking/--no-thinking"),
        ("aopsd train demo --check --check", None),
        ("aopsd compare embedded --only base --only aopsd", None),
        ("aopsd paired-test a b c", None),
    ],
)
def test_an_option_of_one_value_that_is_given_twice_is_refused(line, name):
    with pytest.raises(UserError, match=f"^{name}: takes one value, but is given 2") if name else nullcontext():
        parsed(line)


def test_the_help_lists_every_command_in_a_user_s_order(command_line):
    found = [name for name, _ in commands()]
    order = [
        *("demo", "preview", "methods", "data prepare", "dag check", "judge eval", "grade", "doctor", "plan", "train"),
        *("export", "evaluate", "report", "paired-test", "compare", "diagnose gaps", "audit report"),
    ]
    assert sorted(order, key=found.index) == order
    code, text, _ = command_line("--help")
    assert code == 0 and all(panel in text for panel in cli.PANELS)
    there = typer.main.get_command(cli.app).commands
    assert sorted(there) == sorted(name for names in cli.PANELS.values() for name in names)  # none is left out
    assert command_line("preview --help")[0] == 0
    assert re.fullmatch(r"aopsd \d+\.\d+\S*\n", command_line("--version")[1])


def test_a_python_that_lacks_what_the_command_needs_is_one_line():
    """As NeMo RL's environment with nothing beside it: -S leaves out all that is installed."""
    command = [sys.executable, "-S", "-m", "nemo_aopsd", "--help"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("error: typer is not installed") and "containers/README.md" in done.stderr


def test_the_version_of_a_checkout_that_is_not_installed_is_its_folder(command_line, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", absent)
    assert command_line("--version")[:2] == (0, f"aopsd of {REPO}, which is not installed\n")


def test_methods_are_a_line_each_and_one_by_name_is_whole(command_line):
    code, text, _ = command_line("methods")
    methods = {method.name: method for method in list_methods()}
    assert code == 0
    for name, method in methods.items():
        assert len(re.findall(rf"^ *{re.escape(name)} .*{re.escape(method.title)}", text, re.MULTILINE)) == 1
    narrow = io.StringIO()
    list_briefly(list(methods.values()), Console(file=narrow, width=80, force_terminal=True, color_system=None))
    lines = narrow.getvalue().splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= set(methods)
    assert max(map(len, lines)) <= 80 and len(lines) < len(methods) + 12
    code, text, _ = command_line("methods opsd")
    assert code == 0 and "tab:main_results: OPSD" in text and "aopsd.objective.token_clip=0.05" in text.splitlines()
    assert [each["name"] for each in json.loads(command_line("methods opsd --json")[1])] == ["opsd"]
    code, _, err = command_line("methods ops")
    assert code == 2 and "`opsd`?" in err
