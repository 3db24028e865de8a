"""NCCL settings: warnings before a run, and the list behind them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept import config
from accept.config.nccl_settings import remarks, settings
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.plan.resolve import Options, resolve

A4 = config.load_machine("a4-highgpu-8g").value
RACK = config.load_machine("gb200-4x").value


CPU = config.load_machine("cpu").value
UNKNOWN, CONTRADICTION = Code.NCCL_SETTING_UNKNOWN, Code.NCCL_CONTRADICTION


def warnings(
    env: dict[str, str], machine: config.Machine = A4, profile: str = "default"
) -> tuple[str, ...]:
    return remarks(env, machine, profile)


def test_a_misspelled_setting_has_a_warning_with_the_nearest() -> None:
    (line,) = warnings({"NCCL_IB_HAC": "mlx5"})
    assert line == (
        "warning[W-NCCL-SETTING-UNKNOWN]: NCCL_IB_HAC is not a known NCCL setting: "
        "did you mean NCCL_IB_HCA?"
    )


#: The code of the warning (None: there is none), the settings, the machine and its profile.
SETTINGS: list[tuple[Code | None, dict[str, str], config.Machine, str]] = [
    *((UNKNOWN, {n: "1"}, A4, "default")
      for n in ("nccl_ib_hca", "NCCL_COLNET_ENABLE", "NCCL_PROTOCOL")),
    *((None, {n: "1"}, A4, "default")
      for n in ("NCCL_ALGO", "NCCL_FASTRAK_NUM_FLOWS", "NCCL_TESTS_SPLIT", "UCX_TLS")),
    (CONTRADICTION, {"NCCL_NET": "Socket"}, A4, "default"),
    (CONTRADICTION, {"NCCL_NET": "IB"}, A4, "default"),
    (CONTRADICTION, {"NCCL_IB_DISABLE": "1"}, A4, "default"),
    (CONTRADICTION, {"NCCL_P2P_DISABLE": "1"}, A4, "default"),
    (CONTRADICTION, {"NCCL_P2P_LEVEL": "LOC"}, A4, "default"),
    (CONTRADICTION, {"NCCL_NET_GDR_LEVEL": "LOC"}, A4, "default"),
    (CONTRADICTION, {"NCCL_NVLS_ENABLE": "0"}, A4, "default"),
    (Code.NCCL_CHANNELS, {"NCCL_MAX_NCHANNELS": "4"}, A4, "default"),
    (CONTRADICTION, {"NCCL_NET_PLUGIN": "none"}, A4, "default"),
    (Code.NCCL_DEBUG, {"NCCL_DEBUG": "WARN"}, A4, "default"),
    (Code.NCCL_DEBUG, {"NCCL_DEBUG_SUBSYS": "COLL"}, A4, "default"),
    (Code.NCCL_DEBUG, {"NCCL_DEBUG_SUBSYS": "^INIT,NET"}, A4, "default"),
    (Code.NCCL_DEBUG, {"NCCL_DEBUG_FILE": "/tmp/%h"}, A4, "default"),
    *((None, {"NCCL_DEBUG_SUBSYS": value}, A4, "default")
      for value in ("INIT", "net,env", "ALL", "^COLL", "^NET", "^INIT")),
    # Only hardware that the machine has can be contradicted.
    (CONTRADICTION, {"NCCL_MNNVL_ENABLE": "0"}, RACK, "default"),
    (None, {"NCCL_MNNVL_ENABLE": "0", "NCCL_P2P_DISABLE": "0"}, A4, "default"),
    (None, {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_MAX_NCHANNELS": "1"}, CPU,
     "default"),
    # A profile may turn a path off.
    (None, {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, A4, "sockets"),
    (None, {"NCCL_P2P_DISABLE": "1"}, A4, "network"),
]  # fmt: skip


def test_settings_that_are_unknown_or_contradict_the_machine_have_a_warning() -> None:
    for code, env, machine, profile in SETTINGS:
        codes = {line.partition(": ")[0] for line in warnings(env, machine, profile)}
        assert codes == ({f"warning[{code}]"} if code else set()), (env, machine.name, profile)


def test_the_plan_has_warnings_for_the_site_file_and_the_option(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("nccl: {env: {NCCL_ALGOS: Ring}}\n")
    options = Options(
        machine="a4-highgpu-8g",
        nodes=2,
        backend="ssh",
        hosts=("a", "b"),
        site=str(tmp_path / "site.yaml"),
        nccl=("NCCL_NET=Socket",),
    )
    notes = "\n".join(resolve(options).notes)
    assert "did you mean NCCL_ALGO?" in notes
    assert "NCCL_NET=Socket contradicts a4-highgpu-8g" in notes


def test_every_setting_of_a_machine_is_on_the_list() -> None:
    for name in config.names("machines"):
        machine = config.load_machine(name).value
        for profile in machine.nccl.profiles.values():
            env = dict.fromkeys(profile.env, "")
            assert [one for one in remarks(env, machine, "default") if "UNKNOWN" in one] == []


@pytest.mark.parametrize(
    ("setting", "suggestion"),
    [
        ("profile=channels", "--nccl-profile channels"),
        ("profile=other", "--nccl-profile NAME"),
        ("DEBUG=INFO", "NCCL_DEBUG"),
        ("nccl_debug=INFO", "NCCL_DEBUG"),
        ("ALGOS=Ring", "NCCL_ALGO?"),
        ("CUDA_VISIBLE_DEVICES=0", "NCCL_"),
    ],
)
def test_a_name_that_nothing_reads_is_refused_with_a_suggestion(
    setting: str, suggestion: str, tmp_path: Path
) -> None:
    name, _, value = setting.partition("=")
    (tmp_path / "site.yaml").write_text(f"nccl: {{env: {{{name}: {value}}}}}\n")
    from_site = Options(machine="a4-highgpu-8g", backend="ssh", site=str(tmp_path / "site.yaml"))
    from_option = Options(machine="a4-highgpu-8g", backend="ssh", nccl=(setting,))
    for options in (from_site, from_option):
        with pytest.raises(BadInput) as refused:
            resolve(replace(options, hosts=("a",)))
        assert refused.value.code is Code.NCCL_SETTING_FOREIGN
        assert suggestion in refused.value.hint
        # A site file has keys, and no options.
        assert options is from_option or "--nccl " not in refused.value.hint


@pytest.mark.parametrize("name", ["FI_PROVIDER", "UCX_TLS", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_X"])
def test_settings_of_plugins_and_transports_are_taken(name: str) -> None:
    options = Options(machine="cpu", backend="ssh", hosts=("a",), nccl=(f"{name}=1",))
    assert resolve(options).env[name].value == "1"


def test_the_option_for_a_profile_gives_what_the_site_file_gives(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("nccl: {profile: channels}\n")
    options = Options(machine="a4-highgpu-8g", backend="ssh", hosts=("a", "b"))
    of_site = resolve(replace(options, site=str(tmp_path / "site.yaml")))
    of_option = resolve(replace(options, nccl_profile="channels"))
    assert of_option.env == of_site.env != resolve(options).env
    with pytest.raises(BadInput) as refused:
        resolve(replace(options, nccl_profile="chanels"))
    assert refused.value.code is Code.NCCL_PROFILE_UNKNOWN
    assert "channels" in refused.value.hint


def test_the_list_is_sorted_and_has_each_name_once() -> None:
    names = settings().names
    assert list(names) == sorted(set(names))


@given(st.dictionaries(st.text(max_size=12).map("NCCL_".__add__), st.text(max_size=12)))
def test_any_setting_gives_lines_of_text(env: dict[str, str]) -> None:
    for line in warnings(env):
        assert line.isprintable()
