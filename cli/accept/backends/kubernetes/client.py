"""Talk to the cluster's API through the official client: find the cluster, send requests.

Requests go to paths of the API, without the client's models: to import those takes longer than most
commands, and release 37 validates every field of an answer. `objects` reads the needed fields.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from accept.backends.job import Place
from accept.backends.kubernetes.objects import (
    POD,
    AnyObject_co,
    Document,
    Kind,
    list_at,
    text_at,
    value_at,
)
from accept.config import Site
from accept.config.extras import Extra, install_hint
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput, Exit, NotStarted
from accept.core.text import command_line, plain
from accept.plan.resolve import ClusterPlace

if TYPE_CHECKING:
    from types import ModuleType

    from kubernetes.client import ApiClient, ApiException
    from urllib3 import BaseHTTPResponse

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
            "no kubeconfig found: neither KUBECONFIG nor ~/.kube/config names a cluster",
            code=Code.KUBE_CONFIG_MISSING,
            hint="give --kubeconfig FILE, or set KUBECONFIG, as for kubectl",
        )
    kubeconfig = os.pathsep.join(files) or str(Path.home() / ".kube" / "config")
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
    except Exception as error:
        known = isinstance(error, config.ConfigException)
        reason = plain(error) if known else "this is not a kubeconfig"
        if not any(Path(file).exists() for file in kubeconfig.split(os.pathsep)):
            reason = "there is no such file"
        words = ("kubectl", "--kubeconfig", kubeconfig, "config", "get-contexts")
        raise NotStarted(
            f"{plain(kubeconfig)}: {reason}",
            code=Code.KUBE_CONFIG_INVALID,
            hint=f"try: {command_line(*words)}",
        ) from None
    by_name = {c["name"]: c["context"] for c in contexts or ()}
    context = context or (current or {}).get("name", "")
    if context not in by_name:
        raise NotStarted(
            f"the kubeconfig has no context {plain(context)!r}",
            code=Code.KUBE_CONTEXT,
            hint=f"give --context; available: {', '.join(sorted(by_name)) or 'none'}",
        )
    return Place(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace or by_name[context].get("namespace") or "default",
    )


def resolve_place(place: ClusterPlace, site: Site) -> Place:
    """Return where a run goes: from the options, else the site file, else kubectl's own choice."""
    return find_place(
        place.kubeconfig or "",
        place.context or "",
        place.namespace or site.kubernetes.namespace or "",
    )


def client_config() -> ModuleType:
    """Return the module of the Kubernetes client that reads kubeconfigs.

    Raises BadInput if the client is not installed.
    """
    try:
        from kubernetes import config
    except ImportError:
        raise BadInput(
            "the Kubernetes client is not installed here",
            code=Code.KUBE_CLIENT_MISSING,
            hint=install_hint(Extra.KUBERNETES),
        ) from None
    module: ModuleType = config
    return module


@cache
def library() -> ModuleType:
    """Return the Kubernetes client, which is imported when it is first used."""
    from kubernetes import client

    module: ModuleType = client
    return module


_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
#: Seconds without a new line after which a log is requested again: the connection may be dead.
_LOG_READ_SECONDS = 120.0
#: Number of objects in one page of a list.
_PAGE_SIZE = 500
#: Maximum size of an answer, of a refusal, and of a line of a log that is kept whole, in bytes.
_MOST_ANSWER, _MOST_REFUSAL, _MOST_LINE = 64 << 20, 1 << 20, 64 << 10
#: Number of times that a list is started again if its pages expire while they are fetched.
_LIST_RETRIES = 5

_CODES = {
    0: Code.KUBE_UNREACHABLE,
    401: Code.KUBE_LOGIN,
    403: Code.KUBE_FORBIDDEN,
    404: Code.KUBE_NOT_FOUND,
    409: Code.KUBE_CONFLICT,
}
ROLE_HINT = "the Role that is needed: accept doctor --backend kubernetes --rbac"
_HINTS = {
    0: "try: kubectl get pods; another cluster: --context",
    401: "log in again, as for kubectl",
    403: ROLE_HINT,
}


class ApiError(AcceptError):
    """An error that the API returned; `status` is 0 if it did not answer."""

    #: Before a run is submitted, it is 4 (see `before_start`).
    exit = Exit.INTERRUPTED

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(
            message,
            code=_CODES.get(status, Code.KUBE_REFUSED),
            hint=_HINTS.get(status, "") if hint is None else hint,
        )
        self.status = status

    @property
    def gone(self) -> bool:
        """Return whether the object does not exist."""
        return self.status == 404

    @property
    def passing(self) -> bool:
        """Return whether the same request may succeed later.

        This is the case without a connection, after too many requests, and after a server error. A
        refused token may also have been renewed by then.
        """
        return self.status in (0, 401, 408, 410, 429) or self.status >= 500


@contextmanager
def before_start(what: str = "") -> Iterator[None]:
    """Turn an ApiError into NotStarted (exit code 4, not 5), as nothing was submitted yet.

    Its message begins with `what`.
    """
    try:
        yield
    except ApiError as error:
        raise NotStarted(f"{what}{error.message}", code=error.code, hint=error.hint) from error


#: The query of a request.
Query = Mapping[str, str]
_NONE: Query = {}


class Api:
    """One cluster's API. Every method raises ApiError.

    Raises BadInput if the client is not installed, before anything is requested.
    """

    def __init__(self, place: Place) -> None:
        client_config()
        self.place = place
        self._client: ApiClient | None = None

    def connected(self) -> ApiClient:
        """Return the client; make it from the current configuration if there is none."""
        if self._client is None:
            config = client_config()
            settings = library().Configuration()
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
            # This class decides which requests are retried, not the layers below it.
            settings.retries = False
            self._client = library().ApiClient(configuration=settings)
            self._client.user_agent = "accept"
            _bound_refusals(self._client)
        return self._client

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Query = _NONE,
        body: Document | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """Return the answer of a path; only a `stream` is not yet read.

        A token that expired is renewed once.
        """
        import urllib3
        from kubernetes.dynamic import DynamicClient

        # With `Accept` of other requests, the API server refuses to send a log.
        headers = {"Accept": "text/plain, application/json"} if stream else {}
        for may_retry in (True, False):
            connected = self.connected()
            # Without the client's discovery of all kinds.
            calls = DynamicClient(connected, discoverer=lambda *_: None)
            try:
                answer: BaseHTTPResponse = calls.request(
                    method,
                    path,
                    body=body,
                    query_params=list(query.items()),
                    header_params=headers,
                    serialize=False,
                    _request_timeout=(
                        _CONNECT_SECONDS,
                        _LOG_READ_SECONDS if stream else _READ_SECONDS,
                    ),
                )
                # Read the body here, because the connection may also break in the middle of it.
                return answer if stream else _read_whole(answer, _MOST_ANSWER)
            except library().ApiException as error:
                if error.status == 401 and may_retry:
                    connected.close()
                    self._client = None
                    continue
                raise _refused(error, connected.configuration.host) from None
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise _unreachable(connected.configuration.host, error) from None
        raise AssertionError("unreachable")

    def _of_kind(
        self,
        method: str,
        kind: Kind[AnyObject_co],
        name: str = "",
        *,
        everywhere: bool = False,
        query: Query = _NONE,
        body: Document | None = None,
    ) -> Document:
        """Return the answer to a method on an object of a kind, or on all of its objects."""
        namespace = self.place.namespace if kind.namespaced and not everywhere else ""
        path = kind.path(namespace, name)
        return _document(self._request(method, path, query=query, body=body))

    def find_all(
        self,
        kind: Kind[AnyObject_co],
        *,
        everywhere: bool = False,
        labels: str = "",
        fields: str = "",
    ) -> tuple[AnyObject_co, ...]:
        """Return the objects of a kind, fetched page by page, in the namespace or `everywhere`."""
        query = {"limit": str(_PAGE_SIZE)}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        for retries_left in range(_LIST_RETRIES, -1, -1):
            found: list[Document] = []
            next_page: dict[str, str] = {}
            try:
                while True:
                    page = self._of_kind(
                        "get", kind, everywhere=everywhere, query={**query, **next_page}
                    )
                    found += list_at(page, "items")
                    next_page = {"continue": text_at(page, "metadata", "continue")}
                    if not next_page["continue"]:
                        return tuple(map(kind.read, found))
            except ApiError as error:
                # 410 Gone: the list changed too much while it was read.
                if error.status != 410 or not retries_left:
                    raise
        raise AssertionError("unreachable")

    def find_served(
        self, kinds: Sequence[Kind[AnyObject_co]], *, everywhere: bool = False
    ) -> tuple[AnyObject_co, ...]:
        """Return the objects of the first kind that the cluster has.

        `kinds` are versions of one kind, the newest first. The error is `gone` if it has none.
        """
        for kind in kinds:
            try:
                return self.find_all(kind, everywhere=everywhere)
            except ApiError as error:
                if not error.gone or kind is kinds[-1]:
                    raise
        return ()

    def get(self, kind: Kind[AnyObject_co], name: str) -> AnyObject_co:
        """Return an object."""
        return kind.read(self._of_kind("get", kind, name))

    def find(self, kind: Kind[AnyObject_co], name: str) -> AnyObject_co | None:
        """Return an object, or None if the object or its kind does not exist."""
        try:
            return self.get(kind, name)
        except ApiError as error:
            if error.gone:
                return None
            raise

    def delete(self, kind: Kind[AnyObject_co], name: str) -> None:
        """Delete an object, and then what it owns. Do nothing if the object does not exist."""
        try:
            self._of_kind("delete", kind, name, query={"propagationPolicy": "Background"})
        except ApiError as error:
            if not error.gone:
                raise

    def create(
        self, kind: Kind[AnyObject_co], name: str, labels: Mapping[str, str], content: Document
    ) -> None:
        """Create a Secret or ConfigMap that cannot be changed."""
        metadata = {"name": name, "labels": dict(labels)}
        self._of_kind("post", kind, body={"metadata": metadata, "immutable": True, **content})

    def try_pod(self, pod: Document) -> Document:
        """Send a pod that is not stored (server-side dry run); return it with its defaults."""
        return self._of_kind("post", POD, query={"dryRun": "All"}, body=pod)

    def may(self, verb: str, resource: str, *, group: str, namespace: str) -> bool:
        """Return whether this user may use a verb on a resource such as `pods/log`.

        An empty namespace means all of them.
        """
        name, _, part = resource.partition("/")
        attributes = {
            "group": group,
            "resource": name,
            "subresource": part,
            "verb": verb,
            "namespace": namespace,
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        review = {"spec": {"resourceAttributes": attributes}}
        answer = self._request("post", path, body=review)
        return value_at(_document(answer), "status", "allowed") is True

    def version(self) -> str:
        """Return the version of the API server, such as v1.34.0."""
        return text_at(_document(self._request("get", "/version")), "gitVersion")

    def versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of a group that the cluster serves; none if it has no such group."""
        groups = _document(self._request("get", "/apis"))
        return tuple(
            text_at(version, "version")
            for served in list_at(groups, "groups")
            if text_at(served, "name") == group
            for version in list_at(served, "versions")
        )

    def serves(self, kind: Kind[AnyObject_co]) -> bool:
        """Return whether the cluster has a kind of custom object."""
        try:
            answer = self._request("get", f"/apis/{kind.group}/{kind.version}")
        except ApiError as error:
            if error.gone:
                return False
            raise
        resources = list_at(_document(answer), "resources")
        return kind.plural in (text_at(resource, "name") for resource in resources)

    def has_field(self, kind: Kind[AnyObject_co], field: str) -> bool:
        """Return whether the cluster's kind has a field such as `spec.suspend`.

        The client has no call for the schemas that every user may read, only one for definitions,
        which needs rights on the cluster.
        """
        path = f"/openapi/v3/apis/{kind.group}/{kind.version}"
        document = _document(self._request("get", path))
        schemas = value_at(document, "components", "schemas")
        names = schemas if isinstance(schemas, Mapping) else {}
        schema = next((s for name, s in names.items() if name.endswith(f".{kind.name}")), None)
        for word in field.split("."):
            schema = value_at(value_at(schema, "items") or schema, "properties", word)
        return schema is not None

    def log(
        self, pod: str, container: str, *, follow: bool = False, limit: int | None = None
    ) -> Iterator[bytes]:
        """Yield the lines of a container's log as they come, with line ends.

        The last line may lack its end. With a `limit`, yield at most that many bytes. A longer line
        than _MOST_LINE is yielded in parts.
        """
        import urllib3

        query = {"container": container, "follow": json.dumps(follow)}
        query |= {} if limit is None else {"limitBytes": str(limit)}
        path = f"{POD.path(self.place.namespace, pod)}/log"
        answer = self._request("get", path, query=query, stream=True)
        rest, left = b"", inf if limit is None else limit
        try:
            for block in answer.stream(1 << 16):
                *lines, rest = (rest + block[: int(min(left, len(block)))]).split(b"\n")
                yield from (line + b"\n" for line in lines)
                if len(rest) > _MOST_LINE:
                    yield rest
                    rest = b""
                left -= len(block)
                if left <= 0:
                    break
            if rest:
                yield rest
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _unreachable(self.connected().configuration.host, error) from None
        finally:
            answer.close()


def _read_whole(answer: BaseHTTPResponse, most: int) -> BaseHTTPResponse:
    """Return the same answer with its body, read to the end. Raises ApiError if it is too long."""
    import urllib3

    body = bytearray()
    for block in answer.stream(1 << 16):
        body += block
        if len(body) > most:
            answer.close()
            raise ApiError(
                f"the API's answer has more than {most / (1 << 20):.3g} MiB",
                status=0,
                hint="check which server the kubeconfig names: kubectl config view --minify",
            )
    answer.release_conn()
    return urllib3.HTTPResponse(
        body=io.BytesIO(body), headers={}, status=answer.status, reason=answer.reason
    )


def _bound_refusals(client: ApiClient) -> None:
    """Read refusals here, up to a limit: the client's own error would read them without one."""
    pool = client.rest_client.pool_manager
    request = pool.request

    def bounded(*words: object, **options: object) -> BaseHTTPResponse:
        answer: BaseHTTPResponse = request(*words, **options)
        return answer if 200 <= answer.status <= 299 else _read_whole(answer, _MOST_REFUSAL)

    pool.request = bounded


def _document(answer: BaseHTTPResponse) -> Document:
    try:
        value = json.loads(answer.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError("the API's answer is not a Kubernetes object", status=0)
    return value


def _unreachable(host: str, error: object) -> ApiError:
    return ApiError(f"{plain(host)} does not answer: {plain(error, 200)}", status=0)


def _refused(error: ApiException, host: str) -> ApiError:
    """Return what the API answered instead of the object."""
    status = int(error.status or 0)
    if not status:
        return _unreachable(host, error.reason)
    body = error.body or ""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        message = text_at(json.loads(text), "message")
    except (ValueError, RecursionError):
        message = text[:300]
    return ApiError(plain(message) or f"status {status}", status=status)
