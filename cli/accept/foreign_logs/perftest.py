"""Read the file that perftest writes with `--out_json`: ib_write_bw, ib_read_lat and the like.

Older versions write texts without quotes, so the values are found by their names. The file does not
show the unit of a bandwidth; message rate and size do. Names: src/perftest_parameters.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accept.core.model import Metric
from accept.core.text import format_size, number, plain
from accept.foreign_logs.host_state import FIGURES, Report, ReportKind

_START = re.compile(
    rb'"test_info"\s*:.{0,4096}"results"\s*:\s*\{[^{}]{0,200}'
    rb'"(?:MsgSize|bw_avg|msgRate_avg|avg_lat|t_avg)"',
    re.DOTALL,
)
_VALUE = re.compile(rb'"([\w%.]{1,40})"\s*:\s*"?([^",\n{}]{1,80})')
_MAX_BYTES = 1 << 20
#: The name of the test -> that of its program; RDMA_Write_BW_Test is that of ib_write_bw.
_TEST = re.compile(r"(?:RDMA[ _])?(Write|Read|Send|Atomic)\w*?[ _](BW|Lat\w*)", re.IGNORECASE)
#: Bytes per second of the units in which perftest writes a bandwidth: MB/s and Gbit/s.
_UNITS = (2.0**20, 1e9 / 8)
#: Share by which the bandwidth may differ from message rate times size: both are rounded.
_ROUNDED = 0.03
#: Latencies: the name in the file -> the end of the metric's name.
_LATENCIES = {"t_avg": "", "avg_lat": "", "t_typical": "-typical", "percentile_99": "-p99"}


def is_perftest(start: bytes) -> bool:
    """Return True if a file begins like one that perftest writes with `--out_json`."""
    return bool(_START.search(start[:16384]))


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the figures. No content raises an error."""
    content = b""
    for block in blocks:
        content += block
        if len(content) > _MAX_BYTES:
            break
    values: dict[str, str] = {}
    for name, value in _VALUE.findall(content[:_MAX_BYTES]):
        values.setdefault(name.decode("ascii"), value.decode("utf-8", "replace").strip())
    test = values.get("test", "")
    found = _TEST.search(test)
    name = f"ib-{found[1]}-{found[2][:3]}".lower() if found else "perftest"
    metrics = tuple(_metrics(name, values))
    device = plain(values.get("Device", ""), 40)
    shown = ", ".join(
        f"{m.name} {number(m.value)} {m.unit}{f' at {format_size(m.size)}' if m.size else ''}"
        for m in metrics
    )
    details = [
        plain(f"{text} {values[key]}", 60)
        for key, text in (("Link_type", "link"), ("Mtu", "MTU"), ("Number_of_qps", "queue pairs:"))
        if key in values
    ]
    shows = f"{plain(test, 60)} over {device or 'an unknown device'}: {shown or 'no figure'}"
    return [
        Report(
            file=file,
            kind=ReportKind.PERFTEST,
            metrics=metrics,
            shows=f"{shows} ({', '.join(details)})" if details else shows,
        )
    ]


def _metrics(name: str, values: dict[str, str]) -> Iterator[Metric]:
    size = _number(values, "MsgSize")
    nic = values.get("Device")
    known = int(size) if size and size < 1 << 40 else None

    def metric(name: str, value: float, unit: str) -> Metric:
        return Metric(check=FIGURES, name=name, value=value, unit=unit, size=known, nic=nic)

    bandwidth = _number(values, "BW_average")
    rate = _number(values, "MsgRate")
    if bandwidth and rate and size:
        bytes_per_second = rate * 1e6 * size
        for unit in _UNITS:
            if abs(bandwidth * unit - bytes_per_second) <= _ROUNDED * bytes_per_second:
                yield metric(name, bandwidth * unit / 1e9, "GB/s")
    if rate:
        yield metric(f"{name}-rate", rate, "M/s")
    for key, suffix in _LATENCIES.items():
        if value := _number(values, key):
            yield metric(f"{name}{suffix}", value, "us")


def _number(values: dict[str, str], key: str) -> float | None:
    text = values.get(key, "")
    return float(text) if re.fullmatch(r"\d{1,15}(\.\d{1,12})?", text) else None
