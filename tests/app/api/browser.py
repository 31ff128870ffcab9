"""Chromium, driven by tests over a pair of pipes: no driver, and no package for one."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support import WAIT, until

COMMAND = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
    "--force-color-profile=srgb",
]  # fmt: skip


class Browser:
    """One headless Chromium with one page. A context manager.

    `requests` are the URLs that the page has asked for, `errors` what its console said
    of errors, exceptions and broken policies.
    """

    def __init__(self, folder: Path) -> None:
        assert COMMAND is not None
        # Its ends are 3, which it reads from, and 4, which it writes to.
        their_in, our_out = os.pipe()
        # A signal may end a write of a large script in the middle; this goes on.
        self._out = os.fdopen(our_out, "wb")
        self._in, their_out = os.pipe()
        command = [COMMAND, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        script = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "chromium", *command],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        self._numbers = itertools.count(1)
        self._answers: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._session = ""
        self._profile = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.renew()

    def renew(self) -> None:
        """Open a page in a new profile, and close the page and the profile before it.

        The new profile has no storage, no cookies and no cache of the old one.
        """
        self._session, before = "", self._profile
        profile = self.call("Target.createBrowserContext")["browserContextId"]
        opened = self.call(
            "Target.createTarget", url="about:blank", browserContextId=profile
        )
        if before:
            self.call("Target.disposeBrowserContext", browserContextId=before)
        attached = self.call(
            "Target.attachToTarget", targetId=opened["targetId"], flatten=True
        )
        self.requests, self.errors = [], []
        self._session, self._profile = attached["sessionId"], profile
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol; its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {
            "id": number, "method": method, "params": parameters
        }  # fmt: skip
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        with self._changed:
            came = self._changed.wait_for(
                lambda: number in self._answers or self._is_over, WAIT
            )
            assert came, f"{method}: no answer"
            assert number in self._answers, f"{method}: Chromium has ended"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, once it is settled."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Its value once that is true."""
        found: list[Any] = []

        def is_true() -> bool:
            found[:] = [self.evaluate(expression)]
            return bool(found[0])

        until(is_true, expression)
        return found[0]

    def text(self, selector: str = "body") -> str:
        text: str = self.evaluate(
            f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        )
        return text

    def wait_text(self, text: str, selector: str = "body") -> None:
        until(lambda: text in self.text(selector), f"no {text!r} in {selector}")

    def click(self, selector: str) -> None:
        """A click with the mouse on what a selector finds."""
        x, y = self.place(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        found = json.dumps(selector)
        self.wait(f"document.querySelector({found}) !== null")
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({found}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
            buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
        )  # fmt: skip

    def touch(self, kind: str, *places: tuple[float, float]) -> None:
        """``touchStart`` with the places of fingers, or ``touchEnd`` with none."""
        points = [{"x": x, "y": y} for x, y in places]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def tap(self, selector: str) -> None:
        """A tap with a finger on what a selector finds."""
        self.touch("touchStart", self.place(selector))
        self.touch("touchEnd")

    def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """``dark`` or ``light``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> None:
        left = b""
        while chunk := os.read(self._in, 1 << 16):
            *whole, left = (left + chunk).split(b"\0")
            for text in whole:
                self._take(json.loads(text))
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _take(self, message: Any) -> None:
        if "id" in message:
            with self._changed:
                self._answers[message["id"]] = message
                self._changed.notify_all()
            return
        if message.get("sessionId") != self._session:
            return  # of the page before
        notice: Callable[[Any], None] | None = {
            "Network.requestWillBeSent": self._requested,
            "Runtime.exceptionThrown": self._thrown,
            "Runtime.consoleAPICalled": self._said,
            "Log.entryAdded": self._logged,
        }.get(message["method"])
        if notice is not None:
            notice(message["params"])

    def _requested(self, event: Any) -> None:
        self.requests.append(event["request"]["url"])

    def _thrown(self, event: Any) -> None:
        self.errors.append(json.dumps(event["exceptionDetails"]))

    def _said(self, event: Any) -> None:
        if event["type"] in ("error", "assert"):
            self.errors.append(json.dumps(event["args"]))

    def _logged(self, event: Any) -> None:
        entry = event["entry"]
        if entry["level"] == "error" or entry["source"] == "recommendation":
            self.errors.append(json.dumps(entry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._out.close()
        try:
            self._process.wait(WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(WAIT)
        os.close(self._in)
