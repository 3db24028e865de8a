"""Turn the text that nvbandwidth prints without `-j` into the JSON that it prints with it.

Forms of 0.2 to 0.10: output.cpp, nvbandwidth.cpp and error_handling.h of NVIDIA/nvbandwidth.
"""

from __future__ import annotations

import json
import re

START = "nvbandwidth Version: "
#: Lines that are read; a full run on eight GPUs prints about 700.
_MAX_LINES = 20_000
_RUNNING = re.compile(r"Running (\w{1,80})\.\s*$")
_DEVICE = re.compile(r"Device \d{1,3}: ")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: A row of a matrix: the number of the row, then a value or N/A for each column.
_ROW = re.compile(r"\s*\d{1,4}((?:\s+(?:\d{1,9}\.\d{1,4}|N/A)){1,128})\s*$")
#: `Waiving NAME.` up to 0.2, then `Waived: ` without a name.
_WAIVED = re.compile(r"Waiving (\w{1,80})\.\s*$|Waived: ?$")
_ERROR = re.compile(r"(Error: .{1,200})")
_FAILED = re.compile(
    r"\s*(ASSERT in expression .{1,300}|\[CUDA_ERROR\w{1,60}\] .{1,300}|"
    r"Invalid value when checking the pattern .{1,100})"
)
#: Devices in JSON: `0: NVIDIA H100 (00000000:18:00): (gpu017)`.
_LISTED_HOST = re.compile(r"\((" + _HOST.pattern + r")\)$")


def as_json(text: str) -> str:
    """Return the tests of an output as JSON; only the first matrix of each test is read."""
    tests: list[dict[str, object]] = []
    matrix: list[list[str]] = []
    for line in text.splitlines()[:_MAX_LINES]:
        if found := _RUNNING.match(line):
            matrix = []
            tests.append({"name": found[1], "status": "Running", "bandwidth_matrix": matrix})
        elif found := _WAIVED.match(line):
            tests.append({"name": found[1] or "", "status": "Waived"})
        elif not tests:
            continue
        elif found := _FAILED.match(line) or _ERROR.match(line):
            # The first line of an error shows most.
            if tests[-1]["status"] == "Running":
                tests[-1] |= {"status": "Error", "error": found[1].strip()}
        elif line.startswith("SUM "):
            tests[-1]["status"] = "Passed"
            matrix = []
        elif (found := _ROW.match(line)) and tests[-1]["status"] == "Running":
            matrix.append(found[1].split())
    return json.dumps({"nvbandwidth": {"testcases": tests, "GPU Device list": [_host(text)]}})


def _host(text: str) -> str:
    """Return the host above the devices, as newer versions print it, in the form of JSON."""
    before = ""
    for line in text.splitlines()[:200]:
        if _DEVICE.match(line):
            return f"({before})" if _HOST.fullmatch(before) else ""
        before = line.strip()
    return ""


def host_of(document: str) -> str:
    """Return the only host of the devices in JSON; empty: none, or several."""
    try:
        listed = json.loads(document)["nvbandwidth"]["GPU Device list"]
        found = {match[1] for one in listed if (match := _LISTED_HOST.search(str(one)))}
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found.pop() if len(found) == 1 else ""
