"""A headless Chromium that a test drives through a pipe: commands of the DevTools protocol, each ended by a zero byte."""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")


def program():
    """The path of a browser, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory()
        to_browser, self.sender = os.pipe()
        self.receiver, from_browser = os.pipe()

        def arrange():  # the browser reads 3 and writes 4
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # which root cannot have
        self.process = subprocess.Popen(
            [path, "--headless", *sandbox, "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=arrange, close_fds=False)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Runtime", "Log", "Page", "Network":
            self.call(domain + ".enable")

    def receive(self, end):
        while b"\0" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.receiver], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.receiver, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.sender, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self.receive(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def open(self, url):
        """Opens a page and waits until it is loaded; what happens from then on is in `events`."""
        self.events = []
        self.call("Page.navigate", url=url)
        end = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            answer = self.receive(end)
            if "method" in answer:
                self.events.append(answer)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (EOFError, OSError, TimeoutError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()
