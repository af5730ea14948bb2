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

from local_pods import pods_of

CONFIG = """apiVersion: v1
kind: Config
current-context: fake
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
clusters: [{{name: fake, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: fake, user: {{}}}}]
"""


class FakeApi:
    """TrainJobs, their pods and logs; ``refuse`` is said to whoever creates one.

    ``pending`` is why no pod is started: they wait for that. ``seen`` are the bodies, ``calls``
    group, resource and verb of every request. ``rules`` are those of a Role: what they do not allow
    is forbidden; None allows all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refuse: str | None = None
        self.pending: str | None = None
        self.seen: list[dict[str, Any]] = []
        self.calls: set[tuple[str, str, str]] = set()
        self.rules: list[dict[str, Any]] | None = None
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

    def allows(self, group: str, resource: str, verb: str) -> bool:
        """Note a request; whether the rules let it through, as RBAC adds them up."""
        self.calls.add((group, resource, verb))
        return self.rules is None or any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.rules
        )

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

    def _asked(self, verb: str) -> tuple[str, str] | None:
        """Resource and name of a request that is allowed; None where it was answered with 403.

        ``/api/v1/namespaces/NS/pods/NAME/log``, ``/apis/GROUP/VERSION/namespaces/NS/trainjobs``.
        """
        words = self.path.partition("?")[0].strip("/").split("/")
        group = words[1] if words[0] == "apis" else ""
        kind, name, *below = (*words[words.index("namespaces") + 2 :], "")
        resource = "/".join([kind, *filter(None, below)])
        if verb == "get" and not name:
            verb = "list"
        if self.api.allows(group, resource, verb):
            return resource, name
        self._send({"message": f"cannot {verb} resource {resource!r}", "code": 403}, 403)
        return None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._asked("create") is None:
            return
        if self.api.refuse is not None:
            self._send({"message": self.api.refuse, "code": 403}, 403)
            return
        self.api.create(body)
        self._send(body, 201)

    def do_GET(self) -> None:
        asked = self._asked("get")
        if asked is None:
            return
        resource, name = asked
        if resource == "pods/log":
            self._send((self.api.folder / f"{name}.log").read_text())
        elif resource == "pods":
            of = self.path.partition("?")[2].split("%3D")[-1]
            self._send({"kind": "PodList", "items": self.api.pods(of)})
        elif name in self.api.names:
            self._send(self.api.job(name))
        else:
            self._send({"message": "not found", "code": 404}, 404)

    def do_DELETE(self) -> None:
        asked = self._asked("delete")
        if asked is None:
            return
        if asked[1] not in self.api.names:
            self._send({"message": "not found", "code": 404}, 404)
            return
        self.api.delete(asked[1])
        self._send({"status": "Success"})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
