"""A headless Chromium that tests drive over its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 60.0


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, program: str, profile: Path) -> None:
        """It reads commands from descriptor 3 and answers on descriptor 4, each ended by a NUL byte."""
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # Both are moved out of the way first: one of them may be 3 or 4 itself.
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        high_read, high_write = os.dup(read_end), os.dup(write_end)
        self._process = subprocess.Popen(
            [
                *("bash", "-c", command, "bash", str(high_read), str(high_write)),
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--hide-scrollbars", "--disable-extensions", "--disable-background-networking"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(high_read, high_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (read_end, write_end, high_read, high_write):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        with suppress(OSError, RuntimeError, TimeoutError):
            self.ask("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + _LIMIT_S)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def await_event(self, method: str, session: str) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


class Page:
    """A page that has been loaded, and all that happened on the way."""

    def __init__(
        self, browser: Browser, file: Path | str, width: int = 1280, *, dark: bool = False, scripts: bool = True
    ) -> None:
        self._browser = browser
        browser.events.clear()
        self._target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.resize(width)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.url = file if isinstance(file, str) else file.as_uri()
        browser.events.clear()
        self.ask("Page.navigate", url=self.url)
        browser.await_event("Page.loadEventFired", self._session)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def resize(self, width: int) -> None:
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=phone)

    def value(self, expression: str) -> Any:
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors on the console, exceptions, and what the policy refused."""
        found = []
        for event in self._browser.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"].get("text")))
            elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
                found.append(str(about["args"]))
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for, the page's own not among them."""
        sent = [
            e["params"]["request"]["url"]
            for e in self._browser.events
            if e.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in sent if url != self.url]

    def picture(self, clip: dict[str, float]) -> bytes:
        """A PNG of a part of the page: `x`, `y`, `width`, `height`, `scale`."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)


OVERLAPS = """
(() => {
  const boxes = [];
  const clipOf = (element) => {
    let box = { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 };
    for (let e = element; e; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      if (e === document.documentElement || e === document.body || e instanceof SVGElement) continue;
      const r = e.getBoundingClientRect();
      box = { left: Math.max(box.left, r.left), top: Math.max(box.top, r.top),
              right: Math.min(box.right, r.right), bottom: Math.min(box.bottom, r.bottom) };
    }
    return box;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, title, desc")) continue;
    if (!parent.checkVisibility()) continue;
    const clip = clipOf(parent);
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const r of range.getClientRects()) {
      const box = { left: Math.max(r.left, clip.left), top: Math.max(r.top, clip.top),
                    right: Math.min(r.right, clip.right), bottom: Math.min(r.bottom, clip.bottom),
                    text: node.data.trim().slice(0, 40), node };
      if (box.right - box.left > 1 && box.bottom - box.top > 1) boxes.push(box);
    }
  }
  const found = [];
  boxes.sort((a, b) => a.top - b.top);
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length && boxes[j].top < boxes[i].bottom; j++) {
      const a = boxes[i], b = boxes[j];
      if (a.node === b.node) continue;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 4) found.push(`${a.text} / ${b.text}`);
    }
  }
  return found.slice(0, 8);
})()
"""
"""Pairs of texts that cover each other, as far as both can be seen."""

CUT = """
(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, title, desc") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    for (let e = parent; e && e !== document.body; e = e.parentElement) {
      if (e instanceof SVGElement) continue;
      const how = getComputedStyle(e).overflowX;
      if (how === "auto" || how === "scroll") break;
      if (how === "visible") continue;
      const box = e.getBoundingClientRect();
      if (text.right > box.right + 1 || text.left < box.left - 1) found.push(node.data.trim().slice(0, 60));
    }
  }
  return found.slice(0, 8);
})()
"""
"""Texts that are cut off at the side and cannot be scrolled to."""
