"""Strict JSON schemas, for kubeconform, of kinds whose CRD the test cluster does not have.

The API server in dry-run mode takes objects of all other kinds, and refuses unknown fields.

    command = [str(program("kubeconform")), "-strict", *locations(), "-"]
"""

from __future__ import annotations

from pathlib import Path

#: Each has its source. kubeconform (`-schema-location`) looks for a kind by this name.
_FOREIGN = Path(__file__).with_name("foreign") / "{{.ResourceKind}}{{.KindSuffix}}.json"


def locations() -> tuple[str, ...]:
    """Return the options of kubeconform for these kinds."""
    return ("-schema-location", str(_FOREIGN))
