"""Recorded answers of a model that turns problems about rectangles into graphs."""

import json
import re
from pathlib import Path
from typing import Any

from tests.chat_server import Reply

STAGES = {
    "You turn": "produce",
    "You review": "judge",
    "You mend a dense": "repair",
    "You compress": "compress",
    "You mend a compressed": "recompress",
    "You describe": "contexts",
}


def problem(number: int) -> dict[str, Any]:
    """Problem `number`: a rectangle of number + 20 by number + 30; its answer is the area plus one half."""
    a, b = number + 20, number + 30
    return {
        "id": f"p{number}",
        "problem": f"Rectangle {number} has width {a} and is ten longer than wide. What is its area plus one half?",
        "answer": rf"\frac{{{2 * a * b + 1}}}{{2}}",
        "solution": f"The length is {b}, half of it {b / 2}. The area is {a} times {b}. Adding one half ends it.",
    }


def write_problems(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(problem(number)) + "\n" for number in range(count)), encoding="utf-8")
    return path


def identify(body: dict[str, Any]) -> tuple[str, str]:
    """(problem id, stage) of a request."""
    text = body["messages"][0]["content"]
    stage = next(name for start, name in STAGES.items() if text.startswith(start))
    return "p" + re.search(r"Rectangle (\d+)", text)[1], stage


def dense(number: int) -> dict[str, Any]:
    row = problem(number)
    return checkpoints(
        (f"The length is {number + 30}", []),
        (f"Half of the length is {(number + 30) / 2}", [1]),
        (f"The area is {number + 20} times {number + 30}", [1, 2]),
        (f"The result is {row['answer']}", [3]),
    )


def compressed(number: int) -> dict[str, Any]:
    """With one transitive edge, 1 -> 3."""
    graph = checkpoints(
        (f"The length is {number + 30}", []),
        (f"Half of the length is {(number + 30) / 2}", [1]),
        (f"The area is {number + 20} times {number + 30}", [1, 2]),
    )
    return graph | {"answer_requires": ["3"]}


def checkpoints(*items: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "checkpoints": [
            {"id": str(index), "statement": statement, "requires": [str(parent) for parent in requires]}
            for index, (statement, requires) in enumerate(items, start=1)
        ]
    }


def good(problem_id: str, stage: str) -> Any:
    """What a capable model answers."""
    number = int(problem_id[1:])
    match stage:
        case "produce" | "repair":
            return dense(number)
        case "judge":
            return {"verdict": "accept", "defects": []}
        case "compress" | "recompress":
            return compressed(number)
        case "contexts":
            return {"plan": ["Find the length", "Multiply", "Add one half"], "subproblems": ["How long?", "What area?"]}


def answer_well(body: dict[str, Any], headers: dict[str, str], delay: float = 0.0) -> Reply:
    return Reply(json.dumps(good(*identify(body))), delay=delay)
