"""Ask hosts over ssh for what a first site file can contain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from accept.backends.host_survey import IMAGE, RESULTS, Finding, SiteText, find, host_script, scalar
from accept.backends.protocol import Note, Question, Remark
from accept.backends.remote import call, last_line
from accept.backends.requirements import SECONDS, answers
from accept.backends.ssh.client import access_of, reach_of
from accept.config import Site
from accept.core.bounded import on_all
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.text import count, folded, plain
from accept.plan.resolve import Options


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The findings on hosts that a site file needs."""

    hosts: tuple[str, ...]
    found: Finding
    notes: tuple[Note, ...]
    questions: tuple[Question, ...] = (IMAGE, RESULTS)

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with comments on what is still open."""
        name = re.sub(r"[^a-z].*", "", self.hosts[0].lower()) or "hosts"
        return SiteText(
            name=name,
            backend="ssh",
            section=(
                f"hosts: [{', '.join(map(scalar, _patterns(self.hosts)))}]",
                "# user: ubuntu",
                "# jumpHost: bastion.example.org",
            ),
            found=self.found,
        ).text(answers)


def survey(options: Options) -> Survey:
    """Ask all hosts. Raises BadInput without hosts, and NotStarted if none of them answers."""
    hosts = options.hosts
    if not hosts:
        raise BadInput(
            "the hosts are missing",
            code=Code.SSH_NO_HOSTS,
            hint="accept init --hosts 'node[01-16]'",
        )
    reach = reach_of(access_of(Site()))
    replies = on_all(hosts, lambda host: call(reach, host, host_script(), timeout=SECONDS))
    by_host = {
        host: answers(reply.out.decode(errors="replace"))
        for host, reply in replies.items()
        if reply.began and reply.exit in (0, 1)
    }
    absent = [host for host in hosts if host not in by_host]
    if not by_host:
        raise NotStarted(
            f"no host answers; {absent[0]}: {last_line(replies[absent[0]].err)}",
            code=Code.SSH_NO_ANSWER,
            hint=f"try: ssh {absent[0]}",
        )
    found = find(by_host)
    notes = [Note(Remark.NODES, f"{len(by_host)} of {count(len(hosts), 'host')} answered")]
    if absent:
        error = last_line(replies[absent[0]].err)
        text = f"no answer from {folded(absent)}: {plain(error, 200)}; they stay in the site file"
        notes.append(Note(Remark.NO_ANSWER, text))
    notes += [Note(Remark.HOSTS, remark) for remark in found.remarks]
    return Survey(hosts=hosts, found=found, notes=tuple(notes))


def _patterns(hosts: tuple[str, ...]) -> list[str]:
    """Return the hosts as patterns; a comma inside brackets separates none."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", folded(hosts))
