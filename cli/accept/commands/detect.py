"""Detect the machine of a run for which the user names none."""

from __future__ import annotations

from accept import backends
from accept.config import Site, load_site
from accept.plan.resolve import Options, choose_target


def detect(options: Options) -> str:
    """Return the name of the machine, as the back end that will run finds it on its hosts.

    Raises BadInput for options that no run could have, before anything is contacted, and NotStarted
    if no host or cluster shows the machine.
    """
    site = load_site(options.site).value if options.site else Site()
    target = choose_target(options, site)
    return backends.load(target.backend).detect(target.hosts, site, options.place)
