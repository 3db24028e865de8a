"""Find the positions of nodes in the network, from their labels in Kubernetes."""

from __future__ import annotations

import gzip
import json
import os
import ssl
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accept.core.facts import position_of
from accept.core.serde import Invalid, read

#: The file with positions as JSON, and the same compressed, which many nodes need.
POSITIONS, PACKED_POSITIONS = "positions.json", "positions.json.gz"
#: As much of that JSON is read: a ConfigMap of 1 MiB can contain a thousand times more.
_MOST_BYTES = 16 << 20
#: The token that reads nodes, and the certificate of the API server (`site.readNodes`).
IDENTITY = Path("/accept/node-reader")
_PAGE, _SECONDS = 500, 20.0
#: Only the labels of the nodes, without their status.
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The file with positions in the run's folder, from a ConfigMap."""

    #: Labels of nodes, from the largest part of the network to the node.
    labels: tuple[str, ...] = ()
    #: Node -> its position, such as `block/rack/host`.
    positions: dict[str, str]


def read_positions(folder: Path, identity: Path = IDENTITY) -> tuple[dict[str, str], str]:
    """Return node -> position, and why the API server could not be queried (empty if it could).

    The positions in the run's folder come first. If there are none, query the API server, provided
    that this pod has the identity for it.
    """
    try:
        given = read(Positions, json.loads(_given(folder)))
    except FileNotFoundError:
        return {}, ""
    except (OSError, EOFError, zlib.error, ValueError, Invalid) as error:
        return {}, f"{POSITIONS}: {error}"
    if given.positions or not identity.is_dir():
        return given.positions, ""
    try:
        labels = dict(_labels_of_nodes(identity))
    except (OSError, ValueError, LookupError) as error:
        return {}, f"the API server does not show the labels of nodes: {error}"
    found = {node: position_of(own, given.labels) for node, own in labels.items()}
    return {node: position for node, position in found.items() if position}, ""


def _given(folder: Path) -> str:
    """Return the positions in the run's folder as JSON. Raises OSError, EOFError and zlib.error."""
    packed = folder / PACKED_POSITIONS
    if not packed.exists():
        return (folder / POSITIONS).read_text(encoding="utf-8")
    with gzip.open(packed) as file:
        return file.read(_MOST_BYTES).decode()


def _labels_of_nodes(identity: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield name and labels of all nodes. Raises OSError and ValueError."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    trust = ssl.create_default_context(cafile=str(identity / "ca.crt"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    token = (identity / "token").read_text(encoding="ascii").strip()
    following = ""
    while True:
        query = urllib.parse.urlencode({"limit": _PAGE, "continue": following})
        request = urllib.request.Request(f"https://{authority}/api/v1/nodes?{query}")
        request.add_header("Accept", _METADATA)
        request.add_header("Authorization", f"Bearer {token}")
        with opener.open(request, timeout=_SECONDS) as answer:
            listed = json.loads(answer.read(_MOST_BYTES))
        for item in listed["items"]:
            yield item["metadata"]["name"], item["metadata"].get("labels", {})
        following = listed["metadata"].get("continue", "")
        if not following:
            return
