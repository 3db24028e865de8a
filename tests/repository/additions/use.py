"""Use the additions in a copy of the product that has them; run as a program by test_additions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.factories.command_line import accept
from tests.factories.verdicts import hosts_record, record

from accept.backends.requirements import answers, needs_of, survey_script
from accept.commands.drill_faults import choose
from accept.core import record_protocol
from accept.core.catalog.faults import FAULTS
from accept.core.catalog.metrics import Better
from accept.core.causes import Owner
from accept.core.checks import REGISTRY, better, log_lines, parse_log
from accept.core.error_codes import Code
from accept.core.judge import judge
from accept.core.report.markdown import render_markdown
from accept.core.verdict import State
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

HOSTS = ("h1", "h2")


def main(folder: Path) -> None:
    """Plan, render, execute, judge and report the sample check with the sample fault."""
    assert "sample" in accept("list", "checks").out
    sample = json.loads(accept("show", "check", "sample", "--json").out)
    assert sample["params"] == {"count": {"default": 2, "about": "number of loops"}}
    for what in ("machine", "suite"):
        assert accept("show", what, "sample").code == 0

    assert "sample-tool" in accept("list", "checks").out
    assert accept("show", "check", "sample-tool").code == 0

    expect = ("sample<=2", "sample-tool>=5")
    options = Options(
        machine="sample", suite="sample", hosts=HOSTS, expect=expect, inject=("sample-fault@h2",)
    )
    run = resolve(options)
    step = next(step for step in run.plan.steps if step.checks == ("sample",))
    assert step.params == {"count": 4}
    run = resolve(Options(**{**vars(options), "settings": ("sample.count=3",)}))
    bundle = render(run)
    step = next(step for step in bundle.plan.steps if step.checks == ("sample",))
    assert step.params == {"count": 3}
    # The start of its groups comes in addition.
    assert 3.0 <= step.estimate < 3.1
    refused = accept("run", "-m", "sample", "-s", "sample", "--expect", "sample.speed<=2")
    assert refused.error
    assert "delay" in refused.err

    tool = next(step.tool for step in bundle.plan.steps if step.tool)
    assert tool.command == ("echo", "Speed: 4 GB/s")

    script = folder / "step.sh"
    script.write_bytes(bundle.files[step.script])
    log = subprocess.run(["sh", script], capture_output=True, check=True).stdout
    records = [hosts_record(HOSTS)]
    for number, host in enumerate(HOSTS):
        parsed = parse_log(step.checks, log.splitlines(keepends=True), (host,))
        metrics, facts = parsed.metrics, parsed.facts
        records.append(record(step, [host], *metrics, facts=facts, number=number, ranks=2))
    verdict = judge(bundle.plan, records, checks=REGISTRY, attempt="a")
    (own,) = (check for check in verdict.checks if check.check == "sample")
    assert own.state is State.FAIL
    assert [f.value for f in own.findings if f.state is State.FAIL] == [3.0]
    assert "clock: sh" in render_markdown(verdict, bundle.plan)
    assert log_lines(step, records[1:]) == ["sample: delay 1 to 3 us"]
    assert better("sample", "delay", "us") is Better.LOWER

    shown = json.loads(accept("show", "cause", "sample-cause", "--json").out)
    assert (shown["cause"], shown["action"]) == ("sample-cause", "remove the test")
    assert "Confirm: run the test again." in shown["section"]
    reported = record_protocol.parse(
        [b'ACCEPT {"problem":"sample-cause","message":"seen","host":"h1"}\n'], check="sample"
    )
    blamed = record(step, HOSTS[:1], problems=reported.problems, ranks=2)
    verdict = judge(bundle.plan, [hosts_record(HOSTS), blamed], checks=REGISTRY, attempt="a")
    (suspect,) = verdict.suspects
    assert (suspect.cause, suspect.cause.code) == ("sample-cause", "W-SAMPLE-CAUSE")
    assert suspect.cause.row.owner is Owner.PROVIDER

    survey = subprocess.run(["sh", "-c", survey_script()], capture_output=True, check=True)
    here = answers(survey.stdout.decode())
    (need,) = (need for need in needs_of("h1", here, run) if need.what == "sed")
    assert (need.good, need.checks) == (True, ("sample",))

    choice = choose(bundle.plan, FAULTS["sample-fault"], HOSTS, 1)
    assert choice.steps == (step.id,)
    assert [fault.text for fault in bundle.plan.injected] == ["sample-fault@h2"]
    unknown = accept("run", "-m", "sample", "-s", "sample", "--inject", "sample-fault@*")
    assert unknown.error == Code.FAULT_SYNTAX
    injected = subprocess.run(
        ["sh", folder / "inject_fault.sh", "sample-fault", "4", "60", "h1"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert injected.stdout == "injected\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
