"""Talk to the cluster's API: find the cluster, send requests, run commands in pods."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from accept.config.extras import Extra, install_hint
from accept.core.errors import AcceptError, BadInput, Exit, NotStarted
from accept.core.text import duration, plain

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A namespace of a cluster; an empty text means kubectl's own choice."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def helm(self) -> tuple[list[str], dict[str, str]]:
        """Return the options and the environment that send helm to the same place."""
        options = ["--namespace", self.namespace]
        if self.context:
            options += ["--kube-context", self.context]
        # The environment variable may list several files, the option only one.
        return options, {"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}


def find_place(kubeconfig: str = "", context: str = "", namespace: str = "") -> Place:
    """Return the place with every field decided. Raises NotStarted if there is no cluster."""
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


_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
#: Seconds without a new line after which a log is requested again: the connection may be dead.
_LOG_READ_SECONDS = 120.0
#: Objects in one page of a list.
_PAGE_SIZE = 500
#: How often a list is started again if its pages expire while they are fetched.
_LIST_RETRIES = 5


class ApiError(AcceptError):
    """An error that the API returned; `status` is 0 if it did not answer."""

    #: Before a run is submitted the code is 4, see `before_start`.
    exit = Exit.BROKEN_OFF

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def gone(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later.

        That is so without a connection, after too many requests, and after a server error. A token
        that was refused may have been renewed by then.
        """
        return self.status in (0, 401, 408, 410, 429) or self.status >= 500


@contextmanager
def before_start() -> Iterator[None]:
    """Turn an ApiError into NotStarted (exit code 4, not 5), as nothing was submitted yet."""
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
        """Return the client; make it from the present configuration if there is none."""
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
            # This class decides what is tried again, not the layers below it.
            settings.retries = False
            self._client = ApiClient(configuration=settings)
        return self._client

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()
            self._client = None

    def _headers(self) -> dict[str, str]:
        settings = self._connected().configuration
        headers = {"Accept": "application/json", "User-Agent": "accept"}
        # Reading the settings renews an expired token.
        for setting in settings.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                headers[str(setting["key"])] = str(setting["value"])
        return headers

    def access(self) -> tuple[Any, dict[str, str]]:
        """Return the client's settings, and headers with a valid token, for a websocket."""
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

        for may_retry in (True, False):
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
                    timeout=urllib3.Timeout(
                        connect=_CONNECT_SECONDS,
                        read=_LOG_READ_SECONDS if stream else _READ_SECONDS,
                    ),
                    retries=False,
                    preload_content=not stream,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise _unreachable(client.configuration.host, error) from None
            if answer.status == 401 and may_retry:
                self.close()
                continue
            break
        if not 200 <= answer.status <= 299:
            raise _refused(answer.status, answer.data, f"{method} {path}")
        return answer

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return an object."""
        answer = self._request("GET", path, query)
        return _parse_object(answer.data, path)

    def find(self, path: str, **query: object) -> dict[str, Any] | None:
        """Return an object, or None if the object or its kind does not exist."""
        try:
            return self.get(path, **query)
        except ApiError as error:
            if error.gone:
                return None
            raise

    def items(self, path: str, **query: object) -> list[dict[str, Any]]:
        """Return all objects of a list, which is fetched page by page."""
        for retries_left in range(_LIST_RETRIES, -1, -1):
            objects: list[dict[str, Any]] = []
            next_page = ""
            try:
                while True:
                    page = self.get(
                        path,
                        limit=_PAGE_SIZE,
                        **query,
                        **({"continue": next_page} if next_page else {}),
                    )
                    objects += page.get("items") or []
                    next_page = (page.get("metadata") or {}).get("continue") or ""
                    if not next_page:
                        return objects
            except ApiError as error:
                # 410 Gone: the list changed too much while it was read.
                if error.status != 410 or not retries_left:
                    raise
        raise AssertionError("unreachable")

    def create(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Create an object."""
        return _parse_object(self._request("POST", path, {}, body=body).data, path)

    def delete(self, path: str) -> None:
        """Delete an object, and then what it owns. An object that does not exist is no error."""
        try:
            self._request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if not error.gone:
                raise

    def log(self, pod: str, container: str, **query: object) -> Iterator[bytes]:
        """Yield the lines of a container's log as they come, with line ends.

        The last line may lack its end.
        """
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
            raise _unreachable(self._connected().configuration.host, error) from None
        finally:
            answer.close()


def _parse_object(data: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(f"{path}: the answer is no object of Kubernetes", status=0)
    return value


def _unreachable(host: str, error: object) -> ApiError:
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
#: Seconds that one read waits, so that the deadline of the command is checked in time.
_RECEIVE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The result of a command; `exit` is None if the connection broke before the command ended."""

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
) -> CommandResult:
    """Run a command in a container, for at most `timeout` seconds. Raises ApiError.

    With a `sink`, the output is passed to it unmodified as it comes, and is not kept. Without one,
    the output is returned as text.
    """
    settings, headers = api.access()
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    path = f"/api/v1/namespaces/{api.place.namespace}/pods/{pod}/exec"
    url = f"{settings.host}{path}?{urlencode(query)}".replace("http", "ws", 1)
    until = time.monotonic() + timeout
    socket = _open_websocket(settings, url, headers, pod, timeout)
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
        # `close` leaves the socket open if the other side closed first.
        socket.shutdown()
    out, err, final_status = (b"".join(kept[c]) for c in (_OUT, _ERR, _STATUS))
    return CommandResult(
        exit=_exit_status(final_status),
        out=out.decode(errors="replace"),
        err=broken or err.decode(errors="replace"),
    )


def _open_websocket(
    settings: Any, url: str, headers: Mapping[str, str], pod: str, timeout: float
) -> Any:
    """Open a websocket within `timeout` seconds. Raises ApiError.

    The library has no limit for a server that accepts the connection and does not answer, so a
    thread waits for it. A websocket that opens too late is closed.
    """
    from kubernetes.stream.ws_client import create_websocket
    from websocket import WebSocketException

    result: Future[Any] = Future()

    def connect() -> None:
        try:
            socket = create_websocket(settings, url, headers)
        except BaseException as error:
            with suppress(InvalidStateError):
                result.set_exception(error)
            return
        try:
            result.set_result(socket)
        except InvalidStateError:
            socket.shutdown()

    threading.Thread(target=connect, daemon=True).start()
    wait([result], timeout)
    if result.cancel():
        raise ApiError(f"exec in {plain(pod)}: no connection within {duration(timeout)}", status=0)
    try:
        return result.result()
    except (WebSocketException, OSError, ValueError) as error:
        status = getattr(error, "status_code", None) or 0
        raise ApiError(f"exec in {plain(pod)}: {plain(error)}", status=int(status)) from None


def _frames(socket: Any, until: float) -> Iterator[tuple[int, bytes | Exception]]:
    """Yield channel and content of each frame until the other side closes or the time is over.

    If the connection breaks, the last content is the error. It is not raised, because the caller's
    own work with a frame may raise the same types.
    """
    from websocket import ABNF, WebSocketException, WebSocketTimeoutException

    socket.settimeout(_RECEIVE_SECONDS)
    while time.monotonic() < until:
        try:
            code, frame = socket.recv_data_frame()
        except WebSocketTimeoutException:
            # The socket keeps the part of a frame that has arrived.
            continue
        except (WebSocketException, OSError) as error:
            yield 0, error
            return
        if code == ABNF.OPCODE_CLOSE:
            return
        if frame.data:
            yield frame.data[0], frame.data[1:]


def _exit_status(final_status: bytes) -> int | None:
    """Return the exit code in the last frame, or None if the connection ended before it."""
    try:
        status = json.loads(final_status)
        if status["status"] == "Success":
            return 0
        return int(status["details"]["causes"][0]["message"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
