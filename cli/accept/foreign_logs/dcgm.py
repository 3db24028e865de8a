"""Read the output of `dcgmi diag -j` of DCGM 2, 3 and 4, which differ.

DCGM 2 and 3 name GPUs in `gpu_id` or `gpu_ids`, DCGM 4 in `entity_id`. Warnings are a text, texts,
or, from 3.1 on, objects with an error code. Codes and categories: dcgmlib/dcgm_errors.h.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from accept.core.causes import Cause
from accept.core.facts import integer, items, mapping, text
from accept.core.health_readings import Gap, Reading, Unread
from accept.core.model import Problem
from accept.core.text import count, plain, shortened
from accept.foreign_logs.host_state import Gpu, Report, ReportKind

_START = re.compile(rb'"DCGM (?:GPU )?Diagnostic"\s*:')
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
#: What DCGM 2 writes for errors that are only notes in a run, since it has no codes.
_NOTES = re.compile(r"persistence mode", re.IGNORECASE)
_PASSED, _FAILED = ("pass", "passed"), ("fail", "failed")


@dataclass(frozen=True)
class _Result:
    """The result of one test on some GPUs."""

    test: str
    gpus: tuple[str, ...]
    status: str
    warnings: tuple[tuple[str, int | None, int | None], ...]


def is_diag(start: bytes) -> bool:
    """Return True if a file begins like the output of `dcgmi diag -j`."""
    return bool(_START.search(start)) and b"{" in start


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the results. No content raises an error."""
    content = b""
    for block in blocks:
        content += block
        if len(content) > _MAX_BYTES:
            break
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
    where = f"GPU {', '.join(result.gpus[:8])}" if result.gpus else "the host"
    for words, code, category in result.warnings or (("failed without a reason", None, None),):
        message = f"dcgmi diag, {result.test} on {where}: {words}"
        cause = _CAUSES.get(code or -1, Cause.GPU_DIAGNOSTIC)
        if code is None and _NOTES.search(words):
            cause = None
        if cause is None:
            yield None, message
        elif code not in _CAUSES and category in _SOFTWARE:
            yield None, f"dcgmi could not test: {message}"
        else:
            yield Problem(cause=cause, message=message, gpu=gpu), message


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
