"""`accept pick` in an allocation of Slurm: srun uses the chosen nodes, wherever it is called."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from tests.cluster.network import bits
from tests.cluster.runs import CONNECT, PAIRS, VENV, Started
from tests.cluster.slurm.login import Login

#: Prints what srun gave a task.
_TASK = "echo {} $SLURMD_NODENAME $SLURM_NTASKS"
_JOB = f"""\
srun --nodes 2 sh -c '{_TASK.format("script")}'
echo variables $SLURM_NODELIST $SLURM_NNODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE
srun --nodes 1 --ntasks 1 --nodelist n4 sh -c '{_TASK.format("own")}'
exec {{srun}} --nodes 2 sh -c '{_TASK.format("direct")}; exit 9'
"""


def test_srun_uses_the_chosen_nodes_of_an_allocation(make_login: Callable[..., Login]) -> None:
    login = make_login()
    hosts, slow = login.hosts, login.host("n1")
    suite = login.suite([*CONNECT, *PAIRS])
    own = (str(VENV / "bin" / "accept"), "pick", "--need", "2", "--time", "20m")
    files = ("--machine", str(login.machine), "--site", str(login.site), "--suite", str(suite))
    job = login.folder / "job.sh"
    job.write_text(_JOB.replace("{srun}", "srun"))
    pick = shlex.join([*own, *files, "--", "sh", str(job)])
    hosts.shape(slow, f"{bits(hosts.rate or '') * 6 // 10_000}kbit")
    words = ["salloc", "--nodes=4", "--ntasks-per-node=2", "--exclusive", "--mem=0"]
    done = Started([*words, "sh", "-c", pick], login.environment, login.folder / "salloc").wait()
    hosts.shape(slow)
    assert done.exit == 9, done.err
    lines = sorted(line for line in done.out.splitlines() if not line.startswith("Welcome"))
    assert lines == [
        *("direct n2 4", "direct n2 4", "direct n3 4", "direct n3 4", "own n4 1"),
        *("script n2 4", "script n2 4", "script n3 4", "script n3 4"),
        "variables n2,n3 2 4 2(x2)",
    ]
    assert "left out n1: slow-outlier" in done.err
    login.nothing_is_left()
