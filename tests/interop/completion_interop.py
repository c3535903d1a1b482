#!/usr/bin/python3
"""Completion in bash, zsh and fish themselves: commands, options, models, formats, files, and the keys of a checkpoint.

Usage: completion_interop.py --cbk PATH
"""
import argparse
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time

import harness

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GLUE = os.path.join(TOP, "scripts/packaging/completions")

BASH = r"""
source {glue}/cbk.bash
COMP_LINE={line} COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
compopt() {{ :; }}
_cbk
printf '%s\n' "${{COMPREPLY[@]}}"
"""


def environment(run, **more):
    folder = os.path.dirname(run.cbk)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": run.folder, "TERM": "dumb", "LC_ALL": "C.UTF-8", **more}


def by_bash(run, *words):
    """What bash would offer: the function is called as readline does. Words are those that bash makes, at '=' and ':' as well."""
    line = re.sub(r" ([=:]) ?", r"\1", " ".join(("cbk",) + words))
    text = BASH.format(glue=GLUE, line=shlex.quote(line), words=" ".join(shlex.quote(word) for word in ("cbk",) + words))
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, check=True, cwd=run.folder, env=environment(run),
                          timeout=60)
    return {line for line in done.stdout.splitlines() if line}


def by_fish(run, line):
    text = f"source {GLUE}/cbk.fish; complete -C {shlex.quote(line)}"
    done = subprocess.run(["fish", "--no-config", "-c", text], capture_output=True, text=True, check=True, cwd=run.folder,
                          env=environment(run), timeout=60)
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


class Terminal:
    """An interactive shell at a terminal of its own."""

    def __init__(self, run, words, setup):
        self.seen, self.run = "", run
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(run.folder)
            os.execvpe(words[0], words, environment(run, PS1="> ", COLUMNS="200", HISTFILE="/dev/null"))
        self.type(setup + "; echo re''ady\n", "ready")

    def type(self, text, wanted):
        """Types and waits until the terminal shows the text; returns what it has shown since."""
        start = len(self.seen)
        os.write(self.fd, text.encode())
        end = time.monotonic() + 30
        while wanted not in self.seen[start:]:
            assert time.monotonic() < end, f"no {wanted!r} behind {text!r}, but {self.seen[start:]!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        return self.seen[start:]

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def bash(run):
    cases = [
        (["ex"], {"export", "extract-lora"}), (["convert-"], {"convert-config", "convert-config-to-mup"}), (["ls", "--so"], {"--sort"}),
        (["ls", "--sort", ""], {"key", "size"}), (["ls", "--sort", "=", "k"], {"key"}),
        (["convert", "--model", "starc"], {"starcoder", "starcoder-headless"}),
        (["convert", "--model", "llama", "--to", "h"], {"hf"}), (["copy", "a", "b", "--to-dtype", "=", "bf"], {"bfloat16"}),
        (["ls", "mod"], {"model.safetensors", "models"}), (["ls", "--allow-external", "mod"], {"models"}), (["help", "releas"], {"releases"}),
        (["show", "model.safetensors", "mo"], {"model.embed.weight", "model.layers."}),
        (["show", "model.safetensors", "model.la"], {"model.layers.0.", "model.layers.1."}),
        (["show", "model.safetensors", "model.layers.0."], {"model.layers.0.weight", "model.layers.0.bias"}), (["show", "deep.safetensors", "a"], {"a.b.weight", "a.b.bias"}),
        (["show", "model.safetensors", "'model.e"], {"model.embed.weight"}),
        (["show", "'model.safetensors'", "model.e"], {"model.embed.weight"}),
        (["copy", "--include", "=", "model.e", ], set()), (["copy", "model.safetensors", "--include", "=", "model.e"], {"model.embed.weight"}),
        (["--traceback", "show", "model.safetensors", "o"], {r"odd\ key\$\(touch\ x\)"}), (["show", "model.safetensors", "'o"], set()),
        (["show", "missing", "m"], set()), (["-e", "1"], set()), (["no-such-command", "mod"], {"model.safetensors", "models"}),
    ]
    for words, wanted in cases:
        def check(words=words, wanted=wanted):
            found = by_bash(run, *words)
            assert found == wanted, found
        run.check("bash: " + " ".join(words), check)

    def hides():
        commands = by_bash(run, "")
        assert "ls" in commands and "complete" not in commands, commands

    def at_a_terminal():
        shell = Terminal(run, ["bash", "--norc", "--noprofile", "-i"], f"source {GLUE}/cbk.bash")
        shell.type("cbk sh\t", "show ")
        shell.type("model.saf\t", "etensors ")
        shell.type("model.em\t", "bed.weight ")
        text = shell.type("--no-stats\n", "float32 [2]")
        assert "cannot" not in text, text
        shell.close()

    run.check("bash: the hidden command", hides)
    run.check("bash: at a terminal", at_a_terminal)


def zsh(run):
    setup = f"fpath=({GLUE} $fpath); autoload -U compinit; compinit -D -u; setopt NO_LIST_BEEP"

    def at_a_terminal():
        shell = Terminal(run, ["zsh", "-f", "-i"], setup)
        shell.type("cbk sho\t", "show ")
        shell.type("model.saf\t", "etensors ")
        shell.type("model.em\t", "bed.weight ")
        shell.type("--no-stats\n", "float32 [2]")
        text = shell.type("cbk show model.safetensors model.la\t\t", "model.layers.1.")
        assert "-- 2 values" in text, text
        shell.type("\x15cbk convert --model starc\t", "starcoder")
        shell.type("\x15cbk ls --sort \t\t", "size")
        shell.type("\x15cbk copy model.safetensors --to-dtype=bfl\t", "--to-dtype=bfloat16")
        shell.type("\x15cbk ls --conf=x --allow-external=mode\t", "--allow-external=models/")
        shell.type("\x15cbk help releas\t", "releases ")
        shell.type("\x15cbk show model.safetensors odd\t", "odd\\ key\\$\\(touch\\ x\\)")
        shell.close()

    run.check("zsh: at a terminal", at_a_terminal)


def fish(run):
    cases = {
        "cbk ex": {"export", "extract-lora"}, "cbk ls --so": {"--sort"}, "cbk ls --sort ": {"key", "size"}, "cbk ls --sort=k": {"--sort=key"},
        "cbk convert --model starc": {"starcoder", "starcoder-headless"}, "cbk convert --model llama --to h": {"hf"},
        "cbk ls mod": {"model.safetensors", "models/"}, "cbk ls --allow-external=mod": {"--allow-external=models/"},
        "cbk show model.safetensors model.la": {"model.layers.0.", "model.layers.1."},
        "cbk show model.safetensors model.e": {"model.embed.weight"}, "cbk copy model.safetensors --include=model.e": {"--include=model.embed.weight"},
        "cbk help releas": {"releases"},
    }
    for line, wanted in cases.items():
        def check(line=line, wanted=wanted):
            found = by_fish(run, line)
            assert found == wanted, found
        run.check("fish: " + line, check)


def quickly(run):
    """Keys of a checkpoint of 20,000 tensors: less time than a person notices."""
    run.call("-e", f"""local cbk = require "cbk"
        local out, t = cbk.create({json.dumps(run.path("many.safetensors"))}), cbk.full({{ 1 }}, 0)
        for i = 1, 20000 do out["layers." .. i .. ".weight"] = t end
        out:commit()""")
    start = time.monotonic()
    text = run.call("complete", "--", "show", run.path("many.safetensors"), "layers.77.")
    seconds = time.monotonic() - start
    assert text.splitlines()[1:] == ["layers.77.weight\tfloat32 [1]"], text
    assert seconds < 3, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        for name, keys in {"model": ["model.embed.weight", "model.layers.0.weight", "model.layers.0.bias",
                                     "model.layers.1.weight", "model.layers.1.bias", "odd key$(touch x)", "e\x1b[2Jvil"],
                           "deep": ["a.b.weight", "a.b.bias"]}.items():
            run.call("-e", f"""local cbk = require "cbk"
                local out = cbk.create({json.dumps(run.path(name + ".safetensors"))})
                for _, key in ipairs(arg) do out[key] = cbk.full({{ 2 }}, 1) end
                out:commit()""", *keys)
        os.mkdir(run.path("models"))
        bash(run)
        zsh(run)
        fish(run)
        run.check("20,000 keys", lambda: quickly(run))
        run.check("the hidden command explains itself", lambda: run.call("complete", "--help").index("--quoted"))
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
