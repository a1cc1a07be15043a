"""As much of the Hugging Face hub as the download of one data set needs, on a free port of this machine."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

COMMIT = "a" * 40


class HubServer:
    """`with HubServer("owner/name", {"data/train-0.jsonl": b"..."}) as hub:`; `hub.url`; `hub.paths` as they came.

    `status` and `code` (the hub's own header) refuse everything; `cut` ends each file after that many bytes.
    """

    def __init__(
        self, hub_id: str, files: dict[str, bytes], *, status: int = 200, code: str = "", cut: int | None = None
    ):
        self.hub_id, self.files, self.status, self.code, self.cut = hub_id, files, status, code, cut
        self.paths: list[str] = []

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.paths.append(path)
        status, body, headers, is_file = self._find(path)
        request.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[: self.cut] if is_file else body)

    def _find(self, path: str) -> tuple[int, bytes, dict[str, str], bool]:
        """(status, body, headers, whether it is a file of the data set)"""
        if self.status != 200:
            return self.status, b"", {"X-Error-Code": self.code} if self.code else {}, False
        api, resolve = f"/api/datasets/{self.hub_id}", f"/datasets/{self.hub_id}/resolve/{COMMIT}/"
        if path.startswith(f"{api}/tree/"):
            return 200, json.dumps([self._entry(name) for name in self.files]).encode(), _JSON, False
        if path in (api, f"{api}/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, json.dumps({"id": self.hub_id, "sha": COMMIT, "siblings": siblings}).encode(), _JSON, False
        name = path.removeprefix(resolve)
        if name != path and name in self.files:
            tag = hashlib.sha1(self.files[name]).hexdigest()
            return 200, self.files[name], {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, True
        return 404, b"", {}, False

    def _entry(self, name: str) -> dict[str, object]:
        content = self.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


_JSON = {"Content-Type": "application/json"}
