"""The grading process: one JSON request per line on standard input, one JSON reply per line on standard output.

It ends when its input ends, so it never outlives the process that asked. What a comparison prints goes to standard
error, or it would be taken for a reply.
"""

import json
import logging
import os
import resource
import sys
from typing import TextIO

_MOST_MEMORY = 4 * 2**30  # bytes; beyond it a computation ends as MemoryError, and not the machine
_WARM_UP = (
    ("\\frac{1}{2}+x", "x+\\frac{2}{4}"),
    ("\\sin(2x)\\sqrt{x}", "2\\sin x\\cos x\\sqrt{x}"),
    ("2x+y=\\log 2", "y=\\ln 2-2x"),
    ("x<1 \\cup x>2", "[-x,2)"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}+1", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ("x+y<1", "1>y+x"),
)


def answer_requests(requests: TextIO, replies: TextIO) -> None:
    """Reply to each request in turn: `{"verdict": true | false | null}` or `{"error": "..."}`.

    Nothing is remembered from one request to the next, so a verdict does not depend on those before.
    """
    from nemo_aopsd.grading import algebra, formula
    from nemo_aopsd.grading.budget import Overspent, budget

    operations = {
        "same": algebra.same_answer,
        "anywhere": algebra.same_anywhere,
        "reads": lambda text, _: formula.parse(text) is not None,
    }
    for line in requests:
        request = json.loads(line)
        algebra.same_value.cache_clear()
        try:
            with budget():
                reply = {"verdict": operations[request["operation"]](request["predicted"], request["gold"])}
        except Overspent as error:
            reply = {"error": f"too much work: {error}"}
        except Exception as error:  # sympy raises all kinds; the caller counts every one
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    logging.disable(logging.CRITICAL)
    sys.set_int_max_str_digits(0)
    from nemo_aopsd.grading import algebra

    for predicted, gold in _WARM_UP:  # imports what a comparison would else import at its own cost
        algebra.same_answer(predicted, gold)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    answer_requests(sys.stdin, replies)
