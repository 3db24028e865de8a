"""Write the results that rccl-tests writes as JSON (`-x FILE`) as the rows of a table.

There is a record for each size and placement, in lines or in a list. It has no devices. Format:
rccl-tests src/common.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from accept.core.facts import mapping, text
from accept.evidence.untrusted import first_bytes

_START = re.compile(rb"[\s\[]*\{[^{}]{0,400}\"(?:algBw|busBw)\"\s*:")
_RECORD = re.compile(rb"\{[^{}]{1,4000}\}")
_COLUMNS = """#
#                                                out-of-place                in-place
#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)
"""
#: Upper limit of what is read, in bytes.
_MAX_BYTES = 16 << 20
_BYTES = {"int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "double": 8}
#: The name in a record, in lower case -> that of the program.
_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "alltoall",
    "sendrecv": "sendrecv",
    **{name: name for name in ("broadcast", "reduce", "gather", "scatter")},
}
_IN_PARTS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")


def is_rccl(start: bytes) -> bool:
    """Return True if a file begins like the JSON of rccl-tests."""
    return bool(_START.match(start))


def as_text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the results as nccl-tests prints them. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    rows: dict[tuple[str, ...], dict[bool, str]] = {}
    for found in _RECORD.finditer(content):
        try:
            record = mapping(json.loads(found[0]))
            name = _NAMES[(text(record.get("name")) or "").lower()]
            size, elements = int(str(record["size"])), _elements(name, record)
            key = (name, str(size), str(elements), str(record["type"]), str(record["redop"]))
            side = (
                f"{float(str(record['time'])):.4f} {float(str(record['algBw'])):.4f} "
                f"{float(str(record['busBw'])):.4f} {record['#wrong']}"
            )
        except (KeyError, ValueError, RecursionError):
            continue
        rows.setdefault(key, {})[str(record.get("inPlace")) in ("1", "True")] = side
    before = ""
    for (name, *cells), sides in rows.items():
        if name != before:
            before = name
            yield f"# Collective test starting: {name}_perf\n{_COLUMNS}".encode()
        # A file that was cut may have one placement only.
        if len(sides) == 2:
            row = (*cells, "-1", sides[False], sides[True])
            yield (" ".join(map(_one_line, row)) + "\n").encode("utf-8", "replace")


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


def _elements(name: str, record: Mapping[str, object]) -> int:
    """Return the number of elements, as a table shows it."""
    ranks = int(str(record.get("ranks", record.get("gpus", 1)))) if name in _IN_PARTS else 1
    return int(str(record["size"])) // (_BYTES.get(str(record["type"]), 4) * max(1, ranks))
