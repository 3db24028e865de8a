"""Read the output of `dcgmi diag` of DCGM 2, 3 and 4, as JSON (`-j`) and as the table it prints.

DCGM 2 and 3 name GPUs in `gpu_id` or `gpu_ids`, DCGM 4 in `entity_id`. Warnings are a text, texts,
or, from 3.1 on, objects with an error code. Codes and categories: dcgmlib/dcgm_errors.h. The table
has no codes, so known lines in a warning decide its cause.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from accept.core.causes import Cause
from accept.core.facts import integer, items, mapping, text
from accept.core.health_readings import Gap, Reading, Unread
from accept.core.records import Problem
from accept.core.signs import decisive
from accept.core.text import count, plain, shortened
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs.host_state import Gpu, Report, ReportKind

_START = re.compile(rb'"DCGM (?:GPU )?Diagnostic"\s*:')
_TABLE = re.compile(rb"^\| Diagnostic {2,40}\| Result {2,80}\|", re.MULTILINE)
#: A row of the table: a name, and a text that is cut after 45 characters.
_ROW = re.compile(r"\| ?(.{0,25}?) *\| (.{1,47}?) ?\|\s*$")
_TEXT_WIDTH = 45
_SECTION = re.compile(r"[|+]-{2,10} {1,4}(\w[\w ]{0,30}?) {1,4}-{2,60}")
_STATUS = re.compile(r"(Pass|Fail|Skip|Warn|Not Run)\w{0,2}(?: - (.{1,400}))?", re.IGNORECASE)
#: `dcgmi nvlink --link-status`: links that are up, down, disabled, or not supported.
_LINKS_TITLE = re.compile(rb"^\| {1,4}NvLink Link Status {1,4}\|", re.MULTILINE)
_LINKS = re.compile(r"^\s{1,8}gpuId (\d{1,4}):\s{1,16}([UDX_](?: [UDX_]){0,63})\s*$", re.MULTILINE)
_OF_GPU = re.compile(r"GPU ?(\d{1,4}): (Pass|Fail|Skip|Warn)\w{0,2}\b")
_NAMED_GPU = re.compile(r"GPU (\d{1,4})\b")
#: Upper limits of the document in bytes, and of tests, results and warnings.
_MAX_BYTES, _MAX_ITEMS, _MAX_WARNINGS = 32 << 20, 20_000, 20
#: Error code -> the cause. None: the same state of a GPU is only a note in a run, or the test did
#: not measure anything.
_CAUSES: dict[int, Cause | None] = {
    **dict.fromkeys((3, 98, 104, 107), Cause.PCIE_ERRORS),
    **dict.fromkeys((4, 5, 7, 8, 52, 57, 102, 103, 105, 106), Cause.GPU_ECC),
    **dict.fromkeys((6, 83, 85), Cause.GPU_RESET_REQUIRED),
    **dict.fromkeys((10, 12, 40, 41, 42, 43), Cause.GPU_THROTTLED),
    **dict.fromkeys((13, 70, 71), Cause.NVLINK_ERRORS),
    **dict.fromkeys((14, 99, 100), Cause.NVLINK_DOWN),
    **dict.fromkeys((15, 81, 101, 109), Cause.GPU_XID),
    **dict.fromkeys((30, 31, 50, 62, 63, 110), Cause.BELOW_REFERENCE),
    **dict.fromkeys((45, 46), Cause.PCIE_DEGRADED),
    **dict.fromkeys((55, 72), Cause.GPU_SETTINGS),
    **dict.fromkeys((58, 79, 86, 87, 111), Cause.WRONG_RESULT),
    **dict.fromkeys((56, 73), Cause.OUT_OF_MEMORY),
    **dict.fromkeys((16, 28, 29, 47, 48, 60, 68, 77, 78, 84), None),
    20: Cause.GPU_MISSING,
    25: Cause.GPU_BUSY,
    80: Cause.GPU_REMAP_FAILED,
    108: Cause.FABRIC_MANAGER,
}
#: Categories of errors that say nothing about a GPU: settings, libraries and DCGM itself.
_SOFTWARE = (3, 4, 7, 8, 16)
#: What DCGM writes, where it has no codes, for errors that are only notes in a run, and for those
#: of DCGM itself.
_NOTES = re.compile(r"persistence mode", re.IGNORECASE)
_INTERNAL = re.compile(r"internal error during the test|child process", re.IGNORECASE)
_NVLINK_DOWN = 14
_PASSED, _FAILED = ("pass", "passed"), ("fail", "failed")


@dataclass(frozen=True)
class _Result:
    """The result of one test on some GPUs."""

    test: str
    gpus: tuple[str, ...]
    status: str
    warnings: tuple[tuple[str, int | None, int | None], ...]


def is_diag(start: bytes) -> bool:
    """Return True if a file begins like the output of `dcgmi diag` or `dcgmi nvlink`."""
    if _START.search(start):
        return b"{" in start
    return bool(_TABLE.search(start) or _LINKS_TITLE.search(start))


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the results. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    if not _START.search(content):
        return [_read_table(file, content.decode("utf-8", "replace"))]
    # A host engine may print warnings before and after the document.
    whole = content[content.find(b"{") : content.rfind(b"}") + 1]
    try:
        document = mapping(json.loads(whole.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        gap = Gap(reason="the results of dcgmi diag (invalid or cut JSON)", devices=Unread.GPUS)
        return [_report(file, {}, [], [gap])]
    body = mapping(document.get("DCGM Diagnostic") or document.get("DCGM GPU Diagnostic"))
    results = list(_results(body))[:_MAX_ITEMS]
    gaps = []
    for source in (document, body):
        if error := text(source.get("runtime_error")):
            reason = f"the results of dcgmi diag ({plain(error, 160)})"
            gaps.append(Gap(reason=reason, devices=Unread.GPUS))
    return [_report(file, {**document, **body}, results, gaps)]


@dataclass
class _TableTest:
    """The rows of one test in the table."""

    #: "Pass", "Fail - All", "Skip - GPU: 1"; DCGM 3 has one row for each status.
    statuses: list[str]
    #: The texts below it, and whether each is a warning.
    texts: list[tuple[bool, str]] = field(default_factory=list)
    #: The status of each GPU, which DCGM 4 prints.
    gpus: dict[str, str] = field(default_factory=dict)

    def results(self, name: str) -> Iterator[_Result]:
        """Yield the results: of a GPU that a warning names, else of the GPUs of the status."""
        found = [match for one in self.statuses if (match := _STATUS.match(one))]
        rows = [
            (match[1].lower(), tuple(re.findall(r"\d{1,4}", match[2] or ""))) for match in found
        ]
        # Warnings are about what failed.
        status, named_gpus = next((row for row in rows if row[0] in _FAILED), rows[0])
        for other, others in rows:
            if (other, others) != (status, named_gpus):
                yield _Result(name, others, other, ())
        for gpu, of_gpu in self.gpus.items():
            yield _Result(name, (gpu,), of_gpu.lower(), ())
        warnings = [plain(words.strip(), 300) for is_warning, words in self.texts if is_warning]
        failed = tuple(gpu for gpu, of_gpu in self.gpus.items() if of_gpu.lower() in _FAILED)
        gpus = named_gpus or failed
        for words in warnings[:_MAX_WARNINGS]:
            named = _NAMED_GPU.findall(words)
            yield _Result(name, tuple(dict.fromkeys(named)) or gpus, status, ((words, None, None),))
        if not warnings:
            yield _Result(name, gpus, status, ())


def _read_table(file: str, content: str) -> Report:
    """Return the results in the table that dcgmi prints."""
    metadata: dict[str, str] = {}
    tests: dict[str, _TableTest] = {}
    section, test = "", None
    for line in content.splitlines()[:_MAX_ITEMS]:
        if found := _SECTION.match(line):
            section, test = found[1], None
        elif row := _ROW.match(line):
            title, words = row[1].strip(), row[2][:_TEXT_WIDTH]
            if section == "Metadata":
                metadata.setdefault(title, words.strip())
            elif title in ("Warning", "Error", "Info"):
                if test:
                    test.texts.append((title != "Info", words))
            elif title and _STATUS.match(words):
                test = tests.setdefault(plain(title, 60), _TableTest([words.strip()]))
            elif test and (found := _OF_GPU.match(words)):
                test.gpus[found[1]] = found[2]
            elif test and not (title or test.texts) and _STATUS.match(words):
                test.statuses.append(words.strip())
            elif test and test.texts:
                is_warning, before = test.texts[-1]
                test.texts[-1] = is_warning, before.ljust(_TEXT_WIDTH) + words
    results = [result for name, one in tests.items() for result in one.results(name)]
    gaps: list[Gap] = []
    for gpu, links in _LINKS.findall(content)[:_MAX_ITEMS]:
        down = links.count("D")
        if down and "U" in links:
            warning = f"{count(down, 'NVLink')} of GPU {gpu} down", _NVLINK_DOWN, None
            results.append(_Result("NvLink Link Status", (gpu,), "fail", (warning,)))
        elif down:
            # A GPU without a bridge, such as one with PCIe, shows the same.
            gap = Gap(reason=f"NVLinks of GPU {gpu} (all are down)", devices=Unread.GPUS)
            gaps.append(gap)
    ids = metadata.get("GPU Device IDs Detected", "")
    document = {
        "version": metadata.get("DCGM Version", ""),
        "Driver Version Detected": metadata.get("Driver Version Detected", ""),
        "GPU Device Serials": {str(number): "" for number in range(len(ids.split(",")))},
    }
    return _report(file, document, results[:_MAX_ITEMS], gaps)


def _report(
    file: str, document: Mapping[str, object], results: list[_Result], gaps: list[Gap]
) -> Report:
    metadata = {**document, **mapping(document.get("metadata"))}
    version = plain(text(metadata.get("version")) or "", 40)
    driver = plain(text(metadata.get("Driver Version Detected")) or "", 40)
    problems: dict[tuple[Cause, str | None, str], Problem] = {}
    notes: dict[str, None] = {}
    for result in results:
        if result.status not in _FAILED:
            continue
        for problem, note in _judged(result):
            if problem is not None:
                problems[problem.cause, problem.gpu, problem.message] = problem
            elif note.startswith("dcgmi could not"):
                gaps.append(Gap(reason=note, devices=Unread.GPUS))
            else:
                notes[note] = None
    tests: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name in dict.fromkeys(result.test for result in results):
        states = {result.status for result in results if result.test == name}
        key = "failed" if states & {*_FAILED} else "passed" if states & {*_PASSED} else "skipped"
        tests[key].append(name)
    shown = "; ".join(f"{key}: {shortened(names, 6)}" for key, names in tests.items() if names)
    more = f"; {shortened([*notes], 3)}" if notes else ""
    gpus = _gpus(document, results, driver)
    return Report(
        file=file,
        kind=ReportKind.DCGM,
        reading=Reading(unread=tuple(dict.fromkeys(gaps))[:_MAX_WARNINGS]),
        gpus=gpus,
        problems=tuple(problems.values())[:_MAX_ITEMS],
        shows=plain(
            f"{count(len(gpus), 'GPU')}, DCGM {version or 'unknown'}, driver "
            f"{driver or 'unknown'}, {shown or 'no result'}{more}",
            1500,
        ),
    )


def _judged(result: _Result) -> Iterator[tuple[Problem | None, str]]:
    """Yield a problem, or else a note, for each warning of a failed test."""
    gpu = result.gpus[0] if len(result.gpus) == 1 else None
    where = f"GPU {', '.join(result.gpus[:8])}" if result.gpus else "the node"
    for words, code, category in result.warnings or (("failed without a reason", None, None),):
        message = f"dcgmi diag, {result.test} on {where}: {words}"
        cause = _CAUSES.get(code or -1, Cause.GPU_DIAGNOSTIC)
        known = decisive(words.encode()) if code is None else ()
        if known:
            cause = known[0].sign.cause
        if code is None and _NOTES.search(message):
            cause = None
        is_internal = code is None and _INTERNAL.search(words)
        if cause is None:
            yield None, message
        elif is_internal or (code not in _CAUSES and category in _SOFTWARE):
            yield None, f"dcgmi could not test: {message}"
        else:
            # What a known line shows is a state of the host, such as that of its driver.
            yield Problem(cause=cause, message=message, gpu=None if known else gpu), message


def _results(body: Mapping[str, object]) -> Iterator[_Result]:
    categories = [mapping(category) for category in items(body.get("test_categories"))]
    tests = [test for category in categories for test in items(category.get("tests"))]
    for test in map(mapping, (*tests, *items(body.get("tests")))):
        name = plain(text(test.get("name")) or "", 60)
        results = [mapping(result) for result in items(test.get("results"))]
        for result in results:
            yield _result(name, result)
        summary = mapping(test.get("test_summary"))
        whole = _result(name, summary)
        if whole.status in _FAILED and not any(
            str(result.get("status", "")).lower() in _FAILED for result in results
        ):
            yield whole


def _result(name: str, result: Mapping[str, object]) -> _Result:
    return _Result(
        test=name,
        gpus=_gpu_ids(result),
        status=plain(text(result.get("status")) or "", 20).lower(),
        warnings=tuple(_warnings(result.get("warnings")))[:_MAX_WARNINGS],
    )


def _gpu_ids(result: Mapping[str, object]) -> tuple[str, ...]:
    if "entity_id" in result:
        group, entity = text(result.get("entity_group")), integer(result.get("entity_id"))
        return (str(entity),) if group in (None, "GPU") and entity is not None else ()
    value = result.get("gpu_id", result.get("gpu_ids"))
    return tuple(re.findall(r"\d{1,4}", str(value)[:400])) if value is not None else ()


def _warnings(value: object) -> Iterator[tuple[str, int | None, int | None]]:
    entries = value if isinstance(value, list) else [value] if value else []
    for entry in entries:
        if isinstance(entry, dict):
            code = integer(entry.get("error_id"))
            if code is None:
                code = integer(mapping(entry.get("error_id")).get("code"))
            words = plain(str(entry.get("warning", "")), 300)
            yield words, code, integer(entry.get("error_category"))
        else:
            yield plain(str(entry), 300), None, None


def _gpus(document: Mapping[str, object], results: list[_Result], driver: str) -> tuple[Gpu, ...]:
    serials = {k: str(v) for k, v in mapping(document.get("GPU Device Serials")).items()}
    for group in map(mapping, items(document.get("entity_groups"))):
        if group.get("entity_group") == "GPU":
            for entity in map(mapping, items(group.get("entities"))):
                serials[str(entity.get("entity_id"))] = str(entity.get("serial_num", ""))
    numbers = {*serials, *(gpu for result in results for gpu in result.gpus)}
    return tuple(
        Gpu(index=int(number), serial=plain(serials.get(number, ""), 40), driver=driver)
        for number in sorted((n for n in numbers if n.isdecimal() and len(n) < 4), key=int)
    )
