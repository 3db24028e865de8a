"""Talk to the cluster's API: find the cluster, send requests, run commands in pods."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from accept.config.extras import Extra, install_hint
from accept.core.errors import AcceptError, BadInput, Exit, NotStarted
from accept.core.text import plain

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A namespace of a cluster; texts that are empty mean what kubectl would take."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def helm(self) -> tuple[list[str], dict[str, str]]:
        """Options and environment that send helm to the same place."""
        options = ["--namespace", self.namespace]
        if self.context:
            options += ["--kube-context", self.context]
        # As an environment variable it may be several files, as an option only one.
        return options, {"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}


def find_place(kubeconfig: str = "", context: str = "", namespace: str = "") -> Place:
    """The place that is meant, nothing left open. Raises NotStarted where there is no cluster."""
    config = client_config()
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = [str(Path(f).expanduser().absolute()) for f in named.split(os.pathsep) if f]
    if not files and not (Path.home() / ".kube" / "config").is_file():
        if not context and (_IN_CLUSTER / "token").is_file():
            own = (_IN_CLUSTER / "namespace").read_text(encoding="utf-8").strip()
            return Place(namespace=namespace or own)
        raise NotStarted(
            "there is no kubeconfig here",
            hint="give --kubeconfig FILE, or set KUBECONFIG, as for kubectl",
        )
    kubeconfig = os.pathsep.join(files) or str(Path.home() / ".kube" / "config")
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
    except Exception as error:
        raise NotStarted(
            f"{plain(kubeconfig)}: {plain(error)}", hint="try: kubectl config get-contexts"
        ) from None
    by_name = {c["name"]: c["context"] for c in contexts or ()}
    context = context or (current or {}).get("name", "")
    if context not in by_name:
        there = ", ".join(sorted(by_name)) or "none"
        raise NotStarted(
            f"there is no context {plain(context)!r}", hint=f"give --context; there are: {there}"
        )
    return Place(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace or by_name[context].get("namespace") or "default",
    )


def client_config() -> Any:
    """Return the module of the Kubernetes client that reads kubeconfigs.

    Raises BadInput if the client is not installed.
    """
    try:
        from kubernetes import config
    except ImportError:
        raise BadInput(
            "the Kubernetes client is not installed here",
            hint=install_hint(Extra.KUBERNETES),
        ) from None
    return config


_CONNECT, _READ = 10.0, 30.0
#: A log that says nothing for this long is asked for anew: its connection may be dead.
_QUIET = 120.0
#: Objects in one answer of a list.
_PAGE = 500
#: A list that grew too old while its pages were fetched is begun again this often.
_ANEW = 5


class ApiError(AcceptError):
    """What the API answered instead of what was asked; `status` 0: it did not answer."""

    #: Where nothing was submitted yet it is 4: see `before_start`.
    code = Exit.BROKEN_OFF

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def gone(self) -> bool:
        """Whether the object is not there."""
        return self.status == 404

    @property
    def passing(self) -> bool:
        """Whether the same may succeed later: no connection, too many requests, a server's error.

        A token that was refused may have been renewed by then.
        """
        return self.status in (0, 401, 408, 410, 429) or self.status >= 500


@contextmanager
def before_start() -> Iterator[None]:
    """What the API refuses while nothing was submitted yet is no start: exit code 4, not 5."""
    try:
        yield
    except ApiError as error:
        raise NotStarted(error.message, hint=error.hint) from error


class Api:
    """One cluster's API. Every method raises ApiError.

    Raises BadInput if the client is not installed, before anything is requested.
    """

    def __init__(self, place: Place) -> None:
        client_config()
        self.place = place
        self._client: Any = None

    def _connected(self) -> Any:
        """The client, made from the configuration that is there now."""
        if self._client is None:
            from kubernetes.client import ApiClient, Configuration

            config = client_config()
            settings = Configuration()
            try:
                if self.place.kubeconfig:
                    config.load_kube_config(
                        config_file=self.place.kubeconfig,
                        context=self.place.context or None,
                        client_configuration=settings,
                        persist_config=False,
                    )
                else:
                    config.load_incluster_config(client_configuration=settings)
            except Exception as error:
                raise ApiError(
                    f"{plain(self.place.context) or 'the cluster'}: {plain(error)}",
                    status=0,
                    hint="try: kubectl get pods",
                ) from None
            # What is tried again is decided here, and not in the layers below.
            settings.retries = False
            self._client = ApiClient(configuration=settings)
        return self._client

    def close(self) -> None:
        """End the connections; they are made again where something is asked."""
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()
            self._client = None

    def _headers(self) -> dict[str, str]:
        settings = self._connected().configuration
        headers = {"Accept": "application/json", "User-Agent": "accept"}
        # Asking for it renews a token that ran out.
        for one in settings.auth_settings().values():
            if one["in"] == "header" and one["value"]:
                headers[str(one["key"])] = str(one["value"])
        return headers

    def access(self) -> tuple[Any, dict[str, str]]:
        """The client's settings, and headers with a token that holds, for what is no request."""
        return self._connected().configuration, self._headers()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        *,
        body: object = None,
        stream: bool = False,
    ) -> Any:
        import urllib3

        for again in (True, False):
            client = self._connected()
            url = f"{client.configuration.host}{path}"
            if query:
                url += "?" + urlencode({key: str(value) for key, value in query.items()})
            headers = self._headers()
            if body is not None:
                headers["Content-Type"] = "application/json"
            try:
                answer = client.rest_client.pool_manager.request(
                    method,
                    url,
                    headers=headers,
                    body=None if body is None else json.dumps(body).encode(),
                    timeout=urllib3.Timeout(connect=_CONNECT, read=_QUIET if stream else _READ),
                    retries=False,
                    preload_content=not stream,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise _silent(client.configuration.host, error) from None
            if answer.status == 401 and again:
                self.close()
                continue
            break
        if not 200 <= answer.status <= 299:
            raise _refused(answer.status, answer.data, f"{method} {path}")
        return answer

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """An object."""
        answer = self._request("GET", path, query)
        return _object(answer.data, path)

    def find(self, path: str, **query: object) -> dict[str, Any] | None:
        """An object; None where there is none, or no such kind."""
        try:
            return self.get(path, **query)
        except ApiError as error:
            if error.gone:
                return None
            raise

    def items(self, path: str, **query: object) -> list[dict[str, Any]]:
        """All objects of a list, page by page."""
        for left in range(_ANEW, -1, -1):
            found: list[dict[str, Any]] = []
            more = ""
            try:
                while True:
                    page = self.get(
                        path, limit=_PAGE, **query, **({"continue": more} if more else {})
                    )
                    found += page.get("items") or []
                    more = (page.get("metadata") or {}).get("continue") or ""
                    if not more:
                        return found
            except ApiError as error:
                # Gone: the list moved on while it was read.
                if error.status != 410 or not left:
                    raise
        raise AssertionError("unreachable")

    def create(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Make an object."""
        return _object(self._request("POST", path, {}, body=body).data, path)

    def delete(self, path: str) -> None:
        """Delete an object, and what it owns after it; one that is gone already is fine."""
        try:
            self._request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if not error.gone:
                raise

    def log(self, pod: str, container: str, **query: object) -> Iterator[bytes]:
        """The lines of a container's log with their ends, as they come; the last may have none."""
        import urllib3

        path = f"/api/v1/namespaces/{self.place.namespace}/pods/{pod}/log"
        answer = self._request("GET", path, {"container": container, **query}, stream=True)
        rest = b""
        try:
            for block in answer.stream(1 << 16):
                *lines, rest = (rest + block).split(b"\n")
                yield from (line + b"\n" for line in lines)
            if rest:
                yield rest
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _silent(self._connected().configuration.host, error) from None
        finally:
            answer.close()


def _object(data: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(f"{path}: the answer is no object of Kubernetes", status=0)
    return value


def _silent(host: str, error: object) -> ApiError:
    return ApiError(
        f"{plain(host)} does not answer: {plain(error, 200)}",
        status=0,
        hint="try: kubectl get pods; another cluster: --context",
    )


def _refused(status: int, data: bytes, what: str) -> ApiError:
    try:
        message = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        message = data[:300].decode(errors="replace")
    hint = ""
    if status == 401:
        hint = "log in again, as for kubectl"
    elif status == 403:
        hint = "accept doctor --backend kubernetes --rbac prints the Role that is needed"
    return ApiError(plain(message) or f"{what}: status {status}", status=status, hint=hint)


#: The first byte of a frame, in the protocols v4 and v5 of channel.k8s.io.
_OUT, _ERR, _STATUS = 1, 2, 3
#: How long one read waits, so that the deadline of the whole is seen, in seconds.
_READ_BYTES = 1.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command in a container left; `exit` is None where the connection broke."""

    exit: int | None
    out: str
    err: str


def execute(
    api: Api,
    pod: str,
    container: str,
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    sink: Callable[[bytes], None] | None = None,
) -> Done:
    """Run a command in a container, for at most `timeout` seconds. Raises ApiError.

    With a `sink` its output goes there as it comes, byte for byte, and nothing of it is kept; else
    it is read as text.
    """
    from kubernetes.stream.ws_client import create_websocket
    from websocket import WebSocketException

    settings, headers = api.access()
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    path = f"/api/v1/namespaces/{api.place.namespace}/pods/{pod}/exec"
    url = f"{settings.host}{path}?{urlencode(query)}".replace("http", "ws", 1)
    until = time.monotonic() + timeout
    try:
        socket = create_websocket(settings, url, headers)
    except (WebSocketException, OSError, ValueError) as error:
        status = getattr(error, "status_code", None) or 0
        raise ApiError(f"exec in {plain(pod)}: {plain(error)}", status=int(status)) from None
    kept: dict[int, list[bytes]] = {_OUT: [], _ERR: [], _STATUS: []}
    broken = ""
    try:
        for channel, content in _frames(socket, until):
            if isinstance(content, Exception):
                broken = plain(content)
            elif channel == _OUT and sink is not None:
                sink(content)
            elif channel in kept:
                kept[channel].append(content)
    finally:
        # Closing alone leaves the socket open where the other side closed first.
        socket.shutdown()
    out, err, told = (b"".join(kept[c]) for c in (_OUT, _ERR, _STATUS))
    return Done(
        exit=_exit_of(told),
        out=out.decode(errors="replace"),
        err=broken or err.decode(errors="replace"),
    )


def _frames(socket: Any, until: float) -> Iterator[tuple[int, bytes | Exception]]:
    """Channel and content of each frame until the other side closes or the time is over.

    A connection that breaks comes as its error: what is done with a frame may fail in ways alike.
    """
    from websocket import ABNF, WebSocketException, WebSocketTimeoutException

    socket.settimeout(_READ_BYTES)
    while time.monotonic() < until:
        try:
            code, frame = socket.recv_data_frame()
        except WebSocketTimeoutException:
            # What came of a frame so far is kept by the socket.
            continue
        except (WebSocketException, OSError) as error:
            yield 0, error
            return
        if code == ABNF.OPCODE_CLOSE:
            return
        if frame.data:
            yield frame.data[0], frame.data[1:]


def _exit_of(told: bytes) -> int | None:
    """The exit status that comes last; None where the connection ended before it."""
    try:
        status = json.loads(told)
        if status["status"] == "Success":
            return 0
        return int(status["details"]["causes"][0]["message"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
