"""Survey the container of a run on a host: its runtime, its image, and the tools in it."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from accept.backends.requirements import Need, Requirement, need_of, survey_script, tool_lines
from accept.config import resources
from accept.core.text import plain
from accept.plan.bundle import container_env
from accept.plan.resolve import Resolved

#: Script that prints, in the format of the survey: the runtime, the state of the image, the survey
#: in the container, and why it failed. @STATES@ are the states of the image for which the container
#: is started.
_SURVEY = """
if ! find_runtime; then
    echo "no-runtime $(print_no_runtime)"
    exit 0
fi
echo "runtime $runtime $("$runtime" --version 2>/dev/null | head -n 1)"
state=$(image_state)
echo "image $state"
case ${state%% *} in @STATES@) ;; *) exit 0 ;; esac
{ error=$(in_container '' /bin/sh -c @SCRIPT@ 2>&1 >&3 3>&-) ||
    echo "failed $(printf '%s' "$error" | tail -n 1)"; } 3>&1
"""


def survey(run: Resolved, *, pull: bool) -> str:
    """Return sh lines that print the survey of the run's container.

    With `pull`, an image that the host lacks is fetched. Without it, the tools of such an image are
    not listed.
    """
    container = (resources.launchers() / "container.sh").read_text(encoding="utf-8")
    states = "present|unknown|pullable|missing" if pull else "present"
    script = tool_lines(run.site.tools) + survey_script()
    text = _SURVEY.replace("@STATES@", states).replace("@SCRIPT@", quote(script))
    return container_env(run) + container + text


def needs(host: str, found: Mapping[str, list[str]], run: Resolved) -> tuple[Need, ...]:
    """Return the lines about runtime and image; `found` are the values that the survey printed."""
    runtime, absent = found.get("runtime"), found.get("no-runtime")
    checks = run.plan.checks
    code, text = Requirement.CONTAINER_RUNTIME, plain((runtime or absent or ["not found"])[0], 200)
    if not runtime:
        advice = "install it, or set container.runtime in the site file"
        return (need_of(code, text, advice, host=host, good=False, checks=checks),)
    state, _, reason = (found.get("image") or ["missing"])[0].partition(" ")
    failure = (found.get("failed") or [""])[0]
    shown = {
        "present": "is on the host",
        "pullable": "is not on the host yet; its registry has it, and the run pulls it",
        "unknown": "the run pulls it",
    }
    good = state in shown and not failure
    advice = "correct its name, log in to its registry, or copy it to the host"
    image = need_of(
        Requirement.CONTAINER_IMAGE,
        plain(failure or shown.get(state, reason or "missing"), 200),
        "" if good else advice,
        host=host,
        good=good,
        checked=state != "unknown",
        checks=() if good else checks,
    )
    return need_of(code, text, host=host), image


def is_surveyed(found: Mapping[str, list[str]]) -> bool:
    """Return True if the survey ran in the container, so that it lists the tools of the image."""
    return "pci" in found
