#!/usr/bin/python3
"""What a first use shows: types the commands of ../firstuse/*.txt into a terminal of 80 columns and compares the screens.

Usage: firstuse_interop.py --cbk PATH [--update] [NAME...]

A file has commands, which begin with "$ ", and below each the screen. Lines that begin with "cbk> " are typed at the prompt of `cbk repl`.
A line "[…]" matches any lines. `inputs.lua` makes the files that the commands read. --update writes what is shown now into the files.
"""
import argparse
import fcntl
import glob
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

import harness

COLUMNS, ROWS = 80, 600  # tall: nothing scrolls away, and no pager starts
SECONDS = 60
PROMPT = "cbk> "
ANY = "[…]"
TASKS = os.path.join(os.path.dirname(harness.HERE), "firstuse")


def steps_of(text):
    """The commands of a task with their screens, after the lines above the first."""
    head, *rest = re.split(r"^\$ ", text, flags=re.M)
    steps = []
    for one in rest:
        command, _, screen = one.partition("\n")
        while command.endswith("\\"):
            more, _, screen = screen.partition("\n")
            command += "\n" + more
        steps.append((command, screen.rstrip("\n").split("\n") if screen.strip() else []))
    return head, steps


class Terminal:
    """A program in a terminal; its screen is what a user sees."""

    def __init__(self, command, folder, cbk):
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            path = f"{folder}/bin:{os.environ['PATH']}"
            env = {"TERM": "xterm-256color", "PATH": path, "HOME": folder, "LANG": "C.UTF-8", "CBK": cbk, "SHELL": "/bin/sh"}
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execve("/bin/sh", ["sh", "-c", command], env)

    def read(self, is_done):
        """Reads until is_done() or the end; whether the program still runs."""
        end = time.monotonic() + SECONDS
        while not is_done():
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError("nothing more comes after:\n" + "\n".join(self.lines()[-5:]))
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                os.waitpid(self.pid, 0)
                os.close(self.fd)
                return False
            self.stream.feed(data)
        return True

    def lines(self):
        shown = [line.rstrip() for line in self.screen.display]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def at_prompt(self):
        cursor = self.screen.cursor
        return cursor.x == len(PROMPT) and self.screen.display[cursor.y].startswith(PROMPT)

    def type(self, text):
        """Types a line at the prompt, and waits for the next one."""
        before = self.screen.cursor.y
        os.write(self.fd, text.encode() + b"\n")
        return self.read(lambda: self.screen.cursor.y > before and self.at_prompt())


def screen_of(command, expected, folder, cbk):
    terminal = Terminal(command, folder, cbk)
    typed = [line[len(PROMPT):] for line in expected if line.startswith(PROMPT)]
    runs = terminal.read(terminal.at_prompt if typed else lambda: False)
    for line in typed:
        runs = runs and terminal.type(line)
    if runs:
        os.write(terminal.fd, b"\x04")
        terminal.read(lambda: False)
    lines = terminal.lines()
    if typed and lines and lines[-1] in (PROMPT.rstrip(), PROMPT + "^D"):
        lines.pop()
    return lines


def fits(shown, expected):
    """Whether the lines are those expected, where ANY stands for any number of lines."""
    pattern = "".join("(?:.*\n)*" if line == ANY else re.escape(line) + "\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in shown)) is not None


def play(path, folder, cbk, is_updated):
    with open(path, encoding="utf-8") as file:
        head, steps = steps_of(file.read())
    assert steps, "no command"
    assert all(len(line) <= COLUMNS for _, expected in steps for line in expected if line.startswith(PROMPT)), "a long line is shown as two"
    out = head
    for command, expected in steps:
        shown = screen_of(command, expected, folder, cbk)
        is_kept = fits(shown, expected)
        out += f"$ {command}\n" + "".join(line + "\n" for line in (expected if is_kept else shown)) + "\n"
        if not is_updated:
            assert is_kept, f"$ {command}\nshows:\n" + "\n".join(shown) + "\ninstead of:\n" + "\n".join(expected)
            assert all(len(line) <= COLUMNS for line in shown)
    if is_updated:
        with open(path, "w", encoding="utf-8") as file:
            file.write(out.rstrip("\n") + "\n")


LARGE = """
local cbk = require "cbk"
local root = cbk.dict()
for i = 1, 24 do root["w." .. i] = cbk.full({ 2 ^ 21 }, i) end
cbk.create(arg[1], { root = root }):commit()
"""


def progress_goes(folder, cbk):
    """A line about progress is erased, whatever ends the work."""
    with open(os.path.join(folder, "large.lua"), "w", encoding="utf-8") as file:
        file.write(LARGE)
    subprocess.run([cbk, "run", "large.lua", "large.pt"], cwd=folder, check=True)
    seen = 0
    packed = "--compress deflate"  # which takes a while
    for command, end in ((f"copy large.pt a.mdl {packed}", None), (f"copy large.pt b.mdl {packed}", "\x03"),
                         (f"copy large.pt c.mdl {packed}", signal.SIGTERM), ("stats large.pt --sort norm --top 3", None)):
        terminal = Terminal(f"exec '{cbk}' {command}", folder, cbk)
        has_progress = terminal.read(lambda: any(re.match(r" *\d+%  ", line) for line in terminal.lines()))  # pylint: disable=cell-var-from-loop
        seen += has_progress
        if has_progress and isinstance(end, str):
            os.write(terminal.fd, end.encode())
        elif has_progress and end:
            os.kill(terminal.pid, end)
        if has_progress:
            terminal.read(lambda: False)
        lines = terminal.lines()
        assert not any("%  " in line for line in lines), (command, end, lines)
    assert seen >= 2, f"progress was seen {seen} times"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    cbk = os.path.abspath(args.cbk)
    with tempfile.TemporaryDirectory() as root:
        made = os.path.join(root, "made")
        os.makedirs(made)
        subprocess.run([cbk, "run", os.path.join(TASKS, "inputs.lua"), made], check=True)
        run = harness.Run(cbk, root)
        for path in sorted(glob.glob(os.path.join(TASKS, "*.txt"))):
            name = os.path.splitext(os.path.basename(path))[0]
            if args.names and name not in args.names:
                continue
            folder = os.path.join(root, "user")
            subprocess.run(["cp", "-a", made, folder], check=True)
            os.makedirs(os.path.join(folder, "bin"))
            os.symlink(cbk, os.path.join(folder, "bin", "cbk"))
            run.check(name, lambda: play(path, folder, cbk, args.update))  # pylint: disable=cell-var-from-loop
            subprocess.run(["rm", "-rf", folder], check=True)
        if not args.names:
            run.check("progress", lambda: progress_goes(root, cbk))
    print(f"{run.passed} passed, {run.failed} failed, {run.skipped} skipped")
    return 1 if run.failed or not run.passed else 0


if __name__ == "__main__":
    sys.exit(main())
