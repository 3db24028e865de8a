"""Runs whose chart is looked at: every machine, and sites that use all that a site file can say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from accept import config
from accept.config.kubernetes import MachineKubernetes
from accept.plan.bundle import helm_values, render
from accept.plan.resolve import Options, resolve

#: Writes the values of a run to a file: the fixture `write`.
Write = Callable[..., Path]

IMAGE = "registry.example/accept:1"
MACHINES = config.names("machines")


def _kinds() -> tuple[str, ...]:
    """One machine for each set of keys that machines give the chart: enough for its templates."""
    none, kinds = MachineKubernetes(), dict[tuple[str, ...], str]()
    for name in MACHINES:
        pod = config.load_machine(name).value.kubernetes
        given = (f.name for f in fields(pod) if getattr(pod, f.name) != getattr(none, f.name))
        kinds.setdefault(tuple(key for key in given if key != "source"), name)
    return tuple(kinds.values())


KINDS = _kinds()

#: What follows `kubernetes: {image: …}` in a site file, by name.
SITES = {
    "plain": "",
    "all of it": """\
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

#: A machine of one NVLink domain, with devices by dynamic resource allocation.
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


def values(folder: Path, machine: str = "cpu", *, site: str = "", **options: Any) -> Path:
    """The values of a run of two nodes, as `accept render` prints them, in a file."""
    (folder / "site.yaml").write_text(f"kubernetes:\n  image: {IMAGE}\n{site}")
    if machine == "domain":
        machine = str(folder / "domain.yaml")
        Path(machine).write_text(DOMAIN)
    given = {"nodes": 2, "suite": "quick", "site": str(folder / "site.yaml"), **options}
    if machine == "gpu":
        given.setdefault("gpus_per_node", 8)
    run = resolve(Options(machine=machine, **given))
    bundle = render(run)
    path = folder / "values.yaml"
    path.write_text(helm_values(run, bundle))
    return path
