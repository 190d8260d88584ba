"""A headless Chromium, driven through its own pipe: it opens pages, tells what their consoles said, takes pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# As root, as in containers, its sandbox cannot start; pages are files that were built here.
OPTIONS = ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--disable-extensions", "--mute-audio",
           "--hide-scrollbars", "--allow-file-access-from-files")  # fmt: skip
PATIENCE = 30.0  # seconds for an answer


class ChromeError(Exception):
    """It did not answer, or refused."""


def found() -> str | None:
    """The browser: WEFT_CHROME if set, which must be one, else the first on the path."""
    named = os.environ.get("WEFT_CHROME")
    if named and not shutil.which(named):
        raise ChromeError(f"WEFT_CHROME={named} is no program here: name a Chromium, or leave it unset")
    return next((path for name in (named, *NAMES) if name and (path := shutil.which(name))), None)


class Chrome:
    """One page of a running browser. heard: events since the last `open`."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back, self.rest, self.count = to, back, b"", 0
        self.heard: list[dict[str, Any]] = []
        self.session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command, wait for its answer, keep the events that come before it."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        for said in self._messages():
            if said.get("id") == self.count:
                if "error" in said:
                    raise ChromeError(f"{method}: {said['error']['message']}")
                return dict(said["result"])
            self.heard.append(said)
        raise ChromeError(f"no answer to {method}")

    def open(self, url: str) -> None:
        """Load a page, its pictures included."""
        self.heard = []
        self.ask("Page.navigate", url=url)
        loaded = any(said.get("method") == "Page.loadEventFired" for said in self.heard)
        for said in () if loaded else self._messages():
            self.heard.append(said)
            if said.get("method") == "Page.loadEventFired":
                return

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is; promises are awaited."""
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return said["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size; the page is laid out anew."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def complaints(self) -> list[str]:
        """Errors of the console, exceptions, and requests that failed, since `open`."""
        told = []
        for said in self.heard:
            params = said.get("params", {})
            match said.get("method"):
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    told.append(details.get("exception", {}).get("description") or details["text"])
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    told.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                    told.append(" ".join(str(x.get("value", x.get("description"))) for x in params["args"]))
        return told

    def addresses(self) -> list[str]:
        """What the page asked for, since `open`."""
        sent = (said["params"] for said in self.heard if said.get("method") == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]

    def screenshot(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """What the page looks like, from its top."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width, height)
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Whatever it says, until it is silent for PATIENCE."""
        until = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self.rest:
                said, self.rest = self.rest.split(b"\0", 1)
                yield json.loads(said)
            ready, _, _ = select.select([self.back], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self.back, 1 << 16) if ready else b""
            if not more:
                raise ChromeError("the browser ended" if ready else f"no word for {PATIENCE:.0f} s")
            self.rest += more


@contextmanager
def chrome(program: str) -> Iterator[Chrome]:
    """A browser with a profile of its own, ended on the way out. It reads its file 3 and writes its file 4."""
    (its_in, to), (back, its_out) = (tuple(map(_high, os.pipe())) for _ in range(2))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        silent = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_RDWR, 0) for file in range(3)]
        joined = [(os.POSIX_SPAWN_DUP2, its_in, 3), (os.POSIX_SPAWN_DUP2, its_out, 4)]
        words = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        pid = os.posix_spawn(program, words, os.environ, file_actions=[*silent, *joined])
        os.close(its_in)
        os.close(its_out)
        try:
            yield Chrome(to, back)
        finally:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            os.close(to)
            os.close(back)


def _high(file: int) -> int:
    """The same file under a number that is not 3 or 4, closed in whatever is started."""
    high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(file)
    return high
