"""GPUs of test hosts: stand-ins for NVIDIA's library, nvidia-smi and the PCI bus."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.machines import Machines
from tests.factories import nvml, smi

#: The folder of the stand-ins on a host, whose /run is its own. The library looks for its scenario
#: here.
FOLDER = Path("/run/gpus")
#: The loader finds the library as it finds that of an installed driver, and commands find
#: nvidia-smi; both only on this host.
_INSTALL = f"""
cd {FOLDER}
echo {FOLDER} | cat - /etc/ld.so.conf > ld.so.conf
ldconfig -C ld.so.cache -f ld.so.conf
mount --bind ld.so.cache /etc/ld.so.cache
mount --bind bin /usr/local/sbin
mount --bind root/sys/bus/pci/devices /sys/bus/pci/devices
"""


def install(hosts: Machines, name: str, *faults: str, gpus: int = 8) -> None:
    """Give a host H100 GPUs. `faults` are lines of the library's scenario."""
    number = hosts.names.index(name)
    folder = hosts.path(name, str(FOLDER))
    folder.mkdir()
    shutil.copy(nvml.library() / nvml.NAME, folder)
    nvml.Scenario(folder / "scenario", "h100", gpus, host=number).change(*faults)
    smi.write(folder / "bin", "healthy", gpus, host=number)
    nvml.host(folder / "root", range(gpus))
    hosts.run(name, f"set -e; {_INSTALL}")
