"""Read the rules that the command line and the templates of the chart share."""

from dataclasses import dataclass
from functools import lru_cache

from accept.config import resources
from accept.config.yaml_file import read_file


@dataclass(frozen=True, kw_only=True)
class ClaimVersion:
    """A version of ResourceClaimTemplate, and the first version of Kubernetes with it."""

    version: str
    since: str


@dataclass(frozen=True, kw_only=True)
class ChartRules:
    """The content of `chart/rules.yaml`."""

    #: Names of releases and of runs.
    name_pattern: str
    #: Names of variables that look like secrets, and those of them that name a file or a folder.
    secret_names: str
    secret_files: str
    #: Values that are secrets, whatever their name.
    secret_values: str
    #: Capabilities that sshd needs in a container whose user is root.
    sshd_capabilities: tuple[str, ...]
    #: The newest first.
    claim_versions: tuple[ClaimVersion, ...]


@lru_cache(maxsize=1)
def chart_rules() -> ChartRules:
    """Return the rules of the chart that comes with `accept`."""
    return read_file(ChartRules, resources.chart() / "rules.yaml")
