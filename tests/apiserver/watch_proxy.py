"""Stands between an operator and the API server, cuts all watches, and says that their place in history is gone."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3

from local_cluster.control_plane import ControlPlane
from tests.apiserver.chaos.api import administrator

GONE = {
    "type": "ERROR",
    "object": {
        **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
        **{"message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410},
    },
}
"""What the API server sends to a watch of a revision that it no longer has: status 200, and this as the only event."""


class WatchProxy:
    """Plain HTTP on `url`; what is asked is passed on with the administrator's rights.

    `cut` ends every watch and lets none begin; after `go_on` each is told once that its place is gone.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._server_url = plane.url
        self._pool = administrator(plane, maxsize=64)
        self.watched: set[str] = set()
        """Paths of all watches so far."""
        self.gone: set[str] = set()
        """Paths of those that were told so."""
        self._late: set[str] = set()
        self._open = threading.Event()
        self._open.set()
        self._streams: set[Any] = set()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, urllib3.exceptions.HTTPError):  # either side has hung up
                    self.close_connection = True

            def pass_on(self) -> None:
                proxy._pass_on(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def kubeconfig(self, path: Path) -> Path:
        cluster = {"name": "proxy", "cluster": {"server": self.url}}
        context = {"name": "proxy", "context": {"cluster": "proxy", "user": "nobody", "namespace": "default"}}
        users = [{"name": "nobody", "user": {}}]
        more = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "proxy"}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **more}))
        return path

    def cut(self) -> None:
        with self._lock:
            self._open.clear()
            self._late = set(self.watched)
            for answer in self._streams:
                answer.shutdown()

    def go_on(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.cut()
        self._open.set()
        self._server.shutdown()
        self._server.server_close()

    def _pass_on(self, request: BaseHTTPRequestHandler) -> None:
        asked = urlsplit(request.path)
        query = parse_qs(asked.query)
        watches = query.get("watch") == ["true"]
        if watches:
            self._open.wait()
            with self._lock:
                late = asked.path in self._late
                self._late.discard(asked.path)
            if late:
                self._begin_stream(request, 200, "application/json")
                request.wfile.write(json.dumps(GONE).encode() + b"\n")
                self.gone.add(asked.path)
                return
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0)) or None
        headers = {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
        answer = self._pool.request(
            request.command, self._server_url + request.path, body=body, headers=headers, preload_content=False
        )
        if watches:
            self._stream(request, asked.path, answer)
        else:
            data = answer.read()
            request.send_response(answer.status)
            request.send_header("Content-Type", answer.headers["Content-Type"])
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
        answer.release_conn()

    def _begin_stream(self, request: BaseHTTPRequestHandler, status: int, content: str) -> None:
        request.close_connection = True
        request.send_response(status)
        request.send_header("Content-Type", content)
        request.send_header("Connection", "close")
        request.end_headers()

    def _stream(self, request: BaseHTTPRequestHandler, path: str, answer: Any) -> None:
        self._begin_stream(request, answer.status, answer.headers["Content-Type"])
        with self._lock:
            self.watched.add(path)
            self._streams.add(answer)
        try:
            for data in answer.stream():
                request.wfile.write(data)
        finally:
            with self._lock:
                self._streams.discard(answer)
            answer.close()
