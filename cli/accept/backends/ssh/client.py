"""Reach hosts with the user's own ssh and ssh configuration."""

from __future__ import annotations

import os
from pathlib import Path

from accept.backends.job import SshAccess
from accept.backends.remote import Reach
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import Invalid


def access_of(site: Site) -> SshAccess:
    """Return how the hosts of a site are reached. Raises BadInput for a value that ssh misreads."""
    config = os.environ.get("ACCEPT_SSH_CONFIG")
    try:
        return SshAccess(
            config_file=str(Path(config).absolute()) if config else None,
            user=site.ssh.user or None,
            port=site.ssh.port,
            jump_host=site.ssh.jump_host or None,
        )
    except Invalid as error:
        key = str(error.path[0])
        where = "ACCEPT_SSH_CONFIG" if key == "configFile" else f"ssh.{key} of the site file"
        raise BadInput(f"{where}: {error.message}", code=Code.SSH_OPTION, hint=error.hint) from None


def reach_of(access: SshAccess) -> Reach:
    """Return how ssh reaches hosts: by the user's own configuration, and `access` on top."""
    options = access.options()

    def arguments(host: str, command: str) -> list[str]:
        return ["ssh", *options, "--", host, f"exec /bin/sh -c {_quoted(command)}"]

    return Reach(arguments=arguments, missing=Code.SSH_MISSING, hint="install the OpenSSH client")


def _quoted(command: str) -> str:
    """Return the command in single quotes, which sh, csh and fish understand alike."""
    return "'" + command.replace("'", "'\\''") + "'"
