"""What the interop suites share: checks that are counted, in a folder of their own, with cbk as a program."""
import ast
import functools
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def is_check(node):
    """Whether a statement can fail a test: an assertion, an `if` that raises, a call that checks an exit status."""
    if isinstance(node, ast.If):
        return any(isinstance(one, ast.Raise) for one in ast.walk(node))
    return isinstance(node, ast.Assert) or isinstance(node, ast.Call) and any(
        word.arg == "check" and getattr(word.value, "value", None) is True for word in node.keywords)


@functools.lru_cache(None)
def check_lines(path):
    """The lines of a suite's file that are checks, as execution reports them."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    nodes = [node for node in ast.walk(tree) if is_check(node)]
    return {line for node in nodes for line in range(node.lineno, getattr(node, "test", node).end_lineno + 1)}


def checked(action):
    """Runs a test, which must come to a check: an assertion here, or a function `assert_…` of a library."""
    made = []

    def found():
        made.append(True)
        sys.settrace(None)  # the rest runs at full speed

    def lines(frame, event, _):
        if event == "line" and frame.f_lineno in check_lines(frame.f_code.co_filename):
            found()
        return lines

    def calls(frame, event, _):
        if frame.f_code.co_name.startswith("assert"):
            found()
        return lines if frame.f_code.co_filename.startswith(HERE) else None

    sys.settrace(calls)
    try:
        result = action()
    finally:
        sys.settrace(None)
    assert made, "it checks nothing"
    return result


class Run:
    def __init__(self, cbk, folder):
        self.cbk, self.folder, self.passed, self.failed, self.skipped = os.path.abspath(cbk), folder, 0, 0, 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def check(self, name, action):
        try:
            checked(action)
            self.passed += 1
        except Exception as error:  # pylint: disable=broad-except
            self.failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:2400]}")

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped {name}: {why}")

    def run(self, *args):
        return subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=300, check=False)

    def call(self, *args):
        """What cbk prints when it succeeds."""
        done = self.run(*args)
        assert done.returncode == 0, done.stderr.strip()
        return done.stdout

    def close(self):
        """The closing line; the exit status."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed or not self.passed else 0
