#!/usr/bin/python3
"""Drives `cbk repl` through a pseudo-terminal, as a user would: editing, completion, history, help, Ctrl-C, Ctrl-D;
and through pipes, where nothing but results may be printed.

Usage: repl_interop.py --cbk PATH
"""
import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time

import torch

import harness

PROMPT = "cbk> "
MORE = "...> "
CTRL_C, CTRL_D, TAB, UP, DOWN, END, CTRL_R, ALT_ENTER = "\x03", "\x04", "\t", "\x1b[A", "\x1b[B", "\x1b[F", "\x12", "\x1b\r"


def plain(text):
    """Without escape sequences and what a backspace or a carriage return takes back."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\([B0]", "", text)
    return text.replace("\r\n", "\n").replace("\x07", "")


class Session:
    def __init__(self, cbk, arguments, state, environment=None):
        self.seen, self.raw = "", b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = dict(os.environ, XDG_STATE_HOME=state, **{"TERM": "xterm", "PAGER": "cat", **(environment or {})})
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.execve(cbk, [cbk, *arguments], env)

    def wait_for(self, text, seconds=20):
        """Reads until `text` appears; what came before it and it."""
        end = time.monotonic() + seconds
        while True:
            at = self.seen.find(text)
            if at >= 0:
                found, self.seen = self.seen[: at + len(text)], self.seen[at + len(text):]
                return found
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"no {text!r} in {self.seen[-400:]!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"the session ended without {text!r}: {self.seen[-400:]!r}")
            self.raw += data
            self.seen = plain(self.seen + data.decode("utf-8", "replace"))

    def settle(self):
        """Forgets what is printed until nothing more comes."""
        while select.select([self.fd], [], [], 0.5)[0]:
            os.read(self.fd, 65536)
        self.seen = ""

    def send(self, text):
        os.write(self.fd, text.encode())

    def line(self, text, prompt=PROMPT):
        """Types a line; what is printed before the next prompt, without the line itself."""
        self.send(text + "\n")
        self.wait_for("\n")
        return self.wait_for(prompt)[: -len(prompt)].strip()

    def end(self, seconds=20):
        """The exit status."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the session does not end")


def equal(actual, expected):
    assert actual == expected, f"{actual!r}, expected {expected!r}"


def has(text, part):
    assert part in text, f"no {part!r} in {text!r}"


class Tests:
    def __init__(self, cbk, folder):
        self.cbk, self.folder = cbk, folder
        self.model = os.path.join(folder, "model.pt")
        weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        torch.save({"layers.0.attention.weight": weight, "layers.0.attention.bias": torch.ones(3),
                    "layers.1.attention.weight": weight + 1, "head": torch.zeros(2)}, self.model)
        self.state = os.path.join(folder, "state")

    def open(self, *arguments, **environment):
        session = Session(self.cbk, ["repl", *arguments], self.state, environment)
        session.wait_for(PROMPT)
        return session

    def pipe(self, text, *arguments):
        return subprocess.run([self.cbk, "repl", *arguments], input=text, capture_output=True, text=True, timeout=30,
                              env=dict(os.environ, XDG_STATE_HOME=self.state))

    # --- at a terminal
    def test_expressions_and_statements(self):
        s = self.open()
        equal(s.line("1 + 1"), "2")
        equal(s.line("=_ * 21"), "42")
        equal(s.line("x = 7"), "")
        equal(s.line("x;"), "")
        equal(s.line("_"), "7")
        equal(s.line("'a', 'b'"), "a\nb")
        equal(s.line("_2"), "b")
        equal(s.line("local y = 3"), "")
        equal(s.line("y"), "3")
        equal(s.line("nil"), "nil")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_multi_line_input(self):
        s = self.open()
        s.line("for i = 1, 2 do", MORE)
        s.line("print(i * 11)", MORE)
        equal(s.line("end"), "11\n22")
        s.line("t = {", MORE)
        s.send(CTRL_C)
        s.wait_for(PROMPT)
        equal(s.line("t"), "nil")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_several_lines_are_recalled_as_one(self):
        s = self.open()
        s.line("for i = 1, 2 do -- twice", MORE)
        s.line("  print(i * 11)", MORE)
        equal(s.line("end"), "11\n22")
        s.settle()
        s.send(UP)
        s.wait_for("end")
        s.settle()
        s.send("\n")
        has(s.wait_for("\n" + PROMPT), "11\n22")
        s.send(CTRL_D)
        equal(s.end(), 0)
        s = self.open()  # the next session has the block as it was typed
        s.send(UP)
        s.wait_for("end")
        s.send(UP + END)  # its second line
        s.settle()
        s.send(" print(i)" + ALT_ENTER + "  print('new')" + DOWN + "\n")
        has(s.wait_for("\n" + PROMPT), "11\n1\nnew\n22\n2\nnew\n")
        s.send(CTRL_D)
        equal(s.end(), 0)
        has(open(os.path.join(self.state, "cbk", "history")).read(), "for i = 1, 2 do -- twice\x1e  print(i * 11) print(i)\x1e  print('new')\x1eend\n")

    def test_recall_of_what_begins_alike(self):
        s = self.open()
        for line in ("alpha = 1", "beta = 2", "alpha = 3"):
            s.line(line)
        s.send("al" + UP)
        s.wait_for("pha = 3")
        s.send(UP)
        s.wait_for("1")
        s.settle()
        s.send(DOWN + DOWN)  # back to what was typed
        s.settle()
        s.send("\x05pha\n")
        has(s.wait_for("\n" + PROMPT), "3\n")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_diff_of_files_alone(self):
        s = self.open()
        has(s.line(f":diff {self.model} {self.model}"), "the same: 4 values")
        has(s.line(":diff"), "no checkpoint is open")

    def test_commands_on_other_values(self):
        path = os.path.join(self.folder, "m.pt")
        torch.save({"step": 3, "model": {"w": torch.ones(2)}}, path)
        s = self.open(path)
        has(s.line(":plot step"), "'step' is not a tensor (int)")
        has(s.line(":stats step"), "'step' is not a tensor (int)")
        has(s.line(":plot model"), "'model' is not a tensor (dict)")
        has(s.line(":plot stpe"), "'stpe' is neither a key nor a tensor; did you mean 'step'?")
        has(s.line(":ls modle"), "no key matches 'modle'; did you mean 'model'?")

    def test_commands_on_tensors(self):
        s = self.open(self.model, self.model)
        has(s.line(":stats layers.0"), "layers.0.attention.weight  float32  [2, 3]    0    5   2.5")
        has(s.line(":stats head"), "head  float32  [2]      0    0     0    0     0  100 %")
        has(s.line(":stats ckpt.head + 1"), "ckpt.head + 1  float32  [2]      1    1     1    0  1.414")
        has(s.line(":ls zzz"), "no key matches 'zzz'")
        has(s.line(":stats zzz"), "'zzz' is neither a key nor a tensor; :ls lists the keys")
        has(s.line(":plot layers.0.attention.weight"), "rms of blocks from 0 to 5")
        has(s.line(":plot ckpt.head"), "ckpt.head  float32 [2]")
        has(s.line(":plot h*d"), "head  float32 [2]")
        has(s.line(":plot layers.0.attention.weight[0]"), "layers.0.attention.weight[0]  float32 [3]")
        has(s.line(":plot layers.*"), "several keys match 'layers.*'; name one of them, such as layers.0.attention.weight")
        has(s.line(":diff"), "the same: 4 values")
        has(s.line(":diff ckpt2"), "the same: 4 values")
        has(s.line(":diff " + self.model), "the same: 4 values")
        has(s.line(":diff layers.0.attention.weight layers.1.attention.weight"), "6 of 6 elements differ (100 %), max abs 1, max rel 1")
        has(s.line(":diff head ckpt"), "cannot compare a tensor with a checkpoint")
        has(s.line(":diff head nix"), "'nix' is neither a key, a tensor nor a file; :ls lists the keys")
        has(s.line(":diff head haed"), "'haed' is neither a key, a tensor nor a file; did you mean 'head'?")
        has(s.line(":diff cbk.tensor{1.25} cbk.tensor{1.5}/3"), "max abs 0.75, max rel 0.6")
        has(s.line(":diff cbk.tensor{3} cbk.tensor{1}/3"), "max abs 2.66667, max rel 0.888889")
        assert "print" not in s.line(":who")
        s.line("x, t = 'text', { 1, 2 }")
        has(s.line(":who"), 't      table       [1, 2]\nx      string      "text"')
        equal(s.line("!echo $((40 + 2))"), "42")
        equal(s.line("!exit 3"), "exit status 3")
        equal(s.line("{ { a = 1, b = 'x' }, { a = 22 } }"), 'a  b\n[1]   1  "x"\n[2]  22')
        equal(s.line("{ a = 1, b = 'x' }"), '{ a = 1, b = "x" }')
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_long_results_go_through_a_pager(self):
        pager = os.path.join(self.folder, "pager")
        with open(pager, "w") as file:
            file.write('#!/bin/sh\nls "$TMPDIR"; wc -l\n')
        os.chmod(pager, 0o755)
        files = os.path.join(self.folder, "files")
        os.mkdir(files)
        s = self.open(PAGER=pager, TMPDIR=files)  # nothing is left if the terminal is closed while it reads
        s.line("t = {} for i = 1, 300 do t[i] = 'element ' .. i end")
        equal(s.line("t"), "51")  # lines of several items
        equal(s.line("#t"), "300")
        s.send(CTRL_D)
        equal(s.end(), 0)
        s = self.open(PAGER="false")  # what fails prints it all the same
        s.line("t = {} for i = 1, 300 do t[i] = 'element ' .. i end")
        has(s.line("t"), '"element 300"')
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_plots_in_colours(self):
        """`cbk plot` at a terminal: as wide as it, in colours unless NO_COLOR says no."""
        for environment, coloured in (({"NO_COLOR": "1"}, False), ({}, True)):
            session = Session(self.cbk, ["plot", self.model, "layers.0.attention.weight", "--heat-map"], self.state, environment)
            equal(session.end(), 0)
            equal("\x1b[38;5;" in session.seen, coloured)
            equal("\u2580" in session.seen, coloured)
        session = Session(self.cbk, ["plot", self.model, "head"], self.state)
        equal(session.end(), 0)
        equal(max(len(line) for line in session.seen.splitlines()), 120)

    def test_values_in_colours(self):
        for environment, coloured in (({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, True)):
            s = self.open(**environment)
            s.line("{ a = 1, b = 'x', c = true }")
            for part in b"\x1b[36m1\x1b[0m", b'\x1b[32m"x"\x1b[0m', b"\x1b[35mtrue\x1b[0m":
                equal(part in s.raw, coloured)
            s.send(CTRL_D)
            equal(s.end(), 0)

    def test_commands_without_their_colon(self):
        s = self.open(self.model)
        for typed, meant in (("ls", ":ls"), ("ls layers", ":ls layers"), ("exit", ":quit"), ("quit()", ":quit"), ("help", ":help"),
                             ("help 'cbk.open'", ":help cbk.open"), ("open x.pt", ":open x.pt"), ("q", ":quit")):
            has(s.line(typed), f"did you mean '{meant}'?")
        equal(s.line("ls = 3"), "")
        equal(s.line("ls"), "3")
        has(s.line("cbk.opne"), "did you mean 'cbk.open'?")
        has(s.line(f"cbk.create('{self.model}')"), "or pass overwrite = true")
        has(s.line("ckpt['haed']"), "did you mean 'head'?")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_first_steps_of_a_newcomer(self):
        s = self.open()
        for typed, answer in (("ckpt", "no checkpoint is open; say :open FILE"), ("ckpt:tensors()", "no checkpoint is open; say :open FILE"),
                              (":ls", "no checkpoint is open; say :open FILE"), (":open", "missing argument: :open FILE"),
                              (":save", "missing argument: :save FILE"), (":time", "missing argument: :time EXPRESSION"),
                              (":time 1 +", "unexpected symbol near '1'"), (":opne x", "there is no command :opne; did you mean ':open'?"),
                              (":zzzz", "there is no command :zzzz; :help lists them"), ("pritn", "'pritn' is nil; did you mean 'print'?"),
                              (":help zz", "there is no help for 'zz'; :help lists what there is"), (":help ls", ":ls [GLOB]\n  what is in ckpt; GLOB as in 'cbk ls'"),
                              ("open x", "'open x' means nothing in Lua; did you mean ':open x'?"),
                              ("tensors(1)", "there is no function 'tensors'; did you mean 'cbk.tensors'?")):
            equal(s.line(typed), answer)
        s.line("out = cbk.create('new.pt')")
        s.send(CTRL_D)
        has(s.wait_for("nothing is to be written"), "cannot write 'new.pt': out:commit() is missing; call it, or")
        equal(s.end(), 1)

    def test_errors_leave_the_session_alive(self):
        s = self.open()
        equal(s.line("error('boom')"), "boom")
        has(s.line("x = = 1"), "unexpected symbol")
        has(s.line("cbk.open('/no/such/file')"), "No such file")
        has(s.line(":traceback"), "stack traceback")
        has(s.line(":nosuch"), "no command :nosuch")
        equal(s.line("setmetatable({}, {__tostring = function() error('bad') end})"), "bad")
        equal(s.line("type(_)"), "table")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_completion_of_tensor_keys(self):
        s = self.open(self.model)
        s.send('ckpt["l' + TAB + TAB)  # to "layers.", then the choice of what follows
        s.wait_for("0.")
        s.wait_for("1.")
        s.settle()
        equal(s.line("1" + TAB + ":shape()"), "[2, 3]")
        equal(s.line('ckpt["he' + TAB), "Tensor float32 [2], 8 B, model.pt at " + str(self.offset_of_head()) + "\n  [0, 0]")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def offset_of_head(self):
        r = subprocess.run([self.cbk, "ls", "--json", self.model, "head"], capture_output=True, text=True, check=True)
        return json.loads(r.stdout)["entries"][0]["offset"]

    def test_completion_of_names_files_and_commands(self):
        s = self.open(self.model)
        equal(s.line("cbk.op" + TAB + "'" + self.folder + "/mod" + TAB + "').format"), "torch-zip")
        equal(s.line("ckpt:te" + TAB + "'head')()"), "head\n" + s.line("ckpt.head"))
        s.send(":q" + TAB + "\n")
        equal(s.end(), 0)

    def test_completion_calls_no_metamethod(self):
        s = self.open()
        s.line("trap = setmetatable({inner = 1}, {__index = function() hit = true end, __pairs = function() hit = true end})")
        equal(s.line("trap.in" + TAB), "1")
        s.send("trap.other.x" + TAB + CTRL_C)
        s.wait_for(PROMPT)
        equal(s.line("hit"), "nil")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_checkpoint_commands(self):
        s = self.open(self.model, self.model)
        listing = s.line(":ls layers")
        has(listing, "{0,1}.attention.weight")
        has(listing, "3 tensors")
        equal(s.line("ckpt1 == ckpt and ckpt2 ~= nil"), "true")
        has(s.line(":open " + self.model), "ckpt3")
        has(s.line(":mem"), "Lua")
        has(s.line(":time 1 + 1"), " s")
        saved = os.path.join(self.folder, "session.lua")
        s.line(":save " + saved)
        has(open(saved).read(), "cbk.open")
        has(s.line(":save " + saved), "':save! FILE' replaces it")
        s.line("after = 1")
        has(s.line(":save! " + saved), "written")
        has(open(saved).read(), "after = 1")
        assert not os.path.exists(saved + " --overwrite")
        s.send(":quit\n")
        equal(s.end(), 0)
        equal(subprocess.run([self.cbk, "run", saved], capture_output=True, timeout=30).returncode, 0)

    def test_tensors_of_cstorch(self):
        s = self.open()
        s.line("t = cstorch.tensor { { 1, 2 }, { 3, 4 } }")
        has(s.line("t"), "Tensor float32 [2, 2], 16 B")
        has(s.line("t"), "[3, 4]]")
        has(s.line(":stats t"), "2.5")
        has(s.line(":plot t"), "mean 2.5")
        equal(s.line(":diff t t"), "the same: 4 elements")
        has(s.line(":who"), "cstorch.Tensor")

    def test_saved_sessions_run(self):
        """What was typed, and a script of it: the same output."""
        typed = ["1 + 1", "_ + 1", "_ * 10;", "_", "3, nil, 4", "_3", "local w = ckpt['head']", "w:shape()", "local cbk = require 'cbk'; local q = 1", "q",
                 "for i = 1, 2 do", "  local j = i * 2", "  print(j)", "end", "local function f(x) return x end", "f(5)", "f(6), f(7) -- two", "x = f",
                 "(x or f)(8)", "ckpt1 == ckpt", "ckpt2.format", ":open " + self.model, "ckpt == ckpt3", "'a\\nb'", "x = 9; return x", "=x", "x; -- end",
                 "cstorch.tensor({ 1, 2 }):sum():item()", "t = { 1,", "  2 }", "#t", "print('done')", "('x'):rep(3)", "nil", "f()"]
        saved = os.path.join(self.folder, "saved.lua")
        done = self.pipe("\n".join([*typed, ":save " + saved]) + "\n", self.model, self.model)
        equal((done.returncode, done.stderr), (0, ""))
        lines = [line for line in done.stdout.split("\n") if not line.startswith("ckpt, ") and saved not in line]
        script = subprocess.run([self.cbk, "run", saved], capture_output=True, text=True, timeout=30)
        equal((script.returncode, script.stderr), (0, ""))
        equal(script.stdout.split("\n"), lines)

    def test_unclosed_strings_are_errors(self):
        s = self.open()
        has(s.line('"unclosed'), "unfinished string")
        s.line('x = "goes on\\', MORE)
        equal(s.line('here"'), "")
        equal(s.line("x"), "goes on\nhere")
        s.line("[[long", MORE)
        equal(s.line("text]]"), "long\ntext")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_help(self):
        s = self.open()
        has(s.line(":help"), ":open FILE")
        has(s.line(":help cbk.open"), "cbk.open(path, options?)")
        has(s.line("?Tensor:stats"), "min, max, mean")
        has(s.line("?stats"), "min, max, mean")
        has(s.line("?cbk.opne"), "cbk.open")
        fcntl.ioctl(s.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
        for name in ("", "Tensor", "cbk.create", "cbk.fs"):
            wide = self.pipe(f":help {name}\n").stdout.split()  # not broken at all
            shown = s.line(f":help {name}")
            equal(shown.split(), wide)
            equal([line for line in shown.split("\n") if len(line) > 60 and " " in line.strip()], [])
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_interrupt_stops_a_loop(self):
        s = self.open()
        for loop in ("while true do end", "while true do pcall(function() while true do end end) end"):
            s.send(loop + "\n")
            s.wait_for("\n")
            time.sleep(0.5)
            s.send(CTRL_C)
            has(s.wait_for(PROMPT, 5), "interrupted")
        equal(s.line("6 * 7"), "42")
        s.send("half a line" + CTRL_C)
        s.wait_for(PROMPT)
        equal(s.line("1"), "1")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_interrupt_stops_long_work_on_tensors(self):
        """Work inside the host, which no hook of Lua reaches: a tensor of 360 GB that is never in memory."""
        s = self.open(self.model)
        s.line("endless = cbk.full({300000, 300000}, 1, { dtype = 'float32' }):affine(2, 1)")
        for work in ("endless:stats()", "endless:sha256()", "endless:compare(endless:transpose(0, 1):affine(1, 1))",
                     "for i = 1, 1e9 do endless:slice(0, 0, 100):stats() end"):
            s.send(work + "\n")
            s.wait_for("\n")
            time.sleep(0.4)
            s.send(CTRL_C)
            has(s.wait_for(PROMPT, 5), "interrupted")
            equal(s.line("ckpt.head:stats().max"), "0")
        s.send(CTRL_D)
        equal(s.end(), 0)

    def test_history_is_kept_for_the_owner_only(self):
        s = self.open()
        s.line("remembered = 1")
        s.line("other = 2")
        s.line("remembered = 1")
        s.send(CTRL_D)
        equal(s.end(), 0)
        path = os.path.join(self.state, "cbk", "history")
        equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        s = self.open()
        s.send(UP)
        s.wait_for("remembered = 1")
        s.send("1\n")
        s.wait_for("\n" + PROMPT)
        equal(s.line("remembered"), "11")
        s.send(CTRL_R + "other")
        s.wait_for("other = 2")
        s.send("\n")
        s.wait_for("\n" + PROMPT)
        s.send(CTRL_D)
        equal(s.end(), 0)
        lines = open(path).read().splitlines()
        s = self.open()
        s.send(CTRL_D)
        s.end()
        lines = open(path).read().splitlines()
        equal(len(lines), len(set(lines)))

    def test_no_colour(self):
        red = "\x1b[31m"
        for environment, coloured in (({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
            s = self.open(**environment)
            os.write(s.fd, b"error('boom')\n\x04")
            equal(s.end(), 0)
            has(s.seen, "boom")
            equal(red in s.seen, coloured)

    def test_texts_cannot_talk_to_the_terminal(self):
        evil = "\x1b]0;title\x07\x9b31m"
        path = os.path.join(self.folder, "evil.pt")
        torch.save({evil: torch.ones(1), "text": evil}, path)
        escaped = r"\x1b]0;title\x07\xc2\x9b31m"
        s = self.open(path)
        for typed, shown in (("ckpt.root.text", escaped), ("{ckpt.root.text}", escaped), ("print(ckpt.root.text, 1)", escaped + "\t1"),
                             ("error(ckpt.root.text)", escaped),
                             (":ls", escaped), ("ckpt['\\x" + TAB, "Tensor float32 [1]"), ("ckpt", escaped), ("'a\\n\\tb'", "a\n\tb")):
            s.raw = b""
            has(s.line(typed).expandtabs(8), shown.expandtabs(8))
            assert b"\x1b]" not in s.raw and b"\x07" not in s.raw and b"\xc2\x9b" not in s.raw, s.raw
        s.send(CTRL_D)
        equal(s.end(), 0)
        for code in "cbk.open('%s').root.text", "print(cbk.open('%s').root.text)", "for k, v in cbk.items(cbk.open('%s').root) do print(k) end":
            session = Session(self.cbk, ["-e", code % path], self.state)
            equal(session.end(), 0)
            equal(session.seen.split()[0], escaped)

    def test_start_without_a_command(self):
        session = Session(self.cbk, [], self.state)
        session.wait_for(PROMPT)
        session.send(CTRL_D)
        equal(session.end(), 0)

    # --- through a pipe
    def test_pipe_prints_results_only(self):
        r = self.pipe('1 + 1\nx = 2\nfor i = 1, 2 do\n  print(i)\nend\nckpt["head"]:shape()\n', self.model)
        equal((r.stdout, r.stderr, r.returncode), ("2\n1\n2\n[2]\n", "", 0))

    def test_pipe_stops_at_the_first_error(self):
        r = self.pipe("print(1)\nerror('boom')\nprint(2)\n")
        equal((r.stdout, r.stderr, r.returncode), ("1\n", "cbk: line 2: boom\n", 1))
        r = self.pipe("for i = 1, 2 do\n")
        equal(r.returncode, 1)

    def test_missing_checkpoint(self):
        r = self.pipe("", "/no/such/file.pt")
        equal(r.returncode, 1)
        equal(len(r.stderr.splitlines()), 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--only", help="tests whose name contains this")
    options = parser.parse_args()
    passed = failed = 0
    for name in sorted(n for n in dir(Tests) if n.startswith("test_") and (options.only or "") in n):
        with tempfile.TemporaryDirectory() as folder:
            try:
                harness.checked(getattr(Tests(os.path.abspath(options.cbk), folder), name))
                passed += 1
            except (AssertionError, OSError, subprocess.SubprocessError) as problem:
                failed += 1
                print(f"FAIL {name}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
