"""A headless Chromium, driven by its DevTools protocol over two pipes: pictures and facts of a page."""

import base64
import contextlib
import fcntl
import io
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

PROGRAM = "chromium"
FONTS = pathlib.Path("/usr/share/fonts/truetype/dejavu")
"""The only fonts that a page finds, so that its lines break alike on every machine."""

_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
_FONT_LIST = f"""<?xml version="1.0"?>
<fontconfig><dir>{FONTS}</dir><cachedir prefix="xdg">fontconfig</cachedir>
<match><test name="family" compare="not_eq"><string>monospace</string></test>
<edit name="family" mode="assign" binding="strong"><string>DejaVu Sans</string></edit></match>
<match><test name="family"><string>monospace</string></test>
<edit name="family" mode="assign" binding="strong"><string>DejaVu Sans Mono</string></edit></match>
</fontconfig>
"""
_SECONDS = 60.0  # that an answer may take
_SMALLEST_FREE = 10  # file descriptors below may be the two that the browser reads and writes


def missing() -> str:
    """What a machine lacks for these tests; empty if nothing."""
    if shutil.which(PROGRAM) is None:
        return "Debian's chromium"
    return "" if (FONTS / "DejaVuSans.ttf").is_file() else "Debian's fonts-dejavu-core"


class Browser:
    """A running browser with one open page."""

    def __init__(self, folder: pathlib.Path) -> None:
        fonts = folder / "fonts.conf"
        fonts.write_text(_FONT_LIST)
        (reads, to_browser), (from_browser, writes) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _SMALLEST_FREE) for end in (reads, writes)]
        os.close(reads)
        os.close(writes)
        # A shell gives the ends their numbers: a function of Python's between fork and exec would run jax's hooks.
        redirected = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self._process = subprocess.Popen(
            ("bash", "-c", redirected, "bash", PROGRAM, *_OPTIONS, f"--user-data-dir={folder / 'profile'}"),
            env={**os.environ, "FONTCONFIG_FILE": os.fspath(fonts), "XDG_CACHE_HOME": os.fspath(folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=ends,
        )
        for end in ends:
            os.close(end)
        self._to, self._from, self._rest = to_browser, from_browser, b""
        self._numbers, self._session = itertools.count(1), None
        page = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._ask("Page.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def show(self, path: pathlib.Path, width: int, dark: bool) -> None:
        """Opens a page, as wide as it is given, in light or dark."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def picture(self) -> UInt8[np.ndarray, "h w 3"]:
        """The whole page."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self.evaluate("innerWidth"), "height": size["height"], "scale": 1}
        data = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
        raise AssertionError

    def _wait_for(self, event: str) -> None:
        next(message for message in self._messages() if message.get("method") == event)

    def _messages(self) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._rest:
                line, _, self._rest = self._rest.partition(b"\0")
                yield json.loads(line)
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{PROGRAM} has not answered for {_SECONDS:.0f} s")
            received = os.read(self._from, 1 << 16)
            if not received:
                raise RuntimeError(f"{PROGRAM} has ended")
            self._rest += received


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser with a profile of its own, while the block runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(pathlib.Path(folder))
        try:
            yield browser
        finally:
            browser.close()
