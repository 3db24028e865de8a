"""What logs show of the GPUs of each host: which they are, how many took part, what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accept.core.judge.completeness import some
from accept.core.judge.hosts import is_device
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import Fact, PlannedMachine, Problem, Record
from accept.nccl_logs.corpus import Execution, Logs

#: What stands in place of a GPU's name, and of its PCI address, where there is none.
_CPU, _NO_BUS = "CPU", "0x00"


def hosts_record(logs: Logs, executions: Sequence[Execution], machine: PlannedMachine) -> Record:
    """Who took part, what the logs call their GPUs, and what is wrong with that."""
    gpus: dict[str, dict[int, str]] = {}
    for one, _ in logs.read:
        for table in one.tables:
            for device in table.devices:
                if device.bus != _NO_BUS:
                    gpus.setdefault(device.host, {})[device.device] = device.name
    return Record(
        step=HOSTS_STEP,
        checks=("hosts",),
        wave=0,
        group=0,
        hosts=logs.hosts,
        exit=0,
        facts=tuple(
            Fact(
                name="inventory",
                host=host,
                value={"gpus": [{"index": i, "name": mine[i]} for i in sorted(mine)]},
            )
            for host, mine in gpus.items()
        ),
        problems=(*_fewer(executions), *_others(logs, machine)),
    )


def different(logs: Logs) -> str:
    """Which hosts have which GPUs, in words; empty: all have the same."""
    kinds: dict[str, list[str]] = {}
    for host, names in _names(logs).items():
        kinds.setdefault(" and ".join(sorted(names)), []).append(host)
    if len(kinds) < 2:
        return ""
    said = "; ".join(f"{name} on {some(hosts)}" for name, hosts in kinds.items())
    return f"the GPUs differ, and each kind is compared with its own alone: {said}"


def _names(logs: Logs) -> dict[str, set[str]]:
    """What the logs call the devices of each host that they name."""
    found: dict[str, set[str]] = {host: set() for host in logs.hosts}
    for one, _ in logs.read:
        for table in one.tables:
            for device in table.devices:
                if device.name:
                    found[device.host].add(device.name)
    return {host: names for host, names in found.items() if names}


def _fewer(executions: Sequence[Execution]) -> Iterator[Problem]:
    """Hosts that never showed as many GPUs as most hosts did."""
    most: dict[str, int] = {}
    for one in executions:
        for host, gpus in one.gpus.items() if one.measured else ():
            most[host] = max(most.get(host, 0), len(gpus))
    for usual, count in Counter(most.values()).most_common(1):
        for host, mine in most.items():
            if mine < usual and count * 2 > len(most):
                said = f"{host} has {mine} GPUs in all logs, {count} of {len(most)} hosts {usual}"
                yield Problem(cause="gpu-missing", message=said, host=host)


def _others(logs: Logs, machine: PlannedMachine) -> Iterator[Problem]:
    """Devices other than the machine's. Where most hosts have them, it is none of the hosts."""
    names = _names(logs)
    bad = {
        host: sorted(one for one in mine if _foreign(one, machine)) for host, mine in names.items()
    }
    bad = {host: devices for host, devices in bad.items() if devices}
    has = machine.device or "no GPUs"
    said = f"the machine {machine.name} has {has}"
    if len(bad) * 2 > len(names):
        device = next(iter(bad.values()))[0]
        text = f"{len(bad)} of {len(names)} hosts have {device}, {said}: another --machine?"
        yield Problem(cause="inventory-mismatch", message=text)
        return
    for host, devices in bad.items():
        text = f"{host} has {devices[0]}, {said}"
        yield Problem(cause="inventory-mismatch", message=text, host=host)


def _foreign(device: str, machine: PlannedMachine) -> bool:
    if machine.gpus == 0:
        return device != _CPU
    return bool(machine.device) and not is_device(str(machine.device), device)
