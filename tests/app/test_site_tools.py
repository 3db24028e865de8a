"""A site adds a tool in its site file: it is a check as all others, and needs trust as the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories.command_line import accept, refused, trust

from accept.app import complete
from accept.core.error_codes import Code
from accept.plan.resolve import Options, resolve

pytestmark = pytest.mark.usefixtures("runs", "working")
SITE = """\
tools:
  checks:
    - name: probe
      summary: the speed of a node
      source: https://example.org/probe
      version: {command: [probe, --version], least: "2.1"}
      command: [probe, --size, "{size}"]
      params:
        size: {about: size of the file, default: 8G}
      needs: {root: true, devices: [/dev/probe], gpusOf: NVIDIA}
      seconds: 1
      timeout: 60
      results:
        speed:
          json: /speed
          unit: GB/s
          bounds: [{least: 2, machine: h100-8, source: https://example.org/figures}]
      failure: {meaning: the probe is broken}
parameters:
  probe: {size: 16G}
expect:
  - probe>=3
"""
SECOND = """\
    - {name: probe, summary: s, source: https://example.org, command: [a], seconds: 1, timeout: 1}
"""
SUITE = "name: s\ndescription: S.\nchecks:\n  - check: probe\n"
PLAN = ("run", "-m", "h100-8", "--suite", "./suite.yaml", "--dry-run")


@pytest.fixture
def site(working: Path) -> Path:
    (working / "suite.yaml").write_text(SUITE)
    (working / "own.yaml").write_text(SITE)
    return working / "own.yaml"


def test_a_suite_names_it_and_parameters_and_expectations_apply(site: Path) -> None:
    plan = resolve(Options(machine="h100-8", suite="./suite.yaml", site=str(site))).plan
    (tool,) = (step.tool for step in plan.steps if step.tool)
    assert tool.command == ("probe", "--size", "16G")
    own = {(r.source, r.lower) for r in plan.references if r.check == "probe"}
    assert own == {(f"{site}:22", 3), ("https://example.org/figures", 2)}
    assert accept(*PLAN, "--site", site, "--set", "probe.size=1G", "--only", "probe").code == 0
    refused(*PLAN, "--site", site, "--set", "probe.sice=1G", error=Code.PARAM_UNKNOWN)


def test_a_file_in_the_working_folder_needs_trust_before_its_tool_is_one(working: Path) -> None:
    (working / "site.yaml").write_text(SITE)
    (working / "suite.yaml").write_text(SUITE)
    refused(*PLAN, error=Code.SITE_TRUST)
    refused("show", "check", "probe", error=Code.CHECK_UNKNOWN)
    assert "probe" not in complete.checks()
    trust(working / "site.yaml", SITE)
    assert accept(*PLAN).code == 0
    assert "\nprobe " in accept("list", "checks").out
    assert "probe" in complete.checks()
    assert "- 20-probe-each: " in accept("show", "suite", "./suite.yaml").out


def test_its_page_shows_what_it_runs_and_needs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEPT_SITE", "own.yaml")
    page = accept("show", "check", "probe").out
    for text in (
        "probe, 2.1 or newer",
        "probe --size {size}",
        "root, GPUs of NVIDIA, /dev/probe",
        "tool-failed: the probe is broken",
        "own.yaml:3",
        "at least 2, on h100-8 (https://example.org/figures)",
    ):
        assert text in page
    shown = json.loads(accept("show", "check", "probe", "--json").out)
    assert shown["tool"]["source"] == "https://example.org/probe"
    assert "probe" in accept("show", "check", "prob").err
    assert site.exists()


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("name: probe", "name: gemm", Code.TOOL_INVALID, ":3: tools.checks[0].name: accept has"),
        ("unit: GB/s", "unit: GBs", Code.TOOL_INVALID, "speed.unit: 'GBs'"),
        ("timeout: 60", "timeouts: 60", Code.KEY_UNKNOWN, ":12: tools.checks[0].timeouts"),
        ("seconds: 1", "seconds: a", Code.VALUE_INVALID, ":11: tools.checks[0].seconds"),
        ('"{size}"]', '"{sice}"]', Code.TOOL_INVALID, ":7: tools.checks[0].command"),
        ("  probe: {", "  prob: {", Code.CHECK_UNKNOWN, ":20: parameters.prob"),
        ("size: 16G", "sice: 16G", Code.KEY_UNKNOWN, ":20: parameters.probe.sice"),
        ("probe>=3", "probe.sped>=3", Code.METRIC_UNKNOWN, ":22: expect[0]"),
        (
            "parameters:",
            f"{SECOND}parameters:",
            Code.TOOL_INVALID,
            ":19: tools.checks[1].name: the site file has another tool",
        ),
    ],
)
def test_each_mistake_is_one_error_with_its_line(
    old: str, new: str, code: Code, words: str, site: Path
) -> None:
    assert SITE.count(old) == 1
    site.write_text(SITE.replace(old, new))
    assert words in refused(*PLAN, "--site", site, error=code)


def test_a_tool_beside_a_suite_cannot_have_its_name(site: Path, working: Path) -> None:
    tool = "\n".join(line[6:] for line in SITE.splitlines()[2:18]).replace("- name", "name")
    (working / "probe.yaml").write_text(tool)
    (working / "suite.yaml").write_text(SUITE.replace("probe", "./probe.yaml"))
    assert accept(*PLAN, "--expect", "probe>=3").code == 0
    refused(*PLAN, "--site", site, error=Code.TOOL_INVALID)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("list tools", "list checks"),
        ("show tools", "list checks"),
        ("show tool dcgm", "show check dcgm"),
        ("show check fio", "show check storage"),
        ("show check dcgmi", "show check dcgm"),
        ("show check nvme-cli", "nvme"),
    ],
)
def test_a_user_who_looks_for_tools_is_led_to_checks(words: str, meant: str) -> None:
    done = accept(*words.split())
    assert (done.code, done.out) == (2, "")
    assert meant in done.err
