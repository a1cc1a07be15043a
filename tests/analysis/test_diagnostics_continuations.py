"""Table 1 on continuations whose words are the tokens, so that every count can be read off the page."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from nemo_aopsd.analysis.diagnostics.continuations import diagnose_continuations, load_decoder
from nemo_aopsd.analysis.diagnostics.patterns import first_end, load_patterns
from nemo_aopsd.analysis.diagnostics.steps import Steps
from nemo_aopsd.cli.diagnose import app as diagnose_app
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.reader import load_run
from tests.diagnosed import rollout, write_config, write_rollouts

WORDS = [" But", " wait", " the", " private", " DAG", " says", " x", " is", " an", " error", " err", "or", "ata", "s"]
STUDENT, TEACHER = "gap > 0: the student's token kept, as in the paper", "gap < 0: from the teacher's own token"


SCORED = {"nll": 1.0, "weight": 1.0}


def decode(tokens):
    return "".join(WORDS[token] for token in tokens)


def probe(position, gap, text):
    """`text` with `|` between tokens; the first is the anchor."""
    anchor, *suffix = [WORDS.index(piece) for piece in text.split("|")]
    return {
        "position": position,
        "gap": gap,
        "anchor": anchor,
        "anchor_text": WORDS[anchor],
        "suffix": suffix,
        **SCORED,
    }


def write_probed(folder, *probes_of_rollouts, extra="  probes: {length: 4}\n"):
    run = write_config(folder / "run", extra=extra)
    records = [rollout(f"p{i % 2}", [0.0] * 16, probes=probes) for i, probes in enumerate(probes_of_rollouts)]
    write_rollouts(run, records)
    return run


def cumulative(result, table, kind):
    rows = result.tables[table]
    return [row[kind] for row in rows]


def test_cumulative_counts_by_k(tmp_path):
    """A cue counts from the token on that completes it, under the sign of its gap."""
    run = write_probed(
        tmp_path,
        [probe(0, 3.0, " But| wait| the| x"), probe(9, -2.0, " the| private| DAG| says")],  # cue at 2; context at 3
        [probe(0, 2.5, " is| an| err|or"), probe(4, -4.0, " x")],  # cue at 4; nothing
        [probe(0, -2.5, " wait"), probe(7, -2.5, " wait| the| DAG")],  # cue at 1; cue at 1 and context at 3
    )
    result = diagnose_continuations(run, decode=decode)
    cues, context = "correction cues", "references to the private context"
    assert cumulative(result, STUDENT, cues) == [0, 1, 1, 2]
    assert cumulative(result, STUDENT, context) == [0, 0, 0, 0]
    assert cumulative(result, TEACHER, cues) == [2, 2, 2, 2]
    assert cumulative(result, TEACHER, context) == [0, 0, 2, 2]
    assert cumulative(result, "All events", cues) == [2, 3, 3, 4]
    assert cumulative(result, "All events", "events") == [6] * 4
    shares = [share.value for share in cumulative(result, "All events", "share of events, correction")]
    assert shares == pytest.approx([2 / 6, 3 / 6, 3 / 6, 4 / 6])
    assert cumulative(result, STUDENT, "first at this k, correction") == ["", "But wait", "", "is an error"]
    assert result.samples == {
        "rollouts": 3,
        "probes of the run": 6,
        "non-overlapping events": 6,
        "of these gap > 0": 2,
        "problems with an event": 2,
    }


def test_a_word_that_goes_on_is_no_cue(tmp_path):
    """` err|or|ata` is no error, though its first two tokens are one."""
    run = write_probed(tmp_path, [probe(0, 2.0, " an| err|or|ata"), probe(9, 2.0, " an| err|or|s")])
    result = diagnose_continuations(run, decode=decode)
    assert cumulative(result, STUDENT, "correction cues") == [0, 0, 0, 1]


def test_events_do_not_overlap_and_pass_the_threshold(tmp_path):
    """Windows of 4 tokens, taken from the left, whatever order the run has them in."""
    positions = [8, 3, 0, 4, 7]
    run = write_probed(tmp_path, [probe(at, 2.0 + at, " wait| x") for at in positions])
    assert diagnose_continuations(run, decode=decode).samples["non-overlapping events"] == 3  # 0, 4, 8
    high = diagnose_continuations(run, decode=decode, threshold=5.0)
    assert high.samples["non-overlapping events"] == 2  # 3, 7
    assert high.samples["probes of the run"] == 5


def test_one_sign_only_leaves_the_other_table_empty(tmp_path):
    run = write_probed(tmp_path, [probe(0, 2.0, " wait")], extra="  probes: {length: 4, max_per_rollout: 3}\n")
    result = diagnose_continuations(run, decode=decode)
    assert [len(rows) for rows in result.tables.values()] == [4, 0, 4]
    assert any("only the 3 largest gaps" in note for note in result.notes)


def test_what_cannot_be_counted_is_refused(tmp_path):
    run = write_probed(tmp_path, [probe(0, 2.0, " wait")])
    with pytest.raises(UserError, match=r"probed only where \|gap\| >= 2"):
        diagnose_continuations(run, decode=decode, threshold=1.0)
    with pytest.raises(UserError, match=r"1 rollouts with 1 probes, none with \|gap\| >= 9"):
        diagnose_continuations(run, decode=decode, threshold=9.0)
    with pytest.raises(UserError, match="no rollout of steps 5 to end"):
        diagnose_continuations(run, decode=decode, steps=Steps(first=5))
    with pytest.raises(UserError, match=r"token 1 is ' wait' in the run, 'BUT' with this tokenizer"):
        diagnose_continuations(run, decode=lambda tokens: "BUT")
    for weighting in ("normalised", "parts.py:Mine"):  # which ask for continuations, too
        config = write_probed(tmp_path, [probe(0, 2.0, " wait")]) / "config.yaml"
        config.write_text(config.read_text().replace("weighting: continuation", f"weighting: {weighting}"))
        assert diagnose_continuations(config.parent, decode=decode).samples["probes of the run"] == 1
    uniform = write_config(tmp_path / "uniform", weighting="uniform")
    with pytest.raises(UserError, match=r"no continuations with aopsd\.weighting=uniform"):
        diagnose_continuations(uniform, decode=decode)
    unnamed = probe(0, 2.0, " wait") | {"anchor_text": None}
    with pytest.raises(UserError, match=r"step_000001\.jsonl:1: `anchor_text`"):
        diagnose_continuations(write_probed(tmp_path, [unnamed]), decode=decode)
    cut = probe(0, 2.0, " wait")
    del cut["suffix"]
    with pytest.raises(UserError, match="suffix`"):
        diagnose_continuations(write_probed(tmp_path, [cut]), decode=decode)


# Patterns

PATTERNS = load_patterns("default").by_kind


PHRASES = {
    "correction": [
        *("an error", "Not quite—", "the density argument must be flawed", "Or maybe we made a mistake?"),
        *("Wait—not necessarily.", "Hold on, x is", "let me recheck", "等等，这里不对", "so this seems wrong"),
    ],
    "reference": [
        *("original DAG", "checking the private reasoning DAG", "go back to the private reasoning DAG"),
        *("This matches the reasoning in the DAG", "earlier in the DAG, it says", "the given solution uses"),
        *("根据参考答案", "the reference answer is"),
    ],
    "neither": [
        *("so the sum is 10", "the standard errors of x", "the error bound", "waiting time", "a path in the graph"),
        "the correct sign",
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PHRASES.items() for text in texts])
def test_the_papers_phrases_and_more(kind, text):
    found = [name for name, patterns in PATTERNS.items() if first_end(text, patterns) is not None]
    assert found == ([] if kind == "neither" else [kind])


def test_the_match_that_ends_first_counts():
    known = load_patterns("default").by_kind["reference"]
    assert first_end("the DAG and the DAG", known) == len("the DAG")


def test_patterns_of_ones_own(tmp_path):
    own = tmp_path / "german.yaml"
    own.write_text("correction: {de: ['\\bmoment\\b', '\\bstimmt nicht\\b']}\n")
    run = write_probed(tmp_path, [probe(0, 2.0, " x| is")], [probe(0, 2.0, " wait")])
    plain = diagnose_continuations(run, decode=decode)
    assert cumulative(plain, "All events", "correction cues") == [1] * 4
    own.write_text("correction: {de: ['\\bX\\b']}\n")
    more = diagnose_continuations(run, decode=decode, patterns=[own])
    assert cumulative(more, "All events", "correction cues") == [2] * 4
    assert str(own) in more.settings["patterns"] and "leaks.txt of default" in more.settings["patterns"]


def test_a_family_of_ones_own_falls_back_and_says_so(tmp_path):
    (tmp_path / "leaks.txt").write_text("hush\n")
    found = load_patterns(str(tmp_path))
    assert found.files[0].endswith("default/continuations.yaml")
    assert first_end("hush", found.by_kind["reference"]) == 4
    (tmp_path / "continuations.yaml").write_text("reference: {en: [psst]}\n")
    found = load_patterns(str(tmp_path))
    assert found.files[0] == str(tmp_path / "continuations.yaml")
    assert found.by_kind["correction"] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "not readable as YAML"),
        ("- a", "``: .* Expected `correction:`"),
        ("corrections: {en: [a]}", "`corrections.*Expected `correction:`"),
        ("correction: [a]", "`correction`: "),
        ("correction: {en: a}", r"`correction\.en`: "),
        ("correction: {en: ['(a']}", r"`correction\.en`: .* in '\(a'"),
        ("reference: {en: ['a*']}", r"'a\*' matches"),
    ],
)
def test_bad_pattern_files_are_named(tmp_path, content, message):
    file = tmp_path / "own.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        load_patterns("default", [file])
    assert str(file) in str(caught.value)
    with pytest.raises(UserError, match=r"gone\.yaml"):
        load_patterns("default", [tmp_path / "gone.yaml"])


# The tokenizer of the run


def save_tokenizer(folder):
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=" x"))
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def test_the_command_reads_the_runs_own_tokenizer(tmp_path):
    run = write_probed(tmp_path, [probe(0, 2.0, " But| wait| the| DAG")])
    write_config(run, extra="  probes: {length: 4}\n", model=tmp_path / "moved")
    missing = CliRunner().invoke(diagnose_app, ["continuations", str(run)])
    assert isinstance(missing.exception, UserError) and "--tokenizer DIR" in str(missing.exception)
    folder = save_tokenizer(tmp_path / "tokenizer")
    found = CliRunner().invoke(diagnose_app, ["continuations", str(run), "--tokenizer", str(folder)])
    assert found.exit_code == 0, found.output
    rows = json.loads((run / "diagnostics/continuations.json").read_text())["tables"]["All events"]
    assert [row["references to the private context"] for row in rows] == [0, 0, 0, 1]
    assert [row["correction cues"] for row in rows] == [0, 1, 1, 1]
    assert rows[3]["first at this k, reference"] == "But wait the DAG"
    write_config(run, extra="  probes: {length: 4}\n", model=folder)
    assert load_decoder(load_run(run).config)([0, 1]) == " But wait"
