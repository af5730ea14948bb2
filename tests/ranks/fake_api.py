"""A stub of the API of Kubernetes that runs the commands of a TrainJob's pods as processes here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cputune.verifier.pods import pods_of

CONFIG = """apiVersion: v1
kind: Config
current-context: fake
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
clusters: [{{name: fake, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: fake, user: {{}}}}]
"""


class FakeApi:
    """TrainJobs, their pods and logs; ``refuse`` is said to whoever creates one.

    ``pending`` is why no pod is started: they wait for that. ``seen`` are the bodies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refuse: str | None = None
        self.pending: str | None = None
        self.seen: list[dict[str, Any]] = []
        self.verbs: set[tuple[str, str]] = set()
        self._pods: dict[str, list[subprocess.Popen[bytes]]] = {}
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.config = folder / "kubeconfig"
        self.config.write_text(CONFIG.format(port=self._server.server_address[1]))

    @property
    def names(self) -> list[str]:
        """Of the TrainJobs that are there."""
        return list(self._pods)

    def close(self) -> None:
        for name in self.names:
            self.delete(name)
        self._server.shutdown()
        self._server.server_close()

    def create(self, document: dict[str, Any]) -> None:
        self.seen.append(document)
        name = document["metadata"]["name"]
        self._pods[name] = []
        if self.pending is not None:
            return
        beside = self.folder / "trainjob.yaml"
        environment = {"PYTHON": sys.executable, **os.environ}
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        volumes = self.folder / "volumes"
        for number, pod in enumerate(pods_of(document, beside, cpus, volumes, environment)):
            with (self.folder / f"{name}-{number}.log").open("wb") as log:
                argv, env = list(pod.argv), dict(pod.environment)
                self._pods[name].append(
                    subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
                )

    def delete(self, name: str) -> None:
        for process in self._pods.pop(name):
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()

    def job(self, name: str) -> dict[str, Any]:
        codes = [process.poll() for process in self._pods[name]]
        kind = "Failed" if any(codes) else "Complete" if codes and None not in codes else None
        told = [{"type": kind, "status": "True", "message": "as its pods"}] if kind else []
        return {"metadata": {"name": name}, "status": {"conditions": told}}

    def pods(self, name: str) -> list[dict[str, Any]]:
        if self.pending is not None and name in self._pods:
            waits = {"type": "PodScheduled", "status": "False", "message": self.pending}
            status: dict[str, Any] = {"phase": "Pending", "conditions": [waits]}
            return [{"metadata": {"name": f"{name}-0"}, "status": status}]
        return [
            {"metadata": {"name": f"{name}-{number}"}, "status": {"phase": "Running"}}
            for number, _ in enumerate(self._pods.get(name, ()))
        ]


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi

    def _send(self, body: object, code: int = 200) -> None:
        text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.api.verbs.add(("create", "trainjobs"))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.api.refuse is not None:
            self._send({"message": self.api.refuse, "code": 403}, 403)
            return
        self.api.create(body)
        self._send(body, 201)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        last = path.rsplit("/", 1)[-1]
        if last == "log":
            self.api.verbs.add(("get", "pods/log"))
            self._send((self.api.folder / f"{path.split('/')[-2]}.log").read_text())
        elif last == "pods":
            self.api.verbs.add(("list", "pods"))
            self._send({"kind": "PodList", "items": self.api.pods(query.split("%3D")[-1])})
        elif last in self.api.names:
            self.api.verbs.add(("get", "trainjobs"))
            self._send(self.api.job(last))
        else:
            self._send({"message": "not found", "code": 404}, 404)

    def do_DELETE(self) -> None:
        self.api.verbs.add(("delete", "trainjobs"))
        name = self.path.partition("?")[0].rsplit("/", 1)[-1]
        if name not in self.api.names:
            self._send({"message": "not found", "code": 404}, 404)
            return
        self.api.delete(name)
        self._send({"status": "Success"})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
