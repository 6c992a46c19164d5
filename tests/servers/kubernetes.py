"""An API server of Kubernetes that runs pods as processes, with the entrypoint of `infra/kubernetes`.

It knows the requests that Spark sends, and nothing of nodes, images, limits and permissions. A pod has the environment and
the files of its container, with the address 127.0.0.1, and the Python of the tests.
"""

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyspark
import yaml  # type: ignore[import-untyped]  # only its results are used, which are Any
from servers.spark import clean_environment

from infra.common import kill_below

ENTRYPOINT = Path(__file__).parents[2] / "infra" / "kubernetes" / "entrypoint"

ADDRESS = "127.0.0.1"

_API = "/api/v1/namespaces/default/"
_NOW = "2026-01-01T00:00:00Z"

_KINDS = {
    "configmaps": "ConfigMapList",
    "persistentvolumeclaims": "PersistentVolumeClaimList",
    "pods": "PodList",
    "services": "ServiceList",
}

_TERM = re.compile(r"([\w./-]+)\s*(!=|=| in )\s*(\([^)]*\)|[^,]*)")

Manifest = dict[str, Any]


@dataclass(slots=True)
class Kubernetes:
    """A namespace `default`.

    Attributes:
        directory: A directory for each pod, with its files and its output in `log`.
        secrets: The data of Secrets, by their names.
        objects: The objects by kind and name; kinds are those of URLs, for example `pods`.
        pods: All pods that were created, in order, those too that were deleted.
    """

    directory: Path
    secrets: dict[str, dict[str, str]]
    objects: dict[str, dict[str, Manifest]] = field(default_factory=dict)
    pods: list[Manifest] = field(default_factory=list)
    port: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def master(self) -> str:
        """The URL for `--master`."""
        return f"k8s://http://{ADDRESS}:{self.port}"

    def wait_for_end(self, role: str, *, number: int, timeout_s: float) -> str:
        """Wait until a pod has ended, and return its phase.

        Args:
            role: `driver` or `executor`.
            number: How many pods of this role were created before.
            timeout_s: The test fails if it takes longer.
        """

        def phase() -> str:
            pods = [pod for pod in self.pods if pod["metadata"]["labels"]["spark-role"] == role]
            return str(pods[number]["status"]["phase"]) if len(pods) > number else ""

        with self._changed:
            has_ended = self._changed.wait_for(
                lambda: phase() in {"Succeeded", "Failed"}, timeout_s
            )
        assert has_ended, f"{role} {number} is {phase() or 'missing'}:\n{self.logs()}"
        return phase()

    def logs(self) -> str:
        """Return the last lines of the output of each pod."""
        files = sorted(self.directory.glob("*/log"))
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def select(self, kind: str, selector: str) -> list[Manifest]:
        """Return the objects with the labels of a selector such as `a=b,c!=d,e in (f,g)`."""
        terms = _TERM.findall(selector)
        with self._changed:
            return [
                manifest
                for manifest in self.objects.get(kind, {}).values()
                if all(_fits(manifest["metadata"].get("labels", {}), *term) for term in terms)
            ]

    def get(self, kind: str, name: str) -> Manifest | None:
        with self._changed:
            return self.objects.get(kind, {}).get(name)

    def apply(self, kind: str, manifest: Manifest) -> Manifest:
        """Create an object, or replace its declared parts."""
        with self._changed:
            objects = self.objects.setdefault(kind, {})
            metadata = manifest.setdefault("metadata", {})
            name = metadata.setdefault("name", f"{kind}-{uuid.uuid4().hex[:8]}")
            existing = objects.get(name)
            if existing is not None:
                existing["metadata"] |= metadata
                existing |= {
                    key: value
                    for key, value in manifest.items()
                    if key not in {"metadata", "status"}
                }
                return existing
            metadata |= {
                "namespace": "default",
                "uid": str(uuid.uuid4()),
                "creationTimestamp": _NOW,
                "resourceVersion": "1",
            }
            objects[name] = manifest
            self._changed.notify_all()
            if kind == "pods":
                self.pods.append(manifest)
                manifest["status"] = {"phase": "Pending"}
                threading.Thread(target=self._run, args=(manifest,), daemon=True).start()
            return manifest

    def delete(self, kind: str, name: str) -> None:
        with self._changed:
            self.objects.get(kind, {}).pop(name, None)
        if kind == "pods":
            kill_below(self.directory / name)

    def _run(self, pod: Manifest) -> None:
        home = self.directory / pod["metadata"]["name"]
        home.mkdir()
        container = pod["spec"]["containers"][0]
        paths = self._mount(pod, home)

        def local(text: str) -> str:
            for mounted, path in paths.items():
                text = text.replace(mounted, str(path))
            return text

        values = {entry["name"]: self._value(pod, entry) for entry in container["env"]}
        environment = {
            **clean_environment(),
            "SPARK_HOME": os.fspath(Path(pyspark.__file__).parent),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **{name: local(value) for name, value in values.items()},
        }
        with open(home / "log", "wb") as log:
            process = subprocess.Popen(
                [ENTRYPOINT, *map(local, container["args"])],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._report(pod, "Running", {"running": {"startedAt": _NOW}})
            status = process.wait()
        ended = {"terminated": {"exitCode": status if status >= 0 else 128 - status}}
        kill_below(home)  # Python workers
        self._report(pod, "Failed" if status else "Succeeded", ended)

    def _report(self, pod: Manifest, phase: str, state: Manifest) -> None:
        container = {"name": pod["spec"]["containers"][0]["name"], "state": state}
        with self._changed:
            pod["status"] = {
                "phase": phase,
                "podIP": ADDRESS,
                "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
                "containerStatuses": [container],
            }
            self._changed.notify_all()

    def _mount(self, pod: Manifest, home: Path) -> dict[str, Path]:
        """Make the volumes of a pod; returns their directories by the paths in the container."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        paths = {}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
            directory = home / mount["name"]
            directory.mkdir()
            paths[mount["mountPath"]] = directory
            if "configMap" in volumes[mount["name"]]:
                name = volumes[mount["name"]]["configMap"]["name"]
                with self._changed:  # the driver's is created after its pod
                    self._changed.wait_for(partial(self.get, "configmaps", name))
                for file, text in (self.get("configmaps", name) or {}).get("data", {}).items():
                    (directory / file).write_text(_without_services(text))
        return paths

    def _value(self, pod: Manifest, entry: Manifest) -> str:
        """Return the value of an environment variable."""
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            return self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        if "fieldRef" in source:
            fields = {"status.podIP": ADDRESS, "metadata.name": pod["metadata"]["name"]}
            return str(fields[source["fieldRef"]["fieldPath"]])
        return str(entry.get("value", ""))


def _fits(labels: dict[str, str], label: str, operation: str, value: str) -> bool:
    values = value.strip("()").split(",")
    return (labels.get(label) in values) != (operation == "!=")


def _without_services(text: str) -> str:
    """Return a file of settings in which the driver has an address instead of the name of its service."""
    lines = text.splitlines()
    return "\n".join(
        f"spark.driver.host={ADDRESS}" if line.startswith("spark.driver.host=") else line
        for line in lines
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, cluster: Kubernetes, *arguments: Any) -> None:
        self.cluster = cluster
        super().__init__(*arguments)  # it handles the requests

    def do_GET(self) -> None:
        kind, name = self._target()
        if "watch=" in self.path:
            self._answer(None)
        elif name:
            self._answer(self.cluster.get(kind, name))
        else:
            items = self.cluster.select(kind, self._selector())
            self._answer({"kind": _KINDS[kind], "apiVersion": "v1", "metadata": {}, "items": items})

    def do_POST(self) -> None:
        kind, _ = self._target()
        self._answer(self.cluster.apply(kind, self._body()), 201)

    def do_PATCH(self) -> None:
        kind, name = self._target()
        body = self._body()
        body.setdefault("metadata", {}).setdefault("name", name)
        self._answer(self.cluster.apply(kind, body))

    def do_PUT(self) -> None:
        self.do_PATCH()

    def do_DELETE(self) -> None:
        self._body()
        kind, name = self._target()
        selected = self.cluster.select(kind, self._selector())
        names = [name] if name else [manifest["metadata"]["name"] for manifest in selected]
        for deleted in names:
            self.cluster.delete(kind, deleted)
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _target(self) -> tuple[str, str]:
        kind, _, name = urlsplit(self.path).path.removeprefix(_API).partition("/")
        return kind, name

    def _selector(self) -> str:
        return parse_qs(urlsplit(self.path).query).get("labelSelector", [""])[0]

    def _body(self) -> Manifest:
        body = yaml.safe_load(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        return body if isinstance(body, dict) else {}

    def _answer(self, answer: Manifest | None, status: int = 200) -> None:
        if answer is None:
            status = 404
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def kubernetes(directory: Path, secrets: dict[str, dict[str, str]]) -> Iterator[Kubernetes]:
    """Run an API server; its pods are killed after the block."""
    cluster = Kubernetes(directory, secrets)
    server = ThreadingHTTPServer((ADDRESS, 0), partial(_Handler, cluster))
    cluster.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        kill_below(directory)
        server.shutdown()
        server.server_close()
        thread.join()
