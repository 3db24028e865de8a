"""`accept judge` on files about the state of hosts: public samples, with what it must say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories.paths import ROOT

from accept.commands.judge import Judged, judge_paths, with_measurements
from accept.core.model import State
from accept.foreign_logs.host_state import name_of_host
from accept.foreign_logs.kernel_log import is_kernel_log

SAMPLES = ROOT / "tests/data/foreign"


def samples() -> Iterator[Any]:
    for expected in sorted(SAMPLES.glob("*/expected.json")):
        for name, result in json.loads(expected.read_text()).items():
            yield pytest.param(expected.parent / name, result, id=f"{expected.parent.name}/{name}")


def judged(*paths: Path | str, **options: Any) -> Judged:
    (one,) = judge_paths([str(path) for path in paths], expect=options.pop("expect", ()), **options)
    return one


def accused(one: Judged) -> list[tuple[str, str | None, str]]:
    return sorted(((s.hosts[0], s.device, str(s.cause)) for s in one.verdict.suspects), key=repr)


def texts(one: Judged) -> str:
    findings = (f.message for check in one.verdict.checks for f in check.findings)
    return "\n".join([*one.notes, *(s.why for s in one.verdict.suspects), *findings])


@pytest.mark.parametrize(("path", "expected"), [*samples()])
def test_a_public_sample_gets_the_expected_verdict(path: Path, expected: dict[str, Any]) -> None:
    one = judged(path, expect=expected.get("expect", ()), machine=expected.get("machine"))
    assert one.verdict.state == State(expected["state"]), texts(one)
    assert accused(one) == sorted((tuple(row) for row in expected["accused"]), key=repr)
    assert [part for part in expected["shows"] if part not in texts(one)] == []
    assert set(expected.get("hosts", ())) <= {*one.verdict.hosts}
    values = {m.metric: m.value for m in with_measurements(one).metrics}
    assert expected.get("metrics", {}).items() <= values.items()


@pytest.mark.parametrize(("path", "expected"), [*samples()])
def test_a_sample_is_recognized_by_content_and_not_by_name(
    path: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    other = tmp_path / "host77" / "x.log"
    other.parent.mkdir()
    shutil.copy(path, other)
    one = judged(other.parent, expect=expected.get("expect", ()), machine=expected.get("machine"))
    assert one.verdict.state == State(expected["state"])
    assert len(one.verdict.suspects) == len(expected["accused"])


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("gpu017/dmesg.txt", "gpu017"),
        ("logs/gpu017/var/log/kern.log.1", "gpu017"),
        ("nvidia-smi-q-gpu017.xml", "gpu017"),
        ("gpu017-dmesg.log.gz", "gpu017"),
        ("13-xid-45-previous/dev/kmsg", "13-xid-45-previous"),
        ("dmesg.txt", "dmesg.txt"),
        ("logs/dmesg.txt", "dmesg.txt"),
    ],
)
def test_the_path_of_a_file_names_its_host(path: str, host: str) -> None:
    assert name_of_host(Path(path).parts) == host


@pytest.mark.parametrize(
    "line",
    [
        "node1: NCCL INFO Bootstrap : Using eth0",
        "2025-11-25T10:21:33.123456Z all_reduce_perf started",
        "[2025-11-25T10:21:33.123] error: slurmd: launch failed",
        "Nov 25 10:21:33 gpu1 sshd[1]: Accepted publickey",
        "       8388608       2097152     float     sum      -1    94.3   88.9",
    ],
)
def test_logs_of_other_programs_are_not_kernel_logs(line: str) -> None:
    assert not is_kernel_log(line.encode())
