"""Which machine this is, where the user names none."""

from __future__ import annotations

from accept import backends
from accept.hostnames import expand
from accept.resolve import Options
from accept.spec import Site, load_site


def detect(options: Options) -> str:
    """The machine of the hosts that are meant: `gpu` where any has an NVIDIA GPU on its PCI bus."""
    site = load_site(options.site).value if options.site else Site()
    hosts = options.hosts or expand(site.ssh.hosts)
    backend = options.backend or site.backend or ("ssh" if hosts else "local")
    return backends.load(backend).detect(hosts, site, options.place)
