import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from omegaconf import OmegaConf

from nemo_aopsd.analysis.gap_mass import GapMass, percent
from nemo_aopsd.analysis.report import figures, page, panels, write_report
from nemo_aopsd.analysis.report.comparison import read_source
from nemo_aopsd.analysis.report.digest import read_reported
from nemo_aopsd.analysis.report.terms import terms
from nemo_aopsd.clock import duration
from nemo_aopsd.config.schema import (
    UNIFORM,
    AOPSDConfig,
    ContextConfig,
    CurriculumConfig,
    ObjectiveConfig,
    Weighting,
)
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl
from nemo_aopsd.run.record_types import Evaluation, Interval
from tests import REPO
from tests.fake_run import PROBLEM, rewrite, write_run
from tests.run import read


class Page(HTMLParser):
    """Tags with attributes, ids, and the text outside of style sheets."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.tags, self.ids, self.words, self.open = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def small_run(tmp_path: Path, **settings) -> Path:
    return write_run(tmp_path / "run", **({"num_epochs": 1, "steps_per_epoch": 1, "num_held_out": 2} | settings))


def report(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made but not rendered, which takes most of the time."""
    drawn = []
    monkeypatch.setattr(figures, "_finish", lambda figure, name, label: drawn.append(figure) or "<svg></svg>")
    return drawn


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The page of a run that has everything."""
    run = write_run(tmp_path_factory.mktemp("full") / "demo", num_epochs=2, steps_per_epoch=3, num_held_out=6)
    return write_report(run).read_text(encoding="utf-8")


def test_full_run_shows_every_figure(full):
    shown = Page(full)
    figures_shown = [attrs["aria-label"] for tag, attrs in shown.tags if tag == "svg"]
    assert len(figures_shown) == 17
    assert "not shown" not in shown.text
    for title in ("pass@k", "Leak meter", "Gap mass", "Competence", "Where the time goes", "Trigger rate", "Loss"):
        assert title in shown.text
    assert "aopsd train examples/demo.yaml aopsd.seed=0" in shown.text


def test_page_needs_nothing_from_outside(full):
    shown = Page(full)
    assert not {tag for tag, _ in shown.tags} & {"script", "link", "iframe", "img", "object", "embed"}
    for _, attrs in shown.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert attrs.get(name, "#").startswith("#")
    assert "@import" not in full
    assert "http://" not in full and "https://" not in full
    assert all(part.startswith("#") for part in full.split("url(")[1:])


def test_ids_are_unique_and_every_reference_has_a_target(full):
    shown = Page(full)
    assert len(shown.ids) == len(set(shown.ids))
    assert {attrs["href"][1:] for _, attrs in shown.tags if "href" in attrs} <= set(shown.ids)


def test_special_characters_of_a_problem_survive(full):
    shown = Page(full)
    assert PROBLEM in shown.text
    assert "b" not in {tag for tag, _ in shown.tags}  # <b> of the problem is text, not a tag
    assert "\\frac{1}{2}$ & a" in shown.text  # in the drawing of the graph


def test_same_run_gives_the_same_page(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=1, batch=2, evaluations=False)
    for name in ("METHOD", "STEPS"):  # a figure of each kind will do
        monkeypatch.setattr(panels, name, dict(list(getattr(panels, name).items())[:1]))
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_the_answers_worth_is_drawn_and_its_settings_are_told(tmp_path):
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=2, batch=2, evaluations=False)
    assert "reward" not in Page(write_report(run).read_text(encoding="utf-8")).text.lower()
    rewrite(run / "metrics.jsonl", lambda row: row | {"reward/mean": 0.25})
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(config, "aopsd.objective.reward", "added")
    OmegaConf.update(config, "aopsd.num_generations_per_prompt", 2)
    OmegaConf.save(config, run / "config.yaml")
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    assert "Reward" in text and "objective.reward added" in text and "evidence_clip" not in text


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (
            {"context": "solution", "weighting": "uniform", "curriculum": "shuffle"},
            "Continuation surprisal L and its weight; Competence by epoch; Progress and disclosed share; "
            "Trigger rate; Weight of probed tokens; Weight of all tokens; Unreadable verdicts.",
        ),
        ({"evaluations": False}, "pass@k of the bare question."),
        ({"num_epochs": 0}, "Gap mass; Continuation surprisal L and its weight; Where the time goes; Progress and"),
    ],
)
def test_what_a_run_has_no_numbers_for_is_named(undrawn, tmp_path, settings, missing):
    shown = report(small_run(tmp_path, **({"steps_per_epoch": 2, "batch": 2} | settings)))
    assert f"so not shown: {missing}" in shown.text
    assert len([tag for tag, _ in shown.tags if tag == "h3"]) > shown.text.count("so not shown")


def test_run_killed_in_its_third_step(undrawn, tmp_path):
    run = small_run(tmp_path, steps_per_epoch=3, batch=2)
    (run / "eval" / "epoch_000.json").unlink()
    (run / "eval" / "epoch_001.json").unlink()
    (run / "competence.jsonl").unlink()
    path = run / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    path.write_text(path.read_text() + json.dumps(last | {"step": 4, "train/loss": math.nan}) + '\n{"epoch": 0, "st')
    text = report(run).text
    assert "no evaluation has been finished" in text
    assert "so not shown: pass@k of the bare question; Competence by epoch." in text
    assert "4 steps, in epoch 1 of 1" in text and "Loss" in text


def test_missing_problems_file_costs_one_figure_only(undrawn, tmp_path):
    run = small_run(tmp_path)
    whole = len([tag for tag, _ in report(run).tags if tag == "svg"])
    (tmp_path / "problems.jsonl").unlink()
    assert len([tag for tag, _ in report(run).tags if tag == "svg"]) == whole - 1


def test_nothing_to_report_is_a_user_error(tmp_path):
    run = write_run(tmp_path / "run", num_epochs=0, evaluations=False)
    with pytest.raises(UserError, match="run `aopsd report` again"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_gap_mass_by_hand():
    gaps = GapMass([1.5])
    gaps.add(np.array([0.0, 0.5, -1.0, 1.5]))
    gaps.add(np.array([]))
    gaps.add(np.array([-2.0, 25.0]))
    assert gaps.at(1.0) == (4 / 6, 29.5 / 30)
    assert gaps.at(1.5) == (3 / 6, 28.5 / 30)
    assert gaps.at(2.0) == (2 / 6, 27 / 30)
    tokens, mass = gaps.shares()
    assert tokens[0] == mass[0] == 1.0
    assert tokens[-1] == 1 / 6 and mass[-1] == pytest.approx(25 / 30)  # beyond the last edge


def test_empty_response_and_dropped_rollout_are_counted_apart(undrawn, tmp_path):
    run = small_run(tmp_path, batch=3)
    path = run / "rollouts" / "step_000001.jsonl"
    first, second, third = read(path)
    empty = {"response": [], "pieces": [], "student_logprobs": [], "teacher_logprobs": [], "weights": [], "probes": []}
    dropped = {"dropped": True, "student_logprobs": None, "teacher_logprobs": None, "weights": None, "probes": []}
    write_jsonl(path, [first | empty, second | dropped, third])
    digest = read_reported(run).digest
    assert (digest.num_rollouts, digest.num_unscored) == (3, 1)
    assert digest.gaps.tokens.sum() == len(third["response"])
    assert "of 2 rollouts, 1 more were dropped" in report(run).text


def test_digest_sorts_probes_by_sign_and_keeps_telling_ones(tmp_path):
    run = small_run(tmp_path, batch=1)
    table = [(2.5, 1.0, 1.0), (3.0, 4.0, 0.2), (-2.0, 2.5, 0.9), (-4.0, None, 1.0), (-2.2, 0.01, 0.011)]
    probes = [
        {"position": t, "gap": gap, "anchor": 1, "suffix": [2], "nll": nll, "weight": weight}
        for t, (gap, nll, weight) in enumerate(table)
    ]
    rewrite(run / "rollouts/step_000001.jsonl", lambda record: record | {"probes": probes})
    run = read_reported(run)
    assert run.digest.positive == [(1.0, 1.0), (4.0, 0.2)]
    assert run.digest.negative == [(2.5, 0.9), (0.01, 0.011)]
    assert run.digest.num_empty == 1
    shown = [example["probe"] for example in page.examples(run)]
    assert [(probe.gap, probe.nll, probe.weight) for probe in shown] == [
        (2.5, 1.0, 1.0),
        (-2.0, 2.5, 0.9),
        (-2.2, 0.01, 0.011),
    ]


def test_drawn_weight_curve_peaks_at_each_beta(undrawn):
    figures.nll_histograms(np.array([0.5, 1.0, 12.0]), np.array([]), (1.0, 2.5))
    histogram, _, curve, other_curve = undrawn[0].axes
    assert sum(bar.get_height() for bar in histogram.patches) == 3
    assert histogram.patches[-1].get_height() == 1  # 12 nats stand in the last bar
    for axes, beta in ((curve, 1.0), (other_curve, 2.5)):
        line, peak = axes.lines
        assert peak.get_xydata().tolist() == [[beta, 1.0]]
        nll, weight = line.get_xydata().T
        assert weight == pytest.approx(nll / beta * np.exp(1 - nll / beta))


def test_betas_that_change_are_drawn_as_the_newest_step_with_some_had_them(tmp_path, undrawn, monkeypatch):
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=3)
    betas = iter([{"probe/beta_positive": 0.3}, {"probe/beta_negative": 0.7}, {}])
    rewrite(run / "metrics.jsonl", lambda row: row | next(betas))
    drawn = []
    monkeypatch.setattr(figures, "nll_histograms", lambda positive, negative, betas: drawn.append(betas) or "<svg/>")
    write_report(run)
    assert drawn == [(0.3, 0.7)]


def test_pass_at_k_figure_has_the_evaluated_rates_and_bounds(undrawn):
    counts = {"num_samples": 2, "num_problems": 1, "correct_per_problem": {"a": 1}}
    rates = {"leak_rate": 0.0, "truncation_rate": 0.0, "mean_tokens": 5.0}
    figures.pass_at_k(
        [Evaluation(**counts, **rates, pass_at_k={1: 0.5}, pass_at_k_interval={1: Interval(0.25, 0.75)})], [1], {}
    )
    line, low, high = undrawn[0].axes[0].lines
    assert [line.get_ydata().tolist(), low.get_ydata().tolist(), high.get_ydata().tolist()] == [[0.5], [0.25], [0.75]]


def test_leak_meter_puts_evaluations_where_their_epoch_ended(tmp_path, monkeypatch):
    run = read_reported(small_run(tmp_path, num_epochs=2, steps_per_epoch=3, batch=2))
    lines = []
    monkeypatch.setattr(figures, "by_step", lambda name, label, series, **_: lines.extend(series) or "<svg>")
    panels.draw(run, panels.OUTCOME)
    assert lines[1].steps == [0, 3, 6]
    assert lines[1].values == [evaluation.leak_rate for evaluation in run.evaluations]


def test_four_steps_of_twelve_are_no_epoch(tmp_path, undrawn):
    """Tile, table and figure go by step; the epoch that the run ended in is not finished, so it has no minutes."""
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=4, batch=2, num_held_out=2, num_samples=2)
    history = (run / "competence.jsonl").read_text().splitlines(keepends=True)
    (run / "competence.jsonl").write_text(history[0])  # before training
    found = read_reported(run)
    assert page.headline(found)[0].label == "pass@1, step 0 → 4"
    assert [row[0] for row in panels.evaluation_table(found)] == ["step", "0", "4"]
    panels._pass_at_k(found, "")
    (axes,) = undrawn[-1].axes
    assert axes.get_xlabel() == "step" and {round(x) for line in axes.lines for x in line.get_xdata()} == {0, 4}
    assert read_source(run).minutes.text == "-" and [one.step for one in read_source(run).evaluations] == [0, 4]


def test_a_weighting_without_probes_shows_its_weights(tmp_path, monkeypatch):
    run = small_run(tmp_path, steps_per_epoch=2, batch=2, weighting="gap_only")
    weights = {"weight/mean": 0.5, "weight/p5": 0.1, "weight/p50": 0.4, "weight/p95": 0.9}
    rewrite(run / "metrics.jsonl", lambda row: row | weights)
    found, drawn = read_reported(run), {}
    monkeypatch.setattr(figures, "by_step", lambda name, label, lines, **_: drawn.setdefault(label, lines) or "<svg>")
    panels.draw(found, panels.STEPS)
    assert {line.label: line.values for line in drawn["Weight of all tokens"]} == {
        "mean": [0.5, 0.5],
        "5 %": [0.1, 0.1],
        "median": [0.4, 0.4],
        "95 %": [0.9, 0.9],
    }
    assert [tile.value for tile in page.headline(found) if tile.label == "Mean weight"] == ["0.50"]


OWN = f"{REPO}/examples/my_parts.py"
RISING = f"{OWN}:RisingWeights: The teacher is followed more towards the end of a response: w_t = (t + 1) / T."


def test_only_what_the_run_reads_is_listed_and_explained(tmp_path):
    run = small_run(tmp_path, batch=2, weighting=f"{OWN}:RisingWeights", curriculum="shuffle")
    found = dict(page.facts(read_reported(run)))
    assert found["weighting"] == RISING and not [key for key in found if key.startswith(("probes.", "curriculum.ema"))]
    config = run / "config.yaml"
    config.write_text(config.read_text() + "  probes: {threshold: 3.0}\n")  # which the class may read
    assert [key for key in dict(page.facts(read_reported(run))) if key.startswith("probes.")] == ["probes.threshold"]
    words = dict(terms(read_reported(run).method))
    assert RISING in words["weight"] and {"gap", "frontier, or next"} <= words.keys()
    assert not {"probe, triggered", "anchor", "surprise L", "competence"} & words.keys()


@pytest.mark.parametrize(
    ("settings", "has", "lacks"),
    [
        ({}, "surprise L/weight/competence/disclosed", ""),
        ({"weighting": "uniform"}, "gap/competence", "surprise L/weight/anchor"),
        ({"weighting": "gap_only"}, "weight", "surprise L/probe, triggered"),
        (
            {"context": ContextConfig("solution"), "curriculum": CurriculumConfig("shuffle")},
            "weight",
            "reached/progress/reasoning DAG",
        ),
        (
            {"objective": ObjectiveConfig("grpo"), "weighting": "uniform"},
            "pass@k/progress",
            "student, teacher/gap/disclosed",
        ),
    ],
)
def test_a_term_is_explained_where_the_run_has_it(settings, has, lacks):
    words = dict(terms(AOPSDConfig(**settings)))
    assert {*has.split("/")} <= words.keys() and not {*lacks.split("/")} & words.keys()


def test_each_weighting_but_a_uniform_one_has_its_words():
    told = {name: dict(terms(AOPSDConfig(weighting=name))).get("weight") for name in get_args(Weighting)}
    assert {name for name, text in told.items() if text is None} == {*UNIFORM}
    assert len({*told.values()}) == len(told) - 1


def test_the_method_is_called_as_check_calls_it(tmp_path):
    run = small_run(tmp_path, batch=2, curriculum="shuffle")
    config = run / "config.yaml"
    config.write_text(config.read_text() + "  probes: {threshold: 1.0}\n")
    name = "aopsd + curriculum.name=shuffle, probes.threshold=1"
    assert dict(page.facts(read_reported(run)))["method"] == name == read_source(run).method


def test_the_curve_of_the_weight_is_drawn_for_the_weights_that_follow_it(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "nll_histograms", lambda positive, negative, betas: drawn.append(betas) or "<svg/>")
    run = small_run(tmp_path)
    captions = [panels._nll(read_reported(run), "")[0]]
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("weighting: continuation", f"weighting: {OWN}:UnsurprisingOnly"))
    captions.append(panels._nll(read_reported(run), "")[0])
    assert drawn == [(1.0, 2.5), None] and ["w(L)" in caption for caption in captions] == [True, False]


def test_a_stage_of_less_than_a_thousandth_of_the_time_is_not_shown(tmp_path, monkeypatch):
    run = small_run(tmp_path, batch=2)
    seconds = {"rollout": 6.0, "judge": 0.0007, "teacher": 3.0, "student": 1.0, "probes": 0.002, "update": 0.0}
    rewrite(run / "metrics.jsonl", lambda row: row | {f"time/{name}": value for name, value in seconds.items()})
    drawn = []
    monkeypatch.setattr(figures, "by_step", lambda name, label, lines, **_: drawn.extend(lines) or "<svg>")
    caption, _ = panels._stage_times(read_reported(run), "")
    assert [line.label for line in drawn] == ["rollout", "teacher", "student"] and "judge" not in caption


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ((4, 4), "+0.750, 95 % interval of the change [+0.500, +1.000]: better."),
        ((2, 4), "+0.500, no interval of the change: it is +0.500 for each problem: no verdict."),
    ],
)
def test_headline_pairs_the_first_and_the_last_evaluation(tmp_path, last, told):
    run = small_run(tmp_path)
    for epoch, counts in ((0, {"a": 0, "b": 2}), (1, dict(zip("ab", last, strict=True)))):
        path = run / "eval" / f"epoch_{epoch:03d}.json"
        rate = sum(counts.values()) / 8
        change = {"num_problems": 2, "num_samples": 4, "correct_per_problem": counts}
        bounds = {"1": {"low": 0, "high": 1}}
        rest = {"pass_at_k": {"1": rate}, "pass_at_k_interval": bounds}
        path.write_text(json.dumps(json.loads(path.read_text()) | change | rest))
    passed, *_ = page.headline(read_reported(run))
    assert passed.value == f"0.250 → {sum(last) / 8:.3f}"
    assert f"2 of 8 → {sum(last)} of 8 samples correct, n = 2 held-out problems" in passed.detail
    assert passed.detail.endswith(f"Paired change {told}")


@pytest.mark.parametrize(("steps", "value", "hints"), [(16, "0\u00a0% → 12.5\u00a0%", 1), (8, "0\u00a0%", 0)])
def test_the_leak_meter_shows_what_the_hint_judges(tmp_path, steps, value, hints):
    run = small_run(tmp_path)
    [one] = read(run / "metrics.jsonl")
    rows = [one | {"step": step, "rollout/leak_rate": 0.125 * (step > 8)} for step in range(1, steps + 1)]
    write_jsonl(run / "metrics.jsonl", rows)
    found = read_reported(run)
    assert [tile.value for tile in page.headline(found) if tile.label == "Leak meter"] == [value]
    assert sum("is 12 points above" in hint.sentence for hint in page.hints(found)) == hints


def test_many_steps_are_thinned_to_means(undrawn):
    steps = list(range(1, 241))
    values = [math.nan if step == 1 else float(step) for step in steps]
    figures.by_step("loss", "Loss", [figures.Series("loss", steps, values)])
    raw, means = undrawn[0].axes[0].lines
    assert len(raw.get_xdata()) == 240
    assert means.get_xydata()[:2].tolist() == [[3.0, 3.0], [6.5, 6.5]]  # steps 2 to 4, then 5 to 8
    assert len(means.get_xdata()) == 60


def test_percent_and_duration():
    shares = {0: "0 %", 0.0308: "3.08 %", 0.5178: "51.8 %", 1: "100 %", 0.000041: "0.0041 %", 0.9999: "100.0 %"}
    assert {share: percent(share).replace("\u00a0", " ") for share in shares} == shares
    times = {4.25: "4.2 s", 59.9: "60 s", 60: "1 min 0 s", 200: "3 min 20 s", 7500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in times} == times
