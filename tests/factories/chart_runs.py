"""Runs to render charts of: every machine, and sites that together use every key of a site file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from accept import config
from accept.config.kubernetes import MachinePods
from accept.plan.bundle import render
from accept.plan.helm_values import helm_values
from accept.plan.resolve import Options, Resolved, resolve

#: The fixture `write`: `values` without its folder.
Write = Callable[..., Path]

IMAGE = "registry.example/accept:1"
MACHINES = config.names("machines")


def _kinds() -> tuple[str, ...]:
    """Return one machine for each set of keys that machines pass to the chart."""
    none, kinds = MachinePods(), dict[tuple[str, ...], str]()
    for name in MACHINES:
        pod = config.load_machine(name).value.kubernetes
        given = (f.name for f in fields(pod) if getattr(pod, f.name) != getattr(none, f.name))
        kinds.setdefault(tuple(key for key in given if key != "source"), name)
    return tuple(kinds.values())


KINDS = _kinds()

#: The rest of a site file after `kubernetes: {image: …}`, by name.
SITES = {
    "plain": "",
    "everything": """\
  queue: queue
  workloadPriorityClass: high
  priorityClassName: system-cluster-critical
  runtimeClassName: nvidia
  topology: {preferred: a, slice: b, sliceSize: 2}
  flexStart: true
  spot: true
  imagePullPolicy: Never
  imagePullSecrets: [secret]
  serviceAccount: mine
  positionLabels: [block, rack]
  positions: {a: b1/r1, b: b1/r2}
  readNodes: true
  includeNodes: [a, b, '1e3']
  excludeNodes: [c]
  nodeSelector: {pool: y}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]
  tolerations: [{operator: Exists}]
  labels: {team: mine}
  annotations: {note: mine}
  resources: {requests: {cpu: 1, memory: 1Gi}}
  sharedMemory: 1Gi
  securityContext: {capabilities: {add: [IPC_LOCK]}}
  podSecurityContext: {fsGroup: 7}
  extraVolumes: [{name: mine, hostPath: {path: /mine}}]
  extraVolumeMounts: [{name: mine, mountPath: /mine, readOnly: true}]
  extraEnv: {A: 1, B: n}
  extraEnvFrom: [{secretRef: {name: secret}}]
  extraInitContainers: [{name: first, image: mine}]
  extraSidecars: [{name: beside, image: mine}]
  ttlSeconds: 5
results:
  volume:
    csi: {driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: mine}}
""",
    "the node's network": """\
  hostNetwork: true
results: {volume: {persistentVolumeClaim: {claimName: mine}}}
""",
    "restricted": """\
  podSecurityContext:
    {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
  securityContext: {capabilities: {drop: [ALL]}}
""",
    "strong and suspended": """\
  securityContext: {privileged: true}
  suspend: true
results: {location: 'gs://mine'}
""",
}

#: A machine of one NVLink domain whose devices come from dynamic resource allocation.
DOMAIN = """\
name: domain
description: One NVLink domain.
gpus: {count: 4}
kubernetes:
  computeDomain: true
  resources: {limits: {nvidia.com/gpu: 4}}
  resourceClaims:
    - {name: theirs, template: default-rdma}
    - name: rdma
      devices:
        requests:
          - {name: nics, exactly: {deviceClassName: mrdma.google.com, allocationMode: All}}
"""


def resolved(folder: Path, machine: str = "cpu", *, site: str = "", **options: Any) -> Resolved:
    """Return a run on two nodes; `site` is the rest of its site file."""
    (folder / "site.yaml").write_text(f"kubernetes:\n  image: {IMAGE}\n{site}")
    if machine == "domain":
        machine = str(folder / "domain.yaml")
        Path(machine).write_text(DOMAIN)
    given = {"nodes": 2, "suite": "quick", "site": str(folder / "site.yaml"), **options}
    if machine == "gpu":
        given.setdefault("gpus_per_node", 8)
    return resolve(Options(machine=machine, **given))


def values_file(folder: Path, run: Resolved) -> Path:
    """Write the values of a run, as `accept render` prints them; return the file."""
    path = folder / "values.yaml"
    path.write_text(helm_values(run, render(run)))
    return path


def values(folder: Path, machine: str = "cpu", *, site: str = "", **options: Any) -> Path:
    """Write the values of a run on two nodes; return the file."""
    return values_file(folder, resolved(folder, machine, site=site, **options))


def gke_positions(nodes: int) -> dict[str, str]:
    """Return positions of nodes with names and labels as long as those of GKE."""

    def label(text: str) -> str:
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    return {
        f"gke-cluster-of-mine-a4-highgpu-pool-{label(f'{n}')[:8]}-{label(f'{n}')[8:12]}": "/".join(
            (label(f"block {n // 256}"), label(f"subblock {n // 16}"), label(f"host {n}"))
        )
        for n in range(nodes)
    }
