"""A minimal OpenAI-compatible server on transformers, for trying the tools without a server that is made for it.

    python -m benchmarks.transformers_server MODEL --port 8000

MODEL is a Hugging Face directory or a .gguf file. One request at a time; no structured output, no streaming.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tokenizer: ClassVar[Any]
    model: ClassVar[Any]
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "response_format" in body:
            return self.reply(400, {"error": {"message": "response_format is not supported"}})
        prompt = self.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        length = prompt["input_ids"].shape[1]
        room = self.model.config.max_position_embeddings - length
        if room < 1:
            return self.reply(400, {"error": {"message": f"prompt of {length} tokens exceeds the context length"}})
        temperature = body.get("temperature", 0.0)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        limit = min(room, body.get("max_tokens", 1024))
        with self.lock, torch.inference_mode():
            tokens = self.model.generate(**prompt, max_new_tokens=limit, **sampling)[0, length:].tolist()
        finished = tokens[-1] == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        choice = {"index": 0, "finish_reason": "stop" if finished else "length"}
        choice["message"] = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": length, "completion_tokens": len(tokens), "total_tokens": length + len(tokens)}
        self.reply(200, {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage})

    def reply(self, status: int, answer: dict) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    where = arguments.model
    source = {"pretrained_model_name_or_path": where}
    if where.suffix == ".gguf":
        source = {"pretrained_model_name_or_path": where.parent, "gguf_file": where.name}
    Handler.tokenizer = AutoTokenizer.from_pretrained(**source)
    Handler.model = AutoModelForCausalLM.from_pretrained(**source).eval()
    print(f"serving {where} on port {arguments.port}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
