"""A headless Chromium, driven through its DevTools protocol over a pair of pipes.

The module needs no package besides the browser. Where no browser is installed, it installs
Debian's, if this process may install packages; otherwise `find_chromium` returns None and adds the
reason to `WHY_NOT`.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WHY_NOT: list[str] = []


def find_chromium() -> str | None:
    """Returns the path of a browser, installed first if that is needed and allowed; None if there
    is none."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None and not WHY_NOT:
        executable = _install()
    return executable


def _install() -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        WHY_NOT.append("no chromium, and no right to install one")
        return None
    command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        WHY_NOT.append("installing chromium took too long")
        return None
    if completed.returncode != 0:
        WHY_NOT.append(f"chromium could not be installed: {completed.stderr.strip()[-200:]}")
    return shutil.which("chromium")


class Browser:
    """One page, as a context manager.

    - `errors`: exceptions and console errors of the page.
    - `requests`: the URLs that the page requests.
    """

    def __init__(self, executable: str, width: int = 1280, height: int = 800) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="kiwi-browser-")
        their_in, self._write = os.pipe()
        self._read, their_out = os.pipe()
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--hide-scrollbars",
            f"--user-data-dir={self._profile.name}",
        ]
        script = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, executable, *arguments],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, path: Path) -> None:
        """Opens a file and waits until its script is done."""
        self._call("Page.navigate", url=path.resolve().as_uri())
        ready = "document.documentElement && document.documentElement.dataset.ready === 'true'"
        wait = (
            f"new Promise(r => {{ const f = () => {ready} ? r(true) : setTimeout(f, 20); f(); }})"
        )
        for _ in range(50):
            try:
                if self.evaluate("location.protocol === 'file:' && document.readyState") in (
                    "interactive",
                    "complete",
                ):
                    break
            except RuntimeError:
                continue
        timeout = f"Promise.race([{wait}, new Promise(r => setTimeout(() => r(false), 15000))])"
        if not self.evaluate(timeout):
            self.errors.append("the page's script did not finish")

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, and awaits it if it is a promise.

        **Raises:** `RuntimeError` if the expression throws.
        """
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def use_theme(self, theme: str) -> None:
        """Sets the colour scheme that the system prefers: "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def click(self, selector: str, x_share: float = 0.5, y_share: float = 0.5) -> None:
        """Scrolls to an element and clicks it with the mouse, at the given shares of its width and
        height."""
        x, y = self._point(selector, x_share, y_share)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="none" if kind == "mouseMoved" else "left",
                clickCount=0 if kind == "mouseMoved" else 1,
            )

    def hover(self, selector: str, x_share: float = 0.5, y_share: float = 0.5) -> None:
        """Moves the mouse over an element."""
        x, y = self._point(selector, x_share, y_share)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text: str) -> None:
        """Types into the focused element."""
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Writes the visible part of the page as PNG."""
        data = self._call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _point(self, selector: str, x_share: float, y_share: float) -> tuple[float, float]:
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "if (!e) return null; e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        assert box is not None, f"nothing matches {selector}"
        left, top, width, height = box
        return left + x_share * width, top + y_share * height

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 65536)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
