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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.factories import verdicts
from tests.factories.judging import causes
from tests.factories.paths import PROGRAMS, TESTS

from accept.config.yaml_file import read_file
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.plan import BoundKind, PlannedMachine, Reference
from accept.core.verdict import State, Verdict

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


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Hold the reports of the IMEX services of four hosts, and of nodes outside the run."""

    name: str = ""
    domain: str = "UP"
    #: "HOST NODE" -> the state that a host reports of its connection; else CONNECTED.
    links: dict[str, str] = field(default_factory=dict)
    #: Node -> the state of its connections with all others, in both directions.
    apart: dict[str, str] = field(default_factory=dict)
    #: Host -> its state; else READY.
    states: dict[str, str] = field(default_factory=dict)
    #: Host -> what the program prints instead, with exit code 1.
    words: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = HOSTS
    #: Hosts without the program.
    without: tuple[str, ...] = ()
    #: The node that the verdict accuses of `fabric-manager`, and whether the run passes.
    bad: str | None = None
    passes: bool = False

    def connection(self, host: str, other: str) -> str:
        """Return the state of a connection."""
        ends = [self.apart[end] for end in (host, other) if end in self.apart and host != other]
        return self.links.get(f"{host} {other}", next(iter(ends), "CONNECTED"))

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
                        "status": self.connection(name, node),
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


@dataclass(frozen=True, kw_only=True)
class _File:
    domains: tuple[Domain, ...]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "domain", read_file(_File, TESTS / "data" / "imex.yaml").domains, ids=lambda one: one.name
)
def test_a_node_that_imex_lost_is_named(domain: Domain, tmp_path: Path) -> None:
    verdict = domain.verdict(tmp_path)
    expected = {(domain.bad, "fabric-manager")} if domain.bad else set()
    assert {(one.name, one.cause) for one in verdict.suspects} == expected
    assert (verdict.state is State.PASS) is domain.passes
    assert causes(verdict) <= {"fabric-manager"}
    shown = [f.message for check in verdict.checks for f in check.findings]
    reached = next(check.measured for check in verdict.checks if check.check == "inventory")
    assert ("nvidia-imex-ctl" in reached) is bool(domain.without)
    # Nothing that a service reports instead of its state is lost.
    for host, words in domain.words.items():
        assert host == domain.bad or any(words in text for text in shown)
    for state in {*domain.links.values(), *domain.apart.values()}:
        assert any(state in text for text in shown)
    assert any("other" in text for text in shown) or "part of the run" not in domain.name


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
