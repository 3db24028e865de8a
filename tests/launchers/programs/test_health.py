"""health.py on file trees like sysfs, and above a stand-in for NVIDIA's library."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.factories import nvml, smi
from tests.factories.paths import PROGRAMS
from tests.factories.programs import printed, records_of
from tests.factories.shell import run_program

import health_gpus
import xid_watch
from accept.core import record_protocol
from accept.core.health_readings import reading_of
from health_host import EVENTS

MISMATCH = "RM has detected an NVML/RM version mismatch."
#: Return codes that are a fault of a GPU: insufficient power, timeout, interrupt, infoROM, lost,
#: reset required, operating system, memory, not found, unknown.
FAULTS = (8, 10, 11, 14, 15, 16, 17, 20, 28, 999)
#: Return codes by which a GPU, driver or user has no such reading.
NO_READING = (2, 3, 4, 13, 21, 25, 26, 27)
LEVELS_OF_AN_H100 = {
    "temperature": 32,
    "memory-temperature": 39,
    "power": 75.401,
    "power-limit": 700,
    "power-limit-default": 700,
    "sm-clock": 345,
    "sm-clock-max": 1980,
    "sm-clock-application": 1980,
    "sm-clock-default": 1980,
    "persistence": 1,
    "banks-without-spares": 0,
    "memory-clock": 2619,
    "utilization": 0,
    "reasons": 1,
    "pcie-generation": 5,
    "pcie-generation-max": 5,
    "pcie-width": 16,
    "pcie-width-max": 16,
    "remap-pending": 0,
    "remap-failure": 0,
    "recovery-action": 0,
    "sram-threshold": 0,
    "ecc": 1,
    "ecc-default": 1,
    "mig": 0,
    "compute-mode": 0,
    "nvlinks": 18,
    "fabric-state": 3,
    "fabric-status": 0,
    "fabric-health": 0x1AA,
}

#: Levels that nvidia-smi does not report, or that are not read from it.
ONLY_BY_NVML = {
    *("sm-clock-max", "sm-clock-application", "sm-clock-default", "persistence"),
    *("banks-without-spares", "recovery-action", "sram-threshold", "ecc-default"),
    *("nvlinks", "fabric-state", "fabric-status", "fabric-health"),
}


def files(root: Path, **texts: object) -> None:
    """Write files below a folder; __ in their names stands for /."""
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def interface(root: Path, name: str, *, real: bool, **texts: object) -> None:
    """Create a network interface like the kernel: with a device, or below `virtual`."""
    where = "pci0000:00/0000:00:03.0/virtio2" if real else "virtual"
    folder = root / "sys/devices" / where / "net" / name
    files(folder, operstate="up", carrier_down_count=1, speed=-1, **texts)
    files(folder / "statistics", rx_errors=0, tx_errors=0, rx_dropped=3, tx_dropped=0)
    if real:
        (folder / "device").symlink_to("../..")
    links = root / "sys/class/net"
    links.mkdir(parents=True, exist_ok=True)
    (links / name).symlink_to(os.path.relpath(folder, links))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create the files of a virtual machine with one real interface."""
    root = tmp_path / "root"
    interface(root, "eth0", real=True)
    for name in ("lo", "docker0", "veth12", "ifb0"):
        interface(root, name, real=False)
    files(root, proc__vmstat="pgfault 12\noom_kill 0", proc__sys__kernel__random__boot_id="0f" * 8)
    files(root, dev__kmsg="6,1,5140900,-;eth0: renamed")
    return root


def health(root: Path, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run health.py; return its facts as one mapping."""
    return together(printed("health.py", "--root", root, *options, **(env or {})))


def together(text: str) -> dict[str, Any]:
    """Return the facts as one, with the GPUs in their order, as `reading_of` combines them."""
    found: dict[str, Any] = {"devices": [], "unread": []}
    read: dict[str, set[str]] = {}
    for value in (record["value"] for record in records_of(text)):
        own = value.pop("read", {})
        for kind, names in own.items():
            read.setdefault(kind, set()).update(names)
        for one in value.pop("devices", []):
            has = {*own[one["kind"]]} - {*one.get("missing", ())}
            found["devices"].append(one | {"missing": has})
        found["unread"] += value.pop("unread", [])
        found |= value
    for one in found["devices"]:
        if missing := sorted(read[one["kind"]] - one.pop("missing")):
            one["missing"] = missing
    found["devices"].sort(key=lambda one: int(one["name"]) if one["kind"] == "gpu" else -1)
    return found | {"read": {kind: sorted(names) for kind, names in read.items()}}


def gap(reason: str, devices: str = "none") -> dict[str, str]:
    return {"reason": reason, "devices": devices}


def titles(found: dict[str, Any]) -> list[str]:
    return [f"{one['kind']} {one['name']}".strip() for one in found["devices"]]


class TestHost:
    def test_interfaces_without_a_device_are_left_out(self, root: Path) -> None:
        found = health(root)
        assert titles(found) == ["net eth0", "host"]
        assert found["whole"] is True

    def test_a_zero_counter_is_left_out_but_listed_as_read(self, root: Path) -> None:
        found = health(root)
        assert found["devices"][0]["counters"] == {"rx_dropped": 3, "carrier_down_count": 1}
        assert "rx_errors" in found["read"]["net"]
        assert "rx_crc_errors" not in found["read"]["net"], "this one has none"

    @pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "x", ""])
    def test_an_invalid_counter_is_ignored(self, root: Path, text: str) -> None:
        (root / "sys/class/net/eth0/statistics/rx_dropped").write_text(text)
        found = health(root)
        assert found["devices"][0]["counters"] == {"carrier_down_count": 1}
        assert "rx_dropped" not in found["read"]["net"]

    def test_only_interfaces_of_the_run_are_marked(self, root: Path) -> None:
        assert health(root, "--interface", "eth0")["devices"][0]["levels"]["run"] == 1
        assert "run" not in health(root, "--interface", "")["devices"][0]["levels"]

    def test_reads_ports_of_rdma_devices(self, root: Path) -> None:
        port = root / "sys/class/infiniband/mlx5_2/ports/1"
        files(port, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
        files(port / "counters", symbol_error=3, link_downed=1, port_rcv_data=10**15)
        files(port / "hw_counters", out_of_sequence=9)
        files(
            port.parents[1] / "device", current_link_width=16, current_link_speed="32.0 GT/s PCIe"
        )
        one = health(root)["devices"][0]
        assert (one["kind"], one["name"]) == ("rdma", "mlx5_2/1")
        assert one["counters"] == {"symbol_error": 3, "link_downed": 1, "out_of_sequence": 9}
        assert one["levels"] == {"active": 1, "rate": 400, "pcie-width": 16, "pcie-speed": 32}

    @pytest.mark.parametrize(
        ("card", "slot", "most"), [((16, 32), (16, 32), (16, 32)), ((16, 32), (8, 16), (8, 16))]
    )
    def test_the_slot_limits_the_pcie_link_of_a_card(
        self, root: Path, card: tuple[int, int], slot: tuple[int, int], most: tuple[int, int]
    ) -> None:
        bridge = root / "sys/devices/pci0000:00/0000:00:01.0"
        limits = {bridge: slot, bridge / "0000:1b:00.0": card}
        for folder, (width, speed) in limits.items():
            files(folder, max_link_width=width, max_link_speed=f"{speed}.0 GT/s PCIe")
        files(bridge / "0000:1b:00.0", current_link_width=8, current_link_speed="16.0 GT/s PCIe")
        port = root / "sys/class/infiniband/mlx5_2/ports/1"
        files(port, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
        (port.parents[1] / "device").symlink_to(bridge / "0000:1b:00.0")
        levels = health(root)["devices"][0]["levels"]
        assert (levels["pcie-width-max"], levels["pcie-speed-max"]) == most
        assert (levels["pcie-width"], levels["pcie-speed"]) == (8, 16)

    def test_a_virtual_function_has_no_pcie_link(self, root: Path) -> None:
        port = root / "sys/class/infiniband/mlx5_2/ports/1"
        files(port, state="4: ACTIVE")
        files(port.parents[1] / "device", current_link_width=0, current_link_speed="Unknown")
        assert health(root)["devices"][0]["levels"] == {"active": 1}

    @pytest.mark.parametrize(("speed", "rate"), [(32, {"rate": 512}), (64, {})])
    def test_reads_errors_of_pci_express_of_cards_and_the_bridges_above(
        self, root: Path, speed: int, rate: dict[str, int]
    ) -> None:
        bridge = root / "sys/devices/pci0000:00/0000:00:01.0"
        card = bridge / "0000:1b:00.0"
        for folder in (bridge, card):
            files(folder, max_link_width=16, max_link_speed=f"{speed}.0 GT/s PCIe")
        files(card, vendor="0x10de", **{"class": "0x030200"})
        # The format of the kernel, with an unsupported request, which programs cause.
        corrected = "RxErr 3\nBadTLP 2\nNonFatalErr 9\nTOTAL_ERR_COR 14\n"
        files(card, aer_dev_correctable=corrected)
        files(card, aer_dev_nonfatal="CmpltTO 0\nUnsupReq 7\nTOTAL_ERR_NONFATAL 7\n")
        files(bridge, aer_dev_fatal="DLP 1\nTOTAL_ERR_FATAL 1\n")
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "sys/bus/pci/devices" / card.name).symlink_to(card)
        (root / "sys/bus/pci/devices" / bridge.name).symlink_to(bridge)
        found = [one for one in health(root)["devices"] if one["kind"] == "pcie"]
        assert {one["name"]: one["counters"] for one in found} == {
            bridge.name: {"aer-fatal": 1},
            card.name: {"aer-correctable": 5},
        }
        assert [one["levels"] for one in found] == [rate, rate]

    def test_reads_memory_errors_and_reports_a_missing_edac(self, root: Path) -> None:
        assert gap("memory errors (no EDAC)") in health(root)["unread"]
        files(root / "sys/devices/system/edac/mc/mc0", ue_count=1, ce_count=40)
        found = health(root)
        assert found["unread"] == []
        assert found["devices"][1]["counters"] == {"ue_count": 1, "ce_count": 40}

    def test_finds_xids_in_the_kernel_log(self, root: Path) -> None:
        (root / "dev/kmsg").write_text(
            "6,1,5000000,-;NVRM: loading\n"
            "3,2,6500000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off\n"
            " SUBSYSTEM=pci\n"
            "3,3,7000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32\n"
            "3,4,7100000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30\n"
        )
        log = health(root)["log"]
        assert (log["first"], log["last"]) == (5.0, 7.1)
        assert log["events"] == [
            {"at": 6.5, "kind": "xid", "pci": "0000:1b:00", "code": 79},
            {"at": 7.0, "kind": "sxid", "pci": "0000:c1:00", "code": 12028, "fatal": False},
            {"at": 7.1, "kind": "sxid", "pci": "0000:c1:00", "code": 20034, "fatal": True},
        ]

    def test_finds_crashes_of_the_kernel_and_nothing_like_them(self, root: Path) -> None:
        words = (
            "general protection fault, probably for non-canonical address 0x1: 0000 [#1] SMP",
            "Internal error: Oops: 0000000096000004 [#2] SMP",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
            "Kernel panic - not syncing: Fatal exception",
            "---[ end Kernel panic - not syncing: Fatal exception ]---",
            "mlx5_core 0000:5d:00.0: Internal error: command failed",
            "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [kworker/12:1:221]",
            "Command line: panic=10 oops=panic",
        )
        (root / "dev/kmsg").write_text("".join(f"0,1,1000000,-;{text}\n" for text in words))
        assert [event["words"] for event in health(root)["log"]["events"]] == [
            "general protection fault, probably for non-canonical address 0x1: 0000 [#1]",
            "Internal error: Oops: 0000000096000004 [#2]",
            "Watchdog detected hard LOCKUP on cpu 3",
            "Kernel panic - not syncing: Fatal exception",
        ]

    def test_finds_resets_and_fatal_errors_of_nvlink(self, root: Path) -> None:
        changed = "154, GPU recovery action changed from"
        (root / "dev/kmsg").write_text(
            "3,1,1000000,-;NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0\n"
            "3,2,2000000,-;NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK   Nonfatal XC1 i0\n"
            f"3,3,3000000,-;NVRM: Xid (PCI:0018:01:00): {changed} 0x0 (None) to 0x1 (GPU Reset)\n"
            f"3,4,4000000,-;NVRM: Xid (PCI:0018:01:00): {changed} 0x1 (GPU Reset) to 0x0 (None)\n"
        )
        events = health(root)["log"]["events"]
        assert [(e["kind"], e["code"], e.get("fatal")) for e in events] == [
            ("xid", 149, True),
            ("xid", 145, None),
            ("xid", 154, True),
            ("reset", 154, None),
        ]

    def test_a_flood_of_one_xid_hides_no_other(self, root: Path) -> None:
        line = "3,{0},{0}000000,-;NVRM: Xid (PCI:0000:1b:00): {1}, pid=1\n"
        text = line.format(1, 79) + "".join(line.format(n, 13) for n in range(2, 500))
        (root / "dev/kmsg").write_text(text)
        events = health(root)["log"]["events"]
        assert [(event["code"], event["at"]) for event in events] == [(79, 1.0), (13, 499.0)]

    def test_reports_why_the_log_cannot_be_read(self, root: Path) -> None:
        (root / "dev/kmsg").unlink()
        reason = "Xid in the kernel log (No such file or directory)"
        assert gap(reason) in health(root)["unread"]

    def test_an_empty_tree_can_be_read(self, tmp_path: Path) -> None:
        found = health(tmp_path)
        assert titles(found) == ["host"]
        assert found["read"]["host"] == []


class TestGpus:
    """The programs use the real bindings, above a stand-in for NVIDIA's library."""

    @pytest.fixture
    def root(self, root: Path) -> Path:
        nvml.host(root, range(2))
        return root

    @pytest.fixture
    def h100(self, tmp_path: Path) -> nvml.Scenario:
        return nvml.Scenario(tmp_path / "scenario", "h100", 2)

    @staticmethod
    def gpus(root: Path, scenario: nvml.Scenario) -> list[dict[str, Any]]:
        found = health(root, env=scenario.env)
        return [one for one in found["devices"] if one["kind"] == "gpu"]

    def test_reads_the_counters_of_nvml(self, root: Path, h100: nvml.Scenario) -> None:
        h100.change(
            "nvmlDeviceGetRemappedRows 0 : 0 1 0 0 0",
            "nvmlDeviceGetViolationStatus 0 0 : 0 5000000000",
            "nvmlDeviceGetNvLinkState 0 2 : 0 0",
            "nvmlDeviceGetNvLinkErrorCounter 0 1 0 : 0 7",
            "nvmlDeviceGetFieldValues 0 214 1 : 0 3 2",
            "nvmlDeviceGetFieldValues 0 221 0 : 0 3 5",
            "nvmlDeviceGetFieldValues 0 221 1 : 0 3 5",
        )
        one = self.gpus(root, h100)[0]
        assert (one["name"], one["pci"]) == ("0", nvml.address(0))
        assert one["counters"] == {
            "rows-remapped-corrected": 1,
            "pcie-replay": 2,
            "limited-power": 5_000_000_000,
            "nvlink-replay.1": 7,
            "nvlink-recovery-failed.1": 2,
            "nvlink-symbol-errors.0": 5,
            "nvlink-symbol-errors.1": 5,
        }
        assert (one["levels"]["nvlinks"], one["levels"]["power"]) == (17, 75.401)

    def test_reads_state_and_settings(self, root: Path, h100: nvml.Scenario) -> None:
        levels = self.gpus(root, h100)[1]["levels"]
        assert {name: levels.get(name) for name in LEVELS_OF_AN_H100} == LEVELS_OF_AN_H100
        assert levels.keys() - LEVELS_OF_AN_H100.keys() == set()

    def test_what_a_virtual_gpu_does_not_report_is_unread(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        h100.change("* 0 : 3", *nvml.opened(0))
        found = health(root, env=h100.env)
        assert [one["levels"] == {} for one in found["devices"][-2:]] == [True, False]
        (unread,) = [one["reason"] for one in found["unread"] if "Not Supported" in one["reason"]]
        for name in ("ECC mode", "NVLink", "fabric", "power-limit", "row remaps", "MIG mode"):
            assert name in unread
        assert all("errors" not in one for one in found["devices"])

    @pytest.mark.parametrize("value", ["-1", str(2**63), str(2**64 - 1)])
    def test_a_value_that_is_not_valid_costs_only_itself(
        self, root: Path, h100: nvml.Scenario, value: str
    ) -> None:
        h100.change(f"nvmlDeviceGetTotalEccErrors 0 0 0 : 0 {value}")
        found = health(root, env=h100.env)
        assert [one.get("missing") for one in found["devices"][-2:]] == [["ecc-corrected"], None]
        assert gap("ecc-corrected (unexpected value)") in found["unread"]

    @pytest.mark.parametrize("opened", ["opened", "not opened"])
    def test_a_fault_that_the_driver_reports_is_one_of_its_gpu(
        self, root: Path, tmp_path: Path, opened: str
    ) -> None:
        count = len(FAULTS) + 1
        scenario = nvml.Scenario(tmp_path / "scenario", "h100", count)
        nvml.host(root, range(count))
        for index, code in enumerate(FAULTS):
            scenario.change(*nvml.failed(index, code, handle=opened == "opened"))
        *bad, good = self.gpus(root, scenario)
        assert [[error["code"] for error in one["errors"]] for one in bad] == [[n] for n in FAULTS]
        assert [one["pci"] for one in bad] == [nvml.address(n) for n in range(len(FAULTS))]
        assert "errors" not in good
        assert good["levels"]["nvlinks"] == 18

    def test_a_reading_that_a_gpu_does_not_support_is_not_a_fault(
        self, root: Path, tmp_path: Path
    ) -> None:
        scenario = nvml.Scenario(tmp_path / "scenario", "h100", len(NO_READING))
        for index, code in enumerate(NO_READING):
            scenario.change(f"* {index} : {code}", *nvml.opened(index))
        found = self.gpus(root, scenario)
        assert len(found) == len(NO_READING)
        assert all("errors" not in one for one in found)

    def test_a_gpu_that_this_user_may_not_open_is_unread(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        h100.change("nvmlDeviceGetHandleByIndex 0 : 4")
        found = health(root, env=h100.env)
        assert titles(found)[-1] == "gpu 1"
        assert gap("GPU 0 (Insufficient Permissions)", "gpus") in found["unread"]

    def test_a_link_that_cannot_be_read_hides_no_other(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        h100.change("nvmlDeviceGetNvLinkState 0 0 : 999")
        one = self.gpus(root, h100)[0]
        assert one["levels"]["nvlinks"] == 17
        assert one["errors"] == [{"code": 999, "words": "Unknown Error", "readings": ["NVLink"]}]

    def test_an_unsupported_counter_is_reported_as_unread(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        found = health(root, env=h100.env)
        (unread,) = [one for one in found["unread"] if "retired pages" in one["reason"]]
        assert unread == gap("pages-pending, retired pages (Not Supported)")
        assert "pages-retired-double" not in found["read"]["gpu"]

    def test_a_counter_that_one_gpu_lacks_is_missing_there(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        h100.change("nvmlDeviceGetPcieReplayCounter 1 : 3")
        assert [one.get("missing", []) for one in self.gpus(root, h100)] == [[], ["pcie-replay"]]

    def test_a_host_with_72_gpus_fits_into_the_records(self, root: Path, tmp_path: Path) -> None:
        gpus = nvml.Scenario(tmp_path / "scenario", "h100", 72)
        gpus.change(
            *("nvmlDeviceGetNvLinkErrorCounter * : 0 1", "nvmlDeviceGetTotalEccErrors * : 0 9")
        )
        nvml.host(root, range(72))
        out = printed("health.py", "--root", root, "--quiet", **gpus.env)
        parsed = record_protocol.parse([out.encode()], "health")
        assert parsed.problems == ()
        devices = reading_of(parsed.facts).devices
        assert [d.name for d in devices if d.kind == "gpu"] == [str(n) for n in range(72)]

    def test_a_host_without_bindings_uses_those_of_the_run(
        self, root: Path, tmp_path: Path, h100: nvml.Scenario
    ) -> None:
        programs = tmp_path / "programs"
        shutil.copytree(PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"))
        (programs / "bindings").mkdir()
        shutil.copy(pynvml.__file__, programs / "bindings/pynvml.py")
        done = run_program(
            [sys.executable, "-S", programs / "health.py", "--root", root], env=h100.env, check=True
        )
        assert titles(together(done.stdout))[-1] == "gpu 1"

    def test_clock_reasons_are_read_by_their_old_name_from_nvml(
        self, root: Path, h100: nvml.Scenario
    ) -> None:
        h100.change(
            "nvmlDeviceGetCurrentClocksEventReasons * : 13",
            "nvmlDeviceGetCurrentClocksThrottleReasons * : 0 4",
        )
        found = health(root, env=h100.env)
        assert found["devices"][-1]["levels"]["reasons"] == 4
        assert not any("clock reasons" in one["reason"] for one in found["unread"])

    def by_smi(self, tmp_path: Path, root: Path, name: str) -> dict[str, Any]:
        """Return the reading of a host without NVML, whose nvidia-smi prints a recording."""
        scenario = nvml.Scenario(tmp_path / "scenario", "h100", 8)
        scenario.change("nvmlInit * : 18")
        return health(root, env={**scenario.env, **smi.write(tmp_path / "bin", name)})

    def test_without_nvml_nvidia_smi_reports_fewer_counters(
        self, root: Path, tmp_path: Path
    ) -> None:
        found = self.by_smi(tmp_path, root, "healthy")
        gpus = [one for one in found["devices"] if one["kind"] == "gpu"]
        assert [one["pci"] for one in gpus] == [nvml.address(n) for n in range(8)]
        assert all("errors" not in one for one in gpus)
        levels = {k: v for k, v in LEVELS_OF_AN_H100.items() if k not in ONLY_BY_NVML}
        assert gpus[0]["levels"] == levels | {"power": 75.4}
        kinds = ("corrected", "uncorrected")
        assert {*found["read"]["gpu"]} == {
            *(f"ecc-{kind}{tail}" for kind in kinds for tail in ("", "-aggregate")),
            *(f"rows-remapped-{kind}" for kind in kinds),
        }
        reason = f"NVLink, fabric, PCIe replays, time spent limited (NVML: {MISMATCH})"
        assert gap(reason) in found["unread"]

    def test_clock_reasons_are_read_by_their_old_name_from_nvidia_smi(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = {name.replace("event_reasons", "throttle_reasons") for name in smi.columns()}
        monkeypatch.setattr(smi, "columns", lambda: old)
        cells = {health_gpus._OLD_COLUMNS.get(k, k): v for k, v in smi._CELLS.items()}
        monkeypatch.setattr(smi, "_CELLS", cells)
        assert self.by_smi(tmp_path, root, "healthy")["devices"][-1]["levels"]["reasons"] == 1

    @pytest.mark.parametrize(
        ("name", "code"),
        [("lost", 15), ("reset", 16), ("unknown cells", 999), ("unknown, exit 0", 999)],
    )
    def test_a_fault_that_nvidia_smi_shows_is_one_of_its_gpu(
        self, root: Path, tmp_path: Path, name: str, code: int
    ) -> None:
        found = self.by_smi(tmp_path, root, name)
        (bad,) = [one for one in found["devices"] if "errors" in one]
        assert (bad["name"], bad["pci"]) == ("3", nvml.address(3))
        assert [error["code"] for error in bad["errors"]] == [code]
        assert len([one for one in found["devices"] if one["kind"] == "gpu"]) == 8

    def test_without_nvml_and_nvidia_smi_the_gpus_are_unread(
        self, root: Path, tmp_path: Path
    ) -> None:
        found = self.by_smi(tmp_path, root, "mismatch")
        (unread,) = [one for one in found["unread"] if one["devices"] == "gpus"]
        assert MISMATCH in unread["reason"]
        assert "Driver/library version mismatch" in unread["reason"]

    @pytest.mark.parametrize(
        ("hanging", "gpus"), [("nvmlInit *", 0), ("nvmlDeviceGetPowerUsage 1", 1)]
    )
    def test_a_reading_that_is_killed_keeps_what_was_read(
        self, root: Path, h100: nvml.Scenario, hanging: str, gpus: int
    ) -> None:
        """The kernel's readings are printed before the driver is queried; then its alarm fires."""
        h100.change(f"{hanging} : hang")
        process = subprocess.Popen(
            [sys.executable, PROGRAMS / "health.py", "--root", root],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **h100.env},
        )
        assert process.stdout is not None
        printed = ""
        while printed.count("ACCEPT {") < 1 + gpus:
            line = process.stdout.readline()
            assert line
            printed += line
        process.send_signal(signal.SIGALRM)
        assert process.wait() == -signal.SIGALRM, "it has no handler, so C code ends too"
        rest = process.stdout.read()
        process.stdout.close()
        found = together(printed + rest)
        assert "net" in found["read"]
        assert [t for t in titles(found) if "gpu" in t] == [f"gpu {n}" for n in range(gpus)]
        assert "whole" not in found


class TestXidWatcher:
    """The watcher lives from the first reading until its file is removed."""

    @pytest.fixture
    def root(self, root: Path) -> Path:
        files(root, dev__nvidiactl="")
        return root

    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[Path]:
        file = tmp_path / "xids"
        yield file
        held = file.open("rb") if file.exists() else None
        file.unlink(missing_ok=True)
        if held is not None:
            with held:
                # Returns when the watcher has ended.
                fcntl.flock(held, fcntl.LOCK_SH)

    @pytest.fixture
    def h100(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Scenario:
        monkeypatch.setenv("ACCEPT_EXEC", "a/step/0-0")
        return nvml.Scenario(tmp_path / "scenario", "h100", 8)

    @staticmethod
    def seen(root: Path, file: Path, scenario: nvml.Scenario, events: int) -> dict[str, Any]:
        """Read until the watcher has seen a number of events."""
        for _ in range(50):
            found = health(root, "--watch", str(file), env=scenario.env)
            if len(found["watch"].get("events", [])) >= events:
                return found
        raise AssertionError(f"fewer than {events} events: {found}")

    def test_xids_are_seen_by_later_readings(
        self, root: Path, file: Path, h100: nvml.Scenario
    ) -> None:
        first = self.seen(root, file, h100, 0)
        assert first["watch"]["events"] == []
        assert not any("Xids" in one["reason"] for one in first["unread"])
        h100.change(nvml.xid(3, 79))
        (event,) = self.seen(root, file, h100, 1)["watch"]["events"]
        assert (event["kind"], event["pci"], event["code"]) == ("xid", nvml.address(3), 79)
        assert event["at"] > first["watch"]["last"]

    def test_a_flood_of_one_xid_hides_no_other(
        self, root: Path, file: Path, h100: nvml.Scenario
    ) -> None:
        self.seen(root, file, h100, 0)
        h100.change(*[nvml.xid(0, 13)] * 1100, nvml.xid(3, 79))
        found = self.seen(root, file, h100, 2)
        events = {(one["pci"], one["code"]) for one in found["watch"]["events"]}
        assert events == {(nvml.address(0), 13), (nvml.address(3), 79)}
        assert "blind" not in found["watch"]

    @pytest.mark.parametrize("more", [0, 1])
    def test_more_kinds_of_events_than_a_reading_keeps_are_a_gap(
        self, file: Path, more: int
    ) -> None:
        codes = range(13, 13 + EVENTS + more)
        lines: list[dict[str, Any]] = [{"since": 1.0, "gpus": 8}]
        lines += [
            {"at": float(code), "pci": nvml.address(code % 8), "code": code} for code in codes
        ]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with file.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            found, why = xid_watch.state(file)
        assert found is not None
        assert [event["code"] for event in found["events"]] == [*codes][more:]
        assert len(found.get("blind", [])) == more == bool(why)

    def test_a_lost_gpu_ends_no_event_and_hides_no_other_gpu(
        self, root: Path, file: Path, h100: nvml.Scenario
    ) -> None:
        self.seen(root, file, h100, 0)
        h100.change(nvml.xid(3, 79), *nvml.failed(3))
        self.seen(root, file, h100, 2)
        h100.change(nvml.xid(5, 48))
        found = self.seen(root, file, h100, 3)
        events = [(one["kind"], one["pci"], one["code"]) for one in found["watch"]["events"]]
        lost, other = nvml.address(3), nvml.address(5)
        assert events == [("xid", lost, 79), ("lost", lost, 15), ("xid", other, 48)]
        assert "blind" not in found["watch"], "the other seven are watched"

    @pytest.mark.parametrize(
        "faults", [nvml.failed(3, handle=False), ("nvmlDeviceRegisterEvents 3 : 3",)]
    )
    def test_a_gpu_that_cannot_be_watched_hides_no_other(
        self, root: Path, file: Path, h100: nvml.Scenario, faults: Iterable[str]
    ) -> None:
        h100.change(*faults)
        found = self.seen(root, file, h100, 0)
        (blind,) = found["watch"]["blind"]
        assert blind.startswith("GPU 3: ")
        assert gap(f"Xids by NVML ({blind})") in found["unread"]
        h100.change(nvml.xid(5, 79))
        (event,) = self.seen(root, file, h100, 1)["watch"]["events"]
        assert event["pci"] == nvml.address(5)

    @pytest.mark.parametrize(
        "fault", ["nvmlDeviceRegisterEvents * : 3", "nvmlEventSetCreate * : 3", "nvmlInit * : 18"]
    )
    def test_without_events_of_any_gpu_nothing_is_watched(
        self, root: Path, file: Path, h100: nvml.Scenario, fault: str
    ) -> None:
        h100.change(fault)
        found = health(root, "--watch", str(file), env={**h100.env, "PATH": ""})
        assert "watch" not in found
        assert any(one["reason"].startswith("Xids by NVML (") for one in found["unread"])

    def test_a_watcher_that_ended_has_its_events_and_a_gap(
        self, root: Path, file: Path, h100: nvml.Scenario
    ) -> None:
        self.seen(root, file, h100, 0)
        h100.change(nvml.xid(3, 79), "nvmlEventSetWait * : 999")
        with file.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
        found = health(root, "--watch", str(file), env=h100.env)
        assert [event["code"] for event in found["watch"]["events"]] == [79]
        assert gap("Xids by NVML (Unknown Error)") in found["unread"]
        assert found["watch"]["blind"] == ["Unknown Error"]

    def test_a_host_without_a_driver_has_no_watcher(self, tmp_path: Path, file: Path) -> None:
        assert "watch" not in health(tmp_path / "empty", "--watch", str(file))
        assert not file.exists()


class TestByHand:
    def test_prints_a_description_for_people(self, root: Path) -> None:
        out = printed("health.py", "--root", root)
        assert "net eth0: active 1" in out
        assert "counted: rx_dropped 3" in out

    def test_without_a_python_the_host_reports_that(self, tmp_path: Path) -> None:
        for name in ("health.sh", "python.sh"):
            files(tmp_path, **{f"programs__{name}": (PROGRAMS / name).read_text()})
        files(tmp_path, env_sh="", interface_sh="", host="h0")
        (tmp_path / "interface.sh").write_text("route_interface() { :; }\n")
        (tmp_path / "bin").mkdir()
        for tool in ("cat", "dirname"):
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
        done = run_program(
            ["/bin/sh", tmp_path / "programs/health.sh"],
            env={"PATH": f"{tmp_path}/bin", "ACCEPT_DIR": str(tmp_path), "ACCEPT_SHELL": "/bin/sh"},
            check=True,
        )
        assert together(done.stdout)["unread"] == [gap("no Python 3.10", "all")]
