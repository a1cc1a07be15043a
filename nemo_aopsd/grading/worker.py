"""The grading process: one JSON request per line on standard input, one JSON reply per line on standard output.

It ends when its input ends, so it never outlives the process that asked. What a comparison prints goes to standard
error, or it would be taken for a reply.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from typing import TextIO

_MOST_MEMORY = 4 * 2**30  # bytes; a factorial of 10^8 ends as MemoryError and not the machine


def answer_requests(requests: TextIO, replies: TextIO) -> None:
    """Reply to each request in turn: `{"verdict": true | false | null}` or `{"error": "..."}`."""
    from nemo_aopsd.grading import algebra

    operations = {"same": algebra.same_answer, "anywhere": algebra.same_anywhere, "reads": algebra.reads}
    for line in requests:
        request = json.loads(line)
        try:
            reply = {"verdict": operations[request["operation"]](request["predicted"], request["gold"])}
        except Exception as error:  # sympy raises all kinds; the caller counts every one
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    """Serve the pipes of this process."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    logging.disable(logging.CRITICAL)
    sys.set_int_max_str_digits(0)
    from nemo_aopsd.grading import algebra

    algebra.same_value("\\frac{1}{2}+x", "x+\\frac{2}{4}")  # loads the parser, which takes most of a second
    print(json.dumps({"ready": True}), file=replies, flush=True)
    answer_requests(sys.stdin, replies)
