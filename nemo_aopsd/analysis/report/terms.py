"""The words of the page, for a run that has what they stand for; and what the user's own classes say of themselves."""

from nemo_aopsd.config.extension import is_own, own_class, own_names
from nemo_aopsd.config.schema import AOPSDConfig

_BAND_PASS = "w(L) = (L/β) exp(1 − L/β), from 0 to 1, multiplies the gap of a probed token"
_BY_GAP = "w = (g/β) exp(1 − g/β) of g = |gap| multiplies the gap of a token whose |gap| is at least δ"
_ELSEWHERE = ". Other tokens have the weight of probes.untriggered_weight, 1 unless it is set."
_WEIGHTS = {
    "continuation": f"{_BAND_PASS}{_ELSEWHERE}",
    "normalised": f"{_BAND_PASS}, divided by the step's mean, at most probes.max_weight{_ELSEWHERE}",
    "shuffled": f"{_BAND_PASS}, after the step's weights have changed places at random{_ELSEWHERE}",
    "constant": f"The step's mean of w(L): {_BAND_PASS}{_ELSEWHERE}",
    "gap_matched": f"{_BY_GAP}, scaled: the sum of w|gap| is that of w(L) = (L/β) exp(1 − L/β){_ELSEWHERE}",
    "gap_only": f"{_BY_GAP}{_ELSEWHERE}",
    "zero_triggered": "0 at a token whose |gap| is at least δ (probes.threshold), 1 at the others.",
}


_TEACHER = {
    "student, teacher": "One model in two roles. The student reads the bare question; the teacher reads the question "
    "and a private context. Only the student learns.",
    "gap": "Teacher log-prob less student log-prob of a sampled token, in nats. Positive: the teacher likes it more.",
    "gap mass": "Sum of |gap| over tokens.",
}
_GRAPH = {
    "reasoning DAG": "Checkpoints of a solution; an edge runs from a direct prerequisite to what depends on it.",
    "disclosed": "Share of a graph's checkpoints that the teacher was shown.",
    "reached": "Checkpoints that the judge found in the attempt, with all their prerequisites.",
    "progress": "Share of a graph's checkpoints that an attempt reached.",
    "frontier, or next": "Checkpoints not reached whose prerequisites all are. The teacher is shown these and the "
    "reached ones.",
    "competence": "A problem's running mean of progress; the curriculum orders the problems by it.",
}
_PROBES = {
    "probe, triggered": "A look at what the teacher would write next, at a token whose |gap| is at least δ "
    "(probes.threshold).",
    "anchor": "Where the probe starts: the student's token if the gap is positive, else the teacher's choice.",
    "continuation, or suffix": "What the teacher writes greedily after the anchor, at most k − 1 tokens.",
    "surprise L": "Mean negative log-prob of the continuation under the student, in nats a token. Near 0: no news. "
    "Large: foreign, often a shortcut from the private context.",
}


def own_parts(aopsd: AOPSDConfig) -> dict[str, str]:
    """Key below `aopsd`, and the user's class there with the first line of its docstring."""
    named = own_names(aopsd)
    about = {key: (own_class(key, name).__doc__ or "").strip().partition("\n")[0] for key, name in named.items()}
    return {key: f"{name}: {about[key]}" if about[key] else name for key, name in named.items()}


def terms(aopsd: AOPSDConfig) -> list[tuple[str, str]]:
    """What the page says of this run, by word."""
    words = {"rollout": "One response that the student sampled, with everything that was computed about it."}
    shows_graph, judged = aopsd.shown_context.startswith("dag"), aopsd.needs_progress
    of_graph = {
        "reasoning DAG": shows_graph or judged,
        "disclosed": shows_graph,
        "reached": judged,
        "progress": judged,
        "frontier, or next": aopsd.shown_context == "dag_frontier",
        "competence": aopsd.curriculum.needs_progress,
    }
    words |= _TEACHER if aopsd.objective.reads_teacher else {}
    words |= {word: _GRAPH[word] for word, is_there in of_graph.items() if is_there}
    words |= _PROBES if aopsd.objective.reads_teacher and aopsd.continues else {}
    if is_own(aopsd.weighting):
        words["weight"] = f"w multiplies the gap of a token. By {own_parts(aopsd)['weighting']}"
    elif aopsd.weighting in _WEIGHTS:
        words["weight"] = _WEIGHTS[aopsd.weighting]
    words["pass@k"] = "Chance that at least one of k samples is correct, from n samples without bias."
    words["leak meter"] = "Rate of question-only responses that refer to a context that the student never saw."
    return [*words.items()]
