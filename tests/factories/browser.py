"""Open pages in a headless Chromium, over the pipe of its developer tools."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.factories.clock import PATIENCE

#: Debian's package, and the name on other systems.
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
#: Events that a page must not cause: console messages, refusals by the policy, dialogs, requests.
_COMPLAINTS = (
    "Runtime.exceptionThrown",
    "Runtime.consoleAPICalled",
    "Log.entryAdded",
    "Page.javascriptDialogOpening",
)


@dataclass(kw_only=True)
class Browser:
    """A tab of a running browser."""

    to: int
    answers: Iterator[dict[str, Any]]
    session: str = ""
    complaints: list[str] = field(default_factory=list)
    _number: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result; keep earlier events that report a problem."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        for answer in self.answers:
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)
        raise AssertionError("the browser ended")

    def open(self, page: Path) -> list[str]:
        """Open a page, wait until it is loaded, and return the problems that it reported."""
        self.complaints.clear()
        self.call("Page.navigate", url=page.as_uri())
        for answer in self.answers:
            self._note(answer)
            if answer.get("method") == "Page.loadEventFired":
                break
        self.run("0")
        return [*self.complaints]

    def run(self, script: str) -> Any:
        """Return the value of a script in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def look(
        self, target: Path, *, media: str = "screen", scheme: str = "light", part: str = ""
    ) -> None:
        """Write a picture of the window's content, or of the element with a selector."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        done = self.call("Page.captureScreenshot", **(self._clip(part) if part else {}))
        target.write_bytes(base64.b64decode(done["data"]))

    def pages(self) -> int:
        """Return the number of pages of paper in the format A4 that the document is printed on."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        size = {"paperWidth": 8.27, "paperHeight": 11.69}
        done = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True, **size)
        return len(re.findall(rb"/Type /Page\b", base64.b64decode(done["data"])))

    def _clip(self, part: str) -> dict[str, Any]:
        box = f"document.querySelector({json.dumps(part)}).getBoundingClientRect()"
        script = f"(({{x, y, width, height}}) => ({{x, y: y + scrollY, width, height}}))({box})"
        return {"captureBeyondViewport": True, "clip": {**self.run(script), "scale": 1}}

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in _COMPLAINTS:
            self.complaints.append(json.dumps(event["params"])[:500])


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with one tab, and end it."""
    assert PROGRAM is not None
    commands, to = os.pipe()
    back, results = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The program reads commands from file 3 and writes results to file 4.
        script = 'exec "$@" 3<&"$COMMANDS" 4>&"$RESULTS"'
        running = subprocess.Popen(
            ["bash", "-c", script, "bash", PROGRAM, *_OPTIONS, f"--user-data-dir={profile}"],
            env={**os.environ, "COMMANDS": str(commands), "RESULTS": str(results)},
            pass_fds=(commands, results),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(results)
        try:
            with os.fdopen(back, "rb") as source:
                tab = Browser(to=to, answers=_messages(source))
                target = tab.call("Target.createTarget", url="about:blank")["targetId"]
                attached = tab.call("Target.attachToTarget", targetId=target, flatten=True)
                tab.session = attached["sessionId"]
                for name in ("Page", "Runtime", "Log"):
                    tab.call(f"{name}.enable")
                yield tab
        finally:
            os.close(to)
            running.terminate()
            running.wait(PATIENCE)


def _messages(source: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    while block := source.read1(1 << 16):
        *whole, rest = (rest + block).split(b"\0")
        for message in whole:
            yield json.loads(message)
