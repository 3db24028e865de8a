"""States of an NVLink domain, from a stand-in of `nvidia-imex-ctl` to the verdict.

It prints the JSON of `nvidia-imex-ctl -N -j -H` as NVIDIA/ai-cloud-validation reads it. Each host
sees itself READY, whatever its connections.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.factories import verdicts
from tests.factories.judging import causes
from tests.factories.paths import PROGRAMS

from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.model import BoundKind, PlannedMachine, Reference, State, Verdict

HOSTS = verdicts.hosts(4)
MACHINE = PlannedMachine(name="racks", gpus=8, ranks=2, device="B200", noise=0.01)
INVENTORY = verdicts.step("inventory", "each", number=10)
NVLINK = Reference(
    check="all-reduce",
    metric="busbw",
    unit="GB/s",
    kind=BoundKind.FLOOR,
    source="NVLink's data sheet",
    lower=450.0,
    max_nodes=18,
    one_domain=True,
)


@dataclass
class Domain:
    """Hold the reports of the IMEX services of four hosts, and of nodes outside the run."""

    domain: str = "UP"
    #: (host that reports, other node) -> the state of their connection; else CONNECTED.
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: Host -> its state; else READY.
    states: Mapping[str, str] = field(default_factory=dict)
    #: Host -> what the program prints instead, with exit code 1.
    words: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = HOSTS
    #: Hosts without the program.
    without: tuple[str, ...] = ()

    def answer(self, host: str) -> str:
        """Return the output on a host."""
        address = {name: f"203.0.113.{number}" for number, name in enumerate(self.nodes, start=1)}
        nodes = {
            str(number): {
                # The others are not reachable by the port for commands.
                "status": self.states.get(name, "READY") if name == host else "UNAVAILABLE",
                "host": address[name],
                "hostName": socket.gethostname() if name == host else name,
                "connections": {
                    str(other): {
                        "host": address[node],
                        "status": self.links.get((name, node), "CONNECTED"),
                    }
                    for other, node in enumerate(self.nodes)
                },
            }
            for number, name in enumerate(self.nodes)
        }
        return json.dumps({"nodes": nodes, "status": self.domain})

    def read(self, host: str, folder: Path) -> object:
        """Return what the program for hosts reads from the stand-in."""
        folder.mkdir(parents=True)
        if host not in self.without:
            text, status = self.words.get(host), 1
            if text is None:
                text, status = self.answer(host), 0
            (folder / "answer").write_text(text)
            program = folder / "nvidia-imex-ctl"
            program.write_text(
                f'#!/bin/sh\n[ "$*" = "-N -j -H" ] || exit 64\ncat {folder}/answer\nexit {status}\n'
            )
            program.chmod(0o755)
        code = "import imex, json; print(json.dumps(imex.state()))"
        env = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(PROGRAMS)}
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        return json.loads(ran.stdout)

    def verdict(self, folder: Path) -> Verdict:
        records = [
            verdicts.record(
                INVENTORY,
                [host],
                facts=(
                    verdicts.inventory_of(
                        host,
                        gpus=verdicts.gpus(host),
                        imexChannels=2048,
                        domain="cluster/1",
                        imex=self.read(host, folder / host),
                    ),
                ),
                number=number,
            )
            for number, host in enumerate(HOSTS)
        ]
        step = verdicts.step("all-reduce", "all", number=20)
        planned = verdicts.plan(INVENTORY, step, machine=MACHINE, references=(NVLINK,))
        reached = verdicts.measured(step, HOSTS, lambda _: 800.0)
        made = [verdicts.hosts_record(HOSTS), *records, *reached]
        return judge(planned, made, checks=REGISTRY, attempt="one")


def apart(host: str, state: str = "INVALID") -> dict[tuple[str, str], str]:
    """Return the connections of a host with all others, in both directions."""
    others = [other for other in HOSTS if other != host]
    return {pair: state for other in others for pair in ((host, other), (other, host))}


H1 = {("h1", "fabric-manager")}
CASES: dict[str, tuple[Domain, set[tuple[str, str]], bool]] = {
    "healthy": (Domain(), set(), True),
    "degraded, but connected": (Domain(domain="DEGRADED"), set(), True),
    "a lost node": (Domain(domain="DEGRADED", links=apart("h1", "RECOVERING")), H1, False),
    "a lost node without an answer": (
        Domain(domain="DEGRADED", links=apart("h1"), words={"h1": "Failed to connect"}),
        H1,
        False,
    ),
    "a lost node without the program": (
        Domain(domain="DEGRADED", links=apart("h1"), without=("h1",)),
        H1,
        False,
    ),
    "nodes that wait for a lost one": (
        Domain(
            domain="DOWN",
            links=apart("h1"),
            states=dict.fromkeys(("h0", "h2", "h3"), "WAITING_FOR_RECOVERY"),
        ),
        H1,
        False,
    ),
    "a node that is not ready": (Domain(states={"h1": "INIT_GPU"}), H1, False),
    "one connection": (
        Domain(links={("h1", "h2"): "DISCONNECTED", ("h2", "h1"): "DISCONNECTED"}),
        set(),
        False,
    ),
    "two halves": (
        Domain(
            links={
                (a, b): "DISCONNECTED"
                for a in HOSTS
                for b in HOSTS
                if (a in HOSTS[:2]) != (b in HOSTS[:2])
            }
        ),
        set(),
        False,
    ),
    "a lost node that is not part of the run": (
        Domain(
            domain="DEGRADED",
            nodes=(*HOSTS, "other"),
            links={(host, "other"): "DISCONNECTED" for host in HOSTS},
        ),
        set(),
        True,
    ),
    "a lost node outside the run, and one that is not ready": (
        Domain(
            nodes=(*HOSTS, "other"),
            links={(host, "other"): "DISCONNECTED" for host in HOSTS},
            states={"h1": "INIT_GPU"},
        ),
        H1,
        False,
    ),
    "an outsider that others do not know": (
        Domain(nodes=("h0", "h2", "h3"), words={"h1": "Failed to connect to nvidia-imex"}),
        H1,
        False,
    ),
    **{
        f"{words} on {len(hosts)}": (Domain(words=dict.fromkeys(hosts, words)), set(), False)
        for words in ("Failed to connect to nvidia-imex", "Connection refused")
        for hosts in (HOSTS[1:2], HOSTS[1:], HOSTS)
    },
    "a domain that is down": (Domain(domain="DOWN"), set(), False),
    "no program": (Domain(without=HOSTS), set(), True),
    "not configured": (
        Domain(words=dict.fromkeys(HOSTS, "Failed to read node configuration file")),
        set(),
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_that_imex_lost_is_named(name: str, tmp_path: Path) -> None:
    domain, suspects, passes = CASES[name]
    verdict = domain.verdict(tmp_path)
    assert {(one.name, one.cause) for one in verdict.suspects} == suspects
    assert (verdict.state is State.PASS) is passes
    assert causes(verdict) <= {"fabric-manager"}
    shown = [f.message for check in verdict.checks for f in check.findings]
    reached = next(check.measured for check in verdict.checks if check.check == "inventory")
    assert ("nvidia-imex-ctl" in reached) is bool(domain.without)
    # Nothing that a service reports instead of its state is lost.
    named = {one.name for one in verdict.suspects}
    for host, words in domain.words.items():
        assert host in named or any(words in text for text in shown)
    for state in set(domain.links.values()):
        assert any(state in text for text in shown)
    assert any("other" in text for text in shown) or "part of the run" not in name


Break = Callable[[str], str]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda _: "[]",
        lambda _: '{"nodes": [1, 2]}',
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"READY"', "7").replace('"host"', '"place"'),
        lambda text: text.replace("203.0.113.1", "no address"),
    ],
)
def test_an_answer_of_another_form_accuses_nobody(spoil: Break, tmp_path: Path) -> None:
    healthy = Domain()
    broken = Domain(words={host: spoil(healthy.answer(host)) for host in HOSTS})
    assert broken.verdict(tmp_path).state is State.PASS
