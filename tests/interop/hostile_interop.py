#!/usr/bin/env python3
"""Every command over files that somebody made to harm: it ends soon, with a plain error or a plain result, takes memory by the size of what it reads, and leaves nothing behind but its named output.

usage: hostile_interop.py --cbk PATH [--only TEXT]
"""
import argparse
import collections
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib

import samples

LONGEST = 10  # seconds of one processor, of which a command takes hundredths
WORDS = ["invalid value", "bad argument", "attempt to", "std::", "traceback", "bad_alloc", "basic_string", "vector::", ".lua:", "stack overflow", "not enough memory", "assertion", "internal error", "terminate called", "(cdata)", "table: 0x"]
INVISIBLE = [*range(0x00, 0x0a), *range(0x0b, 0x20), *range(0x7f, 0xa0), *range(0x200b, 0x2010), *range(0x2028, 0x202f), *range(0x2066, 0x206a), 0xfeff]

GOOD = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'

Done = collections.namedtuple("Done", "status stdout stderr memory")


SANDBOX_SECONDS = "1"  # in place of a minute


def run(command, folder):
    """Runs a command to its end, or to LONGEST; what only waits is ended too."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        limited = ["sh", "-c", f'ulimit -t {LONGEST}; exec "$@"', "sh", *command]
        process = subprocess.Popen(limited, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, "CBK_SANDBOX_SECONDS": SANDBOX_SECONDS})
        timer = threading.Timer(30 * LONGEST, process.send_signal, [signal.SIGKILL])
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Done(process.returncode, whole_lines(out), whole_lines(err), usage.ru_maxrss * 1024)


def whole_lines(file, most=4 << 20):
    """What a command printed, or the lines that begin it: the peak of the next child counts from ours, which has to stay small."""
    file.seek(0)
    text = file.read(most)
    return text if len(text) < most else text[:text.rfind(b"\n") + 1]


def size_below(folder):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(folder) for name in names)


def names_below(folder):
    return sorted(os.path.join(top, name) for top, folders, names in os.walk(folder) for name in names + folders)


def spoken(line):
    """A line without what JSON adds to it."""
    return json.loads(line)["error"]["message"] if line.startswith('{"error": {') else line


def faults(done, size, is_good, command, words):
    """What is wrong with the end of the command of this name, which says none of the words."""
    if done.status in (-signal.SIGKILL, -signal.SIGXCPU):
        yield f"took more than {LONGEST} seconds"
        return
    if done.status not in (0, 1, 2):
        yield f"status {done.status}"
    if is_good and done.status != 0:
        yield f"refused: {done.stderr[-300:]!r}"
    limit = 100_000_000 + 4 * size
    if done.memory > limit:
        yield f"took {done.memory / 1e6:.0f} MB, where {limit / 1e6:.0f} are allowed"
    for name, output in (("stdout", done.stdout), ("stderr", done.stderr)):
        try:
            shown = output.decode().replace("\t", " " if command == "complete" else "\t")  # a list for a shell has tabs
        except UnicodeDecodeError:
            yield f"{name} is not UTF-8"
            continue
        bad = sorted(character for character in map(chr, INVISIBLE) if character in shown)
        if bad:
            yield f"{name} has {bad}"
    errors = [line for line in done.stderr.decode(errors="replace").split("\n") if line.startswith(("cbk: ", '{"error": {'))]
    most = len(set(errors)) if command == "check" else 1  # which names each file of a folder that cannot be opened
    if done.status not in (0, 1) and not errors or len(errors) > most:
        yield f"{len(errors)} lines of error: {done.stderr[-300:]!r}"
    if any(len(spoken(line)) > (8000 if line.startswith("warning: ") else 600) for line in done.stderr.decode(errors="replace").split("\n")):
        yield "a line on stderr that is too long"
    for word in words:
        if word in done.stderr.decode(errors="replace").lower():
            yield f"an error says '{word}': {done.stderr[-300:]!r}"


class Corpus:
    def __init__(self, cbk, folder):
        self.cbk, self.folder = cbk, folder
        self.lock = threading.Lock()
        self.passed, self.failures = 0, []
        for name, content in {"good.safetensors": (len(GOOD).to_bytes(8, "little") + GOOD + bytes(4)), "config.json": b'{"model_type": "llama", "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1}',
                              "params.yaml": b"model: {hidden_size: 4, num_heads: 2, num_hidden_layers: 1, lora_params: {r: 2, alpha: 4, target_modules: [w]}}\n"}.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)

    def commands(self, file, out):
        """Those that every file goes through, and those that take turns."""
        good, config, params = (os.path.join(self.folder, name) for name in ("good.safetensors", "config.json", "params.yaml"))
        copies = [["copy", file, out + suffix] for suffix in (".pt", ".safetensors", ".mdl")] + [["copy", file, out, "--format", "tensorflow"], ["copy", file, out + ".h5", "--h5-version", "0.4"], ["copy", file, out + ".h5", "--h5-version", "flat"],
                  ["copy", file, out, "--shard-size", "1MB", "--format", "safetensors"], ["copy", file, out, "--shard-size", "1MB", "--format", "torch"]]
        others = [["ls", "--json", file], ["ls", "--flat", file], ["ls", "--all", file], ["ls", file, "*"], ["show", "--json", file, "*"], ["show", "--no-stats", file, "*", "--allow-records"], ["show", "--dataloader", file], ["dump", "--allow-records", file],
                  ["diff", file, file], ["diff", "--all", "--json", file, good], ["diff", good, file, "--keys-only"], ["copy", file, out + ".pt", "--to-dtype", "float16", "--allow-overflow"], ["copy", file, out + ".mdl", "--allow-records", "--rename", "a=b"],
                  ["copy", file, out + ".pt", "--dry-run"], ["upgrade", "--dry-run", "--model", "llama", "--config", params, "--to", "cs-2.4", file], ["convert", "--dry-run", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", config, file, "-o", out],
                  ["convert", "--dry-run", "--model", "llama", "--src-fmt", "cs-auto", "--tgt-fmt", "hf", "--config", params, file, "-o", out, "--drop-unmatched-keys"], ["convert", "--model", "gpt2", "--src-fmt", "cs-2.0", "--tgt-fmt", "cs-2.4", "--config", params, file, "-o", out, "--drop-unmatched-keys"],
                  ["check", file], ["check", "--json", "--all", "--allow-records", file], ["check", "--sarif", "--for", "float16", file], ["rules", "llama", file], ["rules", "gpt2", file, "--json"], ["fix-checkpoint-spec", file, "--fixed_checkpoint_path", out + ".mdl"], ["h5-to-tensorflow", file, out], ["tensorflow-to-h5", file, out + ".h5", "--strings"],
                  ["data-iter-state-conversion", "-c", file, "-w", self.folder, "-o", out + ".mdl"], ["fold-lora-checkpoint", "--model", "llama", "-p", params, "--checkpoint_path", file, "--dry-run"], ["-e", "cbk.open(arg[1])", file],
                  ["-e", "local n = 0; for _ in cbk.open(arg[1]):leaves() do n = n + 1 end; return n", file], ["-e", "cbk.open(arg[1]).root", file], ["convert-config", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "-o", out, file],
                  ["convert", "--dry-run", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", file, good, "-o", out], ["convert-config-to-mup", "-i", file, "-o", out + ".yaml"],
                  ["stats", file], ["stats", "--json", "--sort", "norm", file], ["stats", "--csv", file], ["plot", file, "*"], ["plot", file, "*", "--heat-map", "-o", out + ".png"], ["plot", "--by-layer", file, "*", "-o", out + ".svg"],
                  ["report", file, "-o", out + ".html"], ["report", file, good, "-o", out + ".html"], ["export", file, "*", "-o", out + ".npz"], ["export", file, "*", "-o", out + ".csv"], ["import", file, "-o", out + ".safetensors"],
                  ["infer", file, good, "-o", out + ".lua"], ["infer", good, file, "-o", out + ".lua"], ["complete", "--", "show", file, ""], ["ls", "--salvage", file], ["copy", "--salvage", file, out + ".pt"], ["check", "--salvage", file],
                  ["copy", file, out + ".h5", "--compress", "zstd"], ["extract-lora", file, file, "-o", out, "--rank", "2"], ["extract-lora", good, file, "-o", out, "--rank", "2", "--allow-records"]]
        return [["ls", file], ["dump", file], ["show", file, "*"]], copies, others

    def config_commands(self, file, out):
        good = os.path.join(self.folder, "good.safetensors")
        return [["convert-config", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "-o", out, file], ["convert-config", "--model", "gpt2", "--src-fmt", "cs-auto", "--tgt-fmt", "hf", "-o", out, file, "--drop-unmatched-keys"], ["convert-config-to-mup", "-i", file, "-o", out + ".yaml"],
                ["convert", "--dry-run", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-auto", "--config", file, good, "-o", out], ["upgrade", "--dry-run", "--model", "llama", "--config", file, "--to", "cs-2.4", good],
                ["fold-lora-checkpoint", "--model", "llama", "-p", file, "--checkpoint_path", good, "--dry-run"], ["merge", file, "-o", out]]

    def converter_commands(self, file, out):
        good, config = (os.path.join(self.folder, name) for name in ("good.safetensors", "config.json"))
        own = ["--converter", file, "--sandbox"]
        model = [*own, "--model", "tiny", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "-o", out]
        return [["rules", file], ["convert", *model, "--config", config, good], ["rules", "--json", file, good, "--config", config], ["rules", file, good, "--config", config, "--round-trip"],
                ["convert-config", *model, config], ["identify", *own, good], ["check", *own, "--model", "tiny", good], ["list", *own]]

    def check(self, number, name, place, opened):
        turn = zlib.crc32(name.encode())  # the same whichever cases are run
        work = self.new_folder(self.folder, f"work {number}")
        file, size, before = os.path.join(place, opened), size_below(place), names_below(place)
        out = os.path.join(self.new_folder(work, "out"), "made")
        always, copies, others = self.commands(file, out)
        is_converter = name.startswith("converter: ")
        chosen = always + [copies[turn % len(copies)]] + [others[(turn + i) % len(others)] for i in range(2)]
        if name.startswith("config: "):
            chosen = self.config_commands(file, out)
        if is_converter:
            rules, convert, *rest = self.converter_commands(file, out)
            chosen = [rules, convert, rest[turn % len(rest)]]
        if "small tensors" in name:
            chosen = always[:1] + [copies[0], copies[2], ["copy", file, out + ".pt", "--rename", "*.weight=*.w"]]
        if "to rename" in name:
            chosen = chosen + [["copy", file, out + ".pt", "--rename", "a=" + "n" * 500]]
        for command in chosen if is_converter else samples.sample(chosen, name, 2):
            here = self.new_folder(work, "here")
            done = run([self.cbk, *command], here)
            is_good = name.startswith("good: ") and (command in always or "small tensors" in name)
            found = list(faults(done, size * max(1, command.count(file)), is_good, command[0], [] if is_converter else WORDS))
            if "greedy" in name and command[0] == "convert" and done.status == 0:
                found.append("ended as if nothing was wrong")
            if names_below(here) or names_below(place) != before:
                found.append("a file that nobody asked for")
            is_partial = command[0] == "infer" and done.status == 1  # not all tensors are explained
            if done.status != 0 and not is_partial and names_below(os.path.join(work, "out")):
                found.append(f"output was left: {names_below(os.path.join(work, 'out'))}")
            self.report(name, command, work, found)
            for folder in ("here", "out"):
                shutil.rmtree(os.path.join(work, folder))
            self.new_folder(work, "out")
        shutil.rmtree(work)

    @staticmethod
    def new_folder(work, name):
        path = os.path.join(work, name)
        os.mkdir(path)
        return path

    def report(self, name, command, work, found):
        words = " ".join(command).replace(work + "/", "").replace(self.folder + "/", "")
        with self.lock:
            if found:
                self.failures.append(f"FAIL {name}: cbk {words}: {'; '.join(found)}")
            else:
                self.passed += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(os.path.abspath(args.cbk), folder)
        # Another process makes them: the peak of a child counts from that of its parent, which therefore has to be small.
        maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_files.py")
        subprocess.run([sys.executable, maker, corpus.cbk, folder, args.only], check=True)
        with open(os.path.join(folder, "cases.json"), encoding="utf-8") as file:
            cases = json.load(file)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda case: corpus.check(case[0], *case[1]), enumerate(cases)))
    print("\n".join(sorted(corpus.failures)))
    print(f"{len(cases)} files: {corpus.passed} passed, {len(corpus.failures)} failed")
    print(f"{corpus.passed} passed, {len(corpus.failures)} failed")
    return 1 if corpus.failures or not corpus.passed else 0


if __name__ == "__main__":
    sys.exit(main())
