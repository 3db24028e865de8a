"""Define the settings for Slurm in a site file; options of the same names replace them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated

from accept.config.expectations import Seconds
from accept.core.serde import Doc, Pattern

_Word = Annotated[str, Pattern(r"[^\s\x00-\x1f\x7f]{1,256}", "a word without blanks")]
_Argument = Annotated[
    str, Pattern(r"--?[A-Za-z][^\x00-\x1f\x7f]{0,1023}", "an option of sbatch such as --comment=x")
]


class Launcher(StrEnum):
    """A program that starts ranks on the nodes of a job."""

    #: Over the run's own sshds, so that it makes no steps.
    MPIRUN = "mpirun"
    #: One step for each launch; the MPI library needs PMIx.
    SRUN_PMIX = "srun-pmix"
    #: The same with PMI-2 or PMI-1.
    SRUN_PMI2 = "srun-pmi2"


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A Slurm cluster; each key except `gres` and `launcher` is an option of sbatch."""

    partition: Annotated[_Word | None, Doc("Partition of the job; unset: the default one.")] = None
    exclude: Annotated[tuple[_Word, ...], Doc("Nodes not to use, or patterns of them.")] = ()
    reservation: Annotated[_Word | None, Doc("Reservation to use.")] = None
    account: Annotated[_Word | None, Doc("Account that is charged.")] = None
    qos: Annotated[_Word | None, Doc("Quality of service.")] = None
    constraint: Annotated[_Word | None, Doc("Features that the nodes must have.")] = None
    time: Annotated[
        Seconds | None, Doc("Time limit of the job; unset: the longest that the run can take.")
    ] = None
    gres: Annotated[
        _Word | None,
        Doc("GPUs to request, as for --gres; unset: all of a node's if Slurm lists them; or none."),
    ] = None
    launcher: Annotated[
        Launcher | None,
        Doc("Program that starts the ranks: mpirun, srun-pmix or srun-pmi2; unset: mpirun."),
    ] = None
    sbatch_args: Annotated[tuple[_Argument, ...], Doc("More options of sbatch.")] = ()

    def override(self, other: Slurm) -> Slurm:
        """Return these settings, with those that `other` sets replaced."""
        pairs = ((item.name, getattr(other, item.name)) for item in fields(other))
        return replace(self, **{name: value for name, value in pairs if value})
