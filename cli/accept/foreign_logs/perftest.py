"""Read what perftest prints, or writes with `--out_json`: ib_write_bw, ib_read_lat and the like.

Older versions write texts without quotes, so the values are found by their names. The file does not
show the unit of a bandwidth; message rate and size do. Names: src/perftest_parameters.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accept.core.causes import Cause
from accept.core.records import Metric, Problem
from accept.core.text import format_size, number, plain
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs.host_state import FIGURES, Report, ReportKind

_START = re.compile(
    rb'"test_info"\s*:.{0,4096}"results"\s*:\s*\{[^{}]{0,200}'
    rb'"(?:MsgSize|bw_avg|msgRate_avg|avg_lat|t_avg)"',
    re.DOTALL,
)
#: The printed form: the name of the test, values of its settings, titles of columns, rows.
_TITLE = re.compile(r" {4,40}((?:RDMA_|Send|Atomic)[\w ]{0,60}?(?:BW|Latency) Test)\s*$")
_SETTING = re.compile(r"(Device|Number of qps|Mtu|Link type)\s{1,20}: ?(\S{1,40})")
_COLUMNS = re.compile(rb"^ ?#bytes +#iterations +(?:BW peak|t_min)\[", re.MULTILINE)
_COLUMN = re.compile(r"#?[A-Za-z0-9_%]+(?: [a-z%]+)?(?:\[[^\s\]]{1,20}\])?")
_CELLS = re.compile(r" ?\d{1,12}(?:[ \t]+[\d.]{1,20}){2,16}\s*$")
#: A title of a column, without its unit -> the name of the value in the JSON.
_NAMES = {
    "#bytes": "MsgSize",
    "BW average": "BW_average",
    "MsgRate": "MsgRate",
    "t_avg": "t_avg",
    "t_typical": "t_typical",
    "99% percentile": "percentile_99",
}
#: The figures of the JSON, complete.
_RESULTS = re.compile(rb'"results"\s*:\s*\{[^{}]{0,2000}\}')
#: Words of failed tests, whose rows do not count, and of logs with such an output among others.
_OTHER = re.compile(rb"NCCL|# +nThread|Completion with error|Failed status")
_MAX_ROWS = 1000
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
    """Return True if a file begins like the output of perftest, or what `--out_json` writes."""
    if _START.search(start[:16384]):
        return True
    return bool(_COLUMNS.search(start[:16384])) and not _OTHER.search(start)


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the figures. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    if not _START.search(content[:16384]):
        return [_printed(file, content.decode("utf-8", "replace"))]
    values: dict[str, str] = {}
    complete = _RESULTS.search(content)
    end = complete.end() if complete else content.index(b'"results"')
    for name, value in _VALUE.findall(content[:end]):
        values.setdefault(name.decode("ascii"), value.decode("utf-8", "replace").strip())
    metrics = tuple(_metrics(_name(values), values))
    return [_report(file, values, metrics, is_cut=not complete)]


def _printed(file: str, content: str) -> Report:
    """Return the figures that perftest printed, of each size."""
    values: dict[str, str] = {}
    columns: list[str] = []
    metrics: list[Metric] = []
    *lines, rest = content.split("\n")
    for line in lines:
        if found := _TITLE.match(line):
            values, columns = {"test": found[1].replace(" ", "_")}, []
        elif line.lstrip().startswith("#bytes"):
            columns = [column.partition("[")[0] for column in _COLUMN.findall(line)]
        elif columns and _CELLS.match(line) and len(metrics) < _MAX_ROWS:
            cells = zip(columns, line.split(), strict=False)
            row = {_NAMES[column]: cell for column, cell in cells if column in _NAMES}
            metrics += _metrics(_name(values), {**values, **row})
        else:
            for key, value in _SETTING.findall(line):
                values.setdefault(key.replace(" ", "_"), value)
    metrics.sort(key=lambda metric: metric.size or 0, reverse=True)
    return _report(file, values, tuple(metrics), is_cut=bool(columns and rest.strip()))


def _name(values: dict[str, str]) -> str:
    """Return the name of the program in metrics, such as "ib-write-bw"."""
    found = _TEST.search(values.get("test", ""))
    return f"ib-{found[1]}-{found[2][:3]}".lower() if found else "perftest"


def _report(
    file: str, values: dict[str, str], metrics: tuple[Metric, ...], *, is_cut: bool
) -> Report:
    message = f"{plain(file, 100)} ends within the figures of perftest"
    cut = Problem(cause=Cause.PARTIAL_LOG, message=message, check=FIGURES)
    test = values.get("test", "")
    device = plain(values.get("Device", ""), 40)
    # Of several sizes, the largest one is shown.
    largest = max((m.size or 0 for m in metrics), default=0)
    shown = ", ".join(
        f"{m.name} {number(m.value)} {m.unit}{f' at {format_size(m.size)}' if m.size else ''}"
        for m in metrics
        if (m.size or 0) == largest
    )
    details = [
        plain(f"{text} {values[key]}", 60)
        for key, text in (("Link_type", "link"), ("Mtu", "MTU"), ("Number_of_qps", "queue pairs:"))
        if key in values
    ]
    shows = f"{plain(test, 60)} over {device or 'an unknown device'}: {shown or 'no figure'}"
    return Report(
        file=file,
        kind=ReportKind.PERFTEST,
        metrics=metrics,
        problems=(cut,) if is_cut else (),
        shows=f"{shows} ({', '.join(details)})" if details else shows,
    )


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
