"""Which machine logs are of, by what they call its GPUs: looked up in the files of all machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accept import config
from accept.config import Machine
from accept.core.judge.hosts import is_device
from accept.core.text import plain


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A machine, and why it is this one."""

    machine: Machine
    why: str


def guess(devices: Sequence[str], gpus: int) -> Guess:
    """The machine whose device has that name and that has so many GPUs at least.

    Where there are several, the logs cannot tell which of them it is, and it is the one that is
    any node with GPUs. The name of a GPU says what is in a node and not what is between nodes: no
    transport is promised, and figures for more than one node are left out. `devices`: all names in
    the logs; none of them a GPU's: the machine without.
    """
    machines = [config.load_machine(name).value for name in config.names("machines")]
    called = ", ".join(plain(name, 60) for name in devices[:3]) or "no device"
    if all(name == "CPU" for name in devices):
        without = next(m for m in machines if m.gpus.count == 0)
        return Guess(machine=without, why=f"the logs name {called}")
    fitting = [
        m
        for m in machines
        if m.gpus.device
        and (m.gpus.count == "detect" or m.gpus.count >= gpus)
        and all(is_device(m.gpus.device, name) for name in devices)
    ]
    # One that can be anywhere fits before one of a certain cloud.
    anywhere = [m for m in fitting if not m.nccl.transport and not m.topology]
    fitting = anywhere if len(anywhere) == 1 else fitting
    if len(fitting) == 1:
        one = fitting[0]
        inside = tuple(figure for figure in one.references if figure.max_nodes == 1)
        unpromised = replace(one.nccl, transport="", transport_aliases=(), gpu_direct=False)
        machine = replace(one, references=inside, nccl=unpromised)
        why = f"the only one with {called}; its figures between nodes need --machine {one.name}"
        return Guess(machine=machine, why=why)
    generic = next(m for m in machines if m.gpus.count == "detect" and not m.gpus.device)
    could = ", ".join(m.name for m in fitting[:8])
    more = f"; it may be {could}: say which with --machine" if could else ""
    return Guess(machine=generic, why=f"any node with GPUs{more}")
