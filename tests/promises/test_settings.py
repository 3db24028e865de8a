"""No NCCL setting that a user gives is ignored: it takes effect, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accept import config
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.plan.resolve import Options, Resolved, resolve

MACHINES = config.names("machines")


def resolved(machine: str, *, profile: str = "", setting: str = "") -> Resolved:
    nccl = (setting,) if setting else ()
    given = Options(machine=machine, backend="ssh", hosts=("a", "b"), nccl=nccl)
    return resolve(replace(given, nccl_profile=profile))


@pytest.mark.sampled
@pytest.mark.parametrize("machine", MACHINES)
def test_each_profile_takes_effect_and_is_not_taken_for_a_variable(machine: str) -> None:
    profiles = config.load_machine(machine).value.nccl.profiles
    for name, profile in profiles.items():
        selected = resolved(machine, profile=name)
        assert selected.site.nccl.profile == name
        assert {setting for setting in profile.env if setting not in selected.env} == set()
        with pytest.raises(BadInput) as refused:
            resolved(machine, setting=f"profile={name}")
        assert refused.value.code is Code.NCCL_SETTING_FOREIGN
        assert f"--nccl-profile {name}" in refused.value.hint
