"""Access to the hosts of a run over ssh: named fields in job.json that cannot run a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories.command_line import refused
from tests.factories.shell import run_program
from tests.factories.standin_ssh import StandinSsh, standin_ssh

from accept.backends.job import Job, SshAccess
from accept.backends.ssh.client import access_of
from accept.config.site import Site, Ssh
from accept.core import evidence
from accept.core.errors import BadInput
from accept.core.serde import Invalid, dump, read
from accept.evidence import rundir


def job(**values: object) -> dict[str, Any]:
    """Return the content of a job.json, with `values` on top."""
    return {
        "schema": 1,
        "backend": "ssh",
        "attempt": "one",
        "hosts": ["node1"],
        "first": "node1",
        "folder": "/tmp/accept-one",
        **values,
    }


ACCESS = SshAccess(
    config_file="/home/me/a config", user="me", port=2222, jump_host="me@gate:22,[fe80::1]"
)


class TestAJobFile:
    def test_holds_the_access_by_name(self) -> None:
        stored = dump(read(Job, job(sshAccess=dump(ACCESS))))
        assert stored["sshAccess"] == {
            "configFile": "/home/me/a config",
            "user": "me",
            "port": 2222,
            "jumpHost": "me@gate:22,[fe80::1]",
        }
        assert read(Job, stored).ssh_access == ACCESS

    @pytest.mark.parametrize(
        "values",
        [
            *(
                {"sshAccess": access}
                for access in (
                    {"user": "-oProxyCommand=touch x"},
                    {"user": "me\n-oProxyCommand=x"},
                    {"user": "$(touch x)"},
                    {"port": 0},
                    {"port": "22"},
                    {"jumpHost": "-oProxyCommand=x"},
                    {"jumpHost": "gate,-oProxyCommand=x"},
                    {"jumpHost": "me@-oProxyCommand=x"},
                    {"jumpHost": "gate;touch x"},
                    {"configFile": "config"},
                    {"configFile": "-oProxyCommand=x"},
                    {"configFile": "/a\nb"},
                    {"proxyCommand": "touch x"},
                )
            ),
            # Hosts and folders that no run has.
            {"hosts": ["-oProxyCommand=x"]},
            {"hosts": ["a b"]},
            {"first": "other"},
            {"folder": "/home/me"},
            {"folder": "relative/accept-one"},
            {"folder": "/tmp/../home/accept-one"},
            {"folder": "/tmp/accept-another"},
            {"folder": "/tmp/$(touch x)/accept-one"},
        ],
        ids=str,
    )
    def test_that_could_run_a_program_or_that_no_run_has_is_refused(
        self, values: dict[str, object]
    ) -> None:
        with pytest.raises(Invalid):
            read(Job, job(**values))

    @pytest.mark.parametrize("command", ["collect", "watch", "cancel", "clean"])
    def test_that_is_refused_starts_no_ssh(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
        hosts: StandinSsh = standin_ssh(tmp_path / "ssh", monkeypatch)
        folder = rundir.create("one")
        data = job(sshAccess={"user": "-oProxyCommand=touch pwned"})
        evidence.write(folder / rundir.JOB, json.dumps(data))
        refused(command, "one")
        assert hosts.calls == []


class TestAnAccess:
    def test_forwards_no_agent_or_settings_of_the_user_to_hosts(self, tmp_path: Path) -> None:
        """Tested hosts are not trusted, even if the user's configuration trusts them."""
        config = tmp_path / "config"
        config.write_text(
            "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  LocalForward 8080 localhost:80\n"
            "  RemoteForward 8081 localhost:81\n  DynamicForward 1080\n  Tunnel yes\n"
            "  RemoteCommand sleep 9\n  RequestTTY force\n  LocalCommand touch x\n"
            "  PermitLocalCommand yes\n"
        )
        options = SshAccess(config_file=str(config)).options()
        done = run_program(["ssh", *options, "-G", "a"], check=True)
        settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        assert settings["clearallforwardings"] == "yes"
        assert settings.get("remotecommand", "none") == "none"
        for key in ("forwardagent", "forwardx11", "tunnel", "permitlocalcommand", "requesttty"):
            assert settings[key] in ("no", "false"), key

    def test_never_takes_a_configuration_from_the_folder_of_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path))
        with pytest.raises(Invalid):
            SshAccess(config_file=str(tmp_path / "one" / "config"))

    def test_of_a_site_is_independent_of_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ACCEPT_SSH_CONFIG", "config")
        access = access_of(Site(ssh=Ssh(user="me", port=22, jump_host="gate")))
        assert access == SshAccess(
            config_file=str(tmp_path / "config"), user="me", port=22, jump_host="gate"
        )

    def test_of_a_site_names_the_key_that_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ACCEPT_SSH_CONFIG", raising=False)
        with pytest.raises(BadInput, match="jumpHost"):
            access_of(Site(ssh=Ssh(jump_host="gate; touch x")))
