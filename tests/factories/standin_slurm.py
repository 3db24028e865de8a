"""Stand-in commands of Slurm on PATH, which print fixed texts."""

from __future__ import annotations

from pathlib import Path

from tests.factories.shell import write_program

NODES = "n1|idle|gpu:8|none\nn2|idle|gpu:h100:8(S:0-1)|none\nn3|drained|gpu:8|bad fan\n"
HELD = "JobId=7 JobName=a JobState=PENDING Reason=JobHeldAdmin Restarts=0 ExitCode=0:0 BatchHost="


class StandinSlurm:
    """Commands of Slurm that print fixed texts, before all others on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        partitions = "*%P*) echo gpu*; echo cpu ;; *%R*) echo 'gpu|up|infinite' ;;"
        self.set("sinfo", f"case $* in {partitions} *) printf '{NODES}' ;; esac")
        self.set("sbatch", "echo 7")
        self.set("scancel", f'echo "$*" >> {folder}/cancelled')
        self.set("scontrol", f"case $* in *hostnames*) echo $3 ;; *) echo '{HELD}' ;; esac")

    def set(self, name: str, script: str) -> None:
        """Replace a command."""
        write_program(self.folder / name, script)

    def fail(self, name: str, error: str) -> None:
        """Let a command fail with an error."""
        self.set(name, f'echo "{error}" >&2; exit 1')

    @property
    def cancelled(self) -> list[str]:
        """Return the arguments of each scancel."""
        file = self.folder / "cancelled"
        return file.read_text().splitlines() if file.exists() else []
