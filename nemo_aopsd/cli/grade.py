"""The command `aopsd grade`: verdicts on a file of responses, or the grader against labelled cases."""

from pathlib import Path
from typing import Annotated

import typer

from nemo_aopsd.cli.options import Commands, say
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import keep_inputs, write_jsonl
from nemo_aopsd.grading import cases as labelled

app = Commands()


@app.example(
    "aopsd grade responses.jsonl",
    "aopsd grade responses.jsonl --out grades.jsonl",
    "aopsd grade --cases labelled.jsonl --boxed",
)
def grade(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Responses, one JSON object a line: id, answer, output.")
    ] = None,
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Labelled cases instead: gold, output, expected.")
    ] = None,
    boxed: Annotated[
        bool, typer.Option("--boxed", help="Cases: an output without a box is wrong, as in training and evaluation.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="GRADES.jsonl", help="Also write every verdict.")] = None,
) -> None:
    """Grade final answers: the last box after the thoughts. A case without a box is searched for its answer."""
    if bool(file) == bool(cases):
        raise UserError("expected one file: FILE with responses, or --cases FILE.jsonl with labelled cases.")
    if boxed and file:
        raise UserError("--boxed goes with --cases; responses are always graded by their box. Leave it out.")
    keep_inputs([out], [("FILE", file), ("--cases", cases)])
    if cases:
        loaded = labelled.load_cases(cases)
        grades = labelled.grade_cases(loaded, boxed=boxed)
        names: list[object] = [case.name for case in loaded]
        lines = list(labelled.report(loaded, grades))
    else:
        assert file  # as there are no cases
        graded = labelled.grade_file(file)
        names, grades = [row["id"] for row, _ in graded], [given for _, given in graded]
        correct = sum(given.correct for given in grades)
        lines = [f"{name}: {labelled.named(given)}" for name, given in zip(names, grades, strict=True)]
        lines += [labelled.counts_line(grades), f"{correct} of {len(grades)} correct"]
    if out:
        write_jsonl(
            out,
            (
                {"id": name, "correct": given.correct, "reason": given.reason, "cause": given.cause}
                for name, given in zip(names, grades, strict=True)
            ),
        )
    say(lines)
