"""What the interop suites share: checks that are counted, in a folder of their own, with cbk as a program."""
import os
import subprocess


class Run:
    def __init__(self, cbk, folder):
        self.cbk, self.folder, self.passed, self.failed = os.path.abspath(cbk), folder, 0, 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def check(self, name, action):
        try:
            action()
            self.passed += 1
        except Exception as error:  # pylint: disable=broad-except
            self.failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:400]}")

    def run(self, *args):
        return subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=300, check=False)

    def call(self, *args):
        """What cbk prints when it succeeds."""
        done = self.run(*args)
        assert done.returncode == 0, done.stderr.strip()
        return done.stdout

    def close(self):
        """The closing line; the exit status."""
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0
