"""Whether what equal devices computed is equal, bit for bit, by the digests they print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from accept.core.judge.completeness import place
from accept.core.judge.consistency import whole
from accept.core.judge.evidence import Evidence
from accept.core.model import Problem

_NAMED = ("wrong-result", "not-finite")
_TEXTS = ("type", "exact", "random", "device", "software")


class _Told(NamedTuple):
    host: str | None
    rank: int | None
    gpu: str | None
    digest: str


def digest_problems(evidence: Evidence, cause: str = "wrong-result") -> Iterator[Problem]:
    """Devices whose digest is not that of more than half of their equals, as problems of `cause`.

    The known product (`exact`) has one digest for all devices; that of random data (`random`) for
    those of one name and one version of the software. Without a majority nobody is named. Devices
    that a problem names already are left out. All executions of the check are compared.
    """
    groups: dict[tuple[str, ...], list[_Told]] = {}
    for record in evidence.records:
        gpus = {(m.host, m.rank): m.gpu for m in record.metrics if m.gpu}
        named = {(p.host, p.rank) for p in record.problems if p.cause in (*_NAMED, cause)}
        for fact in record.facts:
            mine = fact.name == "digest" and fact.check == evidence.check
            if mine and (fact.host, fact.rank) not in named:
                for key, digest in _digests(fact.value):
                    gpu = gpus.get((fact.host, fact.rank))
                    groups.setdefault(key, []).append(_Told(fact.host, fact.rank, gpu, digest))
    for (kind, what, *_), told in groups.items():
        counts = Counter(one.digest for one in told)
        (usual, most), *others = counts.most_common()
        if not others:
            continue
        data = "a known product" if what == "exact" else "the same random data"
        if 2 * most <= len(told):
            said = f"{kind}: {len(told)} devices gave {len(counts)} different results of {data}"
            yield Problem(cause=cause, message=said)
            continue
        for one in told:
            if one.digest != usual:
                said = f"{kind}: {data} gave {place(one.host, one.rank, one.gpu)} another result "
                said += f"than {most} of {len(told)} equal devices"
                yield Problem(cause=cause, message=said, host=one.host, rank=one.rank, gpu=one.gpu)


def undigested(evidence: Evidence) -> Iterator[Problem]:
    """Devices that counted the wrong elements of a product and say nothing of what it was.

    GPUs have digests of both products, others that of the known one.
    """
    for record in evidence.records:
        told: set[tuple[str | None, int | None, str, str]] = set()
        for fact in record.facts:
            if fact.name == "digest" and fact.check == evidence.check:
                for (kind, what, *_), _digest in _digests(fact.value):
                    told.add((fact.host, fact.rank, kind, what))
        for metric in record.metrics:
            kind, _, what = metric.name.rpartition("-")
            if metric.check == evidence.check and what == "wrong":
                wanted = ("exact", "random") if metric.gpu else ("exact",)
                lacking = [w for w in wanted if (metric.host, metric.rank, kind, w) not in told]
                if lacking:
                    where = place(metric.host, metric.rank, metric.gpu)
                    said = (
                        f"{where} reported no digest of the {kind} product ({', '.join(lacking)})"
                    )
                    yield Problem(
                        cause="no-measurement",
                        message=said,
                        host=metric.host,
                        rank=metric.rank,
                        gpu=metric.gpu,
                    )


def _digests(value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a fact says, by what must be equal; nothing where it is damaged."""
    if not isinstance(value, dict):
        return
    said = {key: str(value[key])[:120] for key in _TEXTS if isinstance(value.get(key), str)}
    kind, size = said.get("type", ""), str(whole(value.get("size")))
    if "exact" in said:
        yield (kind, "exact", size), said["exact"]
    if "random" in said:
        equals = said.get("device", ""), said.get("software", "")
        yield (kind, "random", size, *equals), said["random"]
