#!/usr/bin/python3
"""What users install: cbk.deb in an empty root, the tarball in two folders, man pages, all out of the build that --cbk is in.

Usage: packages_interop.py --cbk PATH
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import harness

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def call(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, (done.stderr + done.stdout).strip()
    return done.stdout


def files_below(folder):
    return {os.path.join(where, name) for where, _, names in os.walk(folder) for name in names}


def lists_a_file(run, program):
    """The program alone, without the environment of the source tree."""
    text = call(program, "ls", run.path("model.safetensors"), env={"PATH": "/usr/bin:/bin"}, cwd="/")
    assert "layers.{0,1}.weight" in text, text
    maps = call("env", "-i", "LD_TRACE_LOADED_OBJECTS=1", program)
    assert "not found" not in maps, maps
    return maps


def reads_in_python(run, program, folder):
    """The module of a package, with its program."""
    script = "import sys, cbk; c = cbk.open(sys.argv[1]); print(cbk.__file__, float(c['layers.1.weight'][1, 1]))"
    text = call("/usr/bin/python3", "-c", script, run.path("model.safetensors"), env={"CBK": program, "PYTHONPATH": folder}, cwd="/")
    assert text == f"{os.path.join(folder, 'cbk/__init__.py')} 1.0\n", text


def as_a_package(run, build):
    """cbk.deb: without complaints, complete, and gone after it is removed."""
    call("cpack", "-G", "DEB", cwd=build)
    deb, mpi, python = (os.path.join(build, "package", name) for name in ("cbk.deb", "cbk-mpi.deb", "python3-cbk.deb"))

    def lintian():
        text = call("lintian", "--allow-root", "--fail-on", "error,warning", deb, mpi, python)
        assert not re.search("^[EW]:", text, re.M), text

    def declares():
        fields = call("dpkg-deb", "-f", deb)
        needs = set(re.findall(r"[\w.+-]+", re.search("^Depends: (.*)$", fields, re.M)[1]))
        assert {"lua-argparse", "libc6", "libfmt9", "libyaml-cpp0.7", "libluajit-5.1-2", "libdnnl2", "libgomp1", "libssl3"} <= needs, needs
        assert not [name for name in needs if "mpi" in name], needs
        assert all(name in call("dpkg-deb", "-f", mpi, "Depends") for name in ("libopenmpi3", "libmpich12"))
        assert call("dpkg-deb", "-f", python, "Depends", "Architecture").split("\n")[:2] == [
            f"Depends: cbk (= {run.call('--version').split()[1]}), python3, python3-numpy", "Architecture: all"]
        assert f"Version: {run.call('--version').split()[1]}" in fields

    def knows_the_api(root):
        """What an editor reads: the folders of .luarc.json, and in them the annotations."""
        with open(os.path.join(root, ".luarc.json"), encoding="utf-8") as f:
            library = json.load(f)["workspace"]["library"][0]
        with open(os.path.join(root, library, "cbk/meta.lua"), encoding="utf-8") as f:
            assert f.readline().strip() == "---@meta cbk"

    def installs():
        root = run.path("root")
        os.makedirs(os.path.join(root, "var/lib/dpkg/updates"))
        os.makedirs(os.path.join(root, "var/lib/dpkg/info"))
        for name in "status", "available":
            open(os.path.join(root, "var/lib/dpkg", name), "w", encoding="ascii").close()
        dpkg = ("dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--force-script-chrootless", "--log=/dev/null")
        call(*dpkg, "-i", deb, mpi, python)
        assert os.path.exists(os.path.join(root, "usr/libexec/cbk/libcbk-openmpi.so"))
        lists_a_file(run, os.path.join(root, "usr/bin/cbk"))
        shared = os.path.join(root, "usr/share")
        for name in ("man/man1/cbk-ls.1.gz", "man/man7/cbk-json.7.gz", "bash-completion/completions/cbk", "zsh/vendor-completions/_cbk",
                     "fish/vendor_completions.d/cbk.fish", "doc/cbk/copyright", "doc/cbk/README.md"):
            assert os.path.getsize(os.path.join(shared, name)) > 0, name
        knows_the_api(os.path.join(shared, "cbk"))
        knows_the_api(TOP)
        reads_in_python(run, os.path.join(root, "usr/bin/cbk"), os.path.join(root, "usr/lib/python3/dist-packages"))
        assert not os.path.exists(os.path.join(shared, "cbk/scripts/python"))
        call(*dpkg, "-r", "python3-cbk", "cbk-mpi", "cbk")
        left = files_below(os.path.join(root, "usr"))
        assert not left, left

    run.check("lintian", lintian)
    run.check("fields of cbk.deb", declares)
    run.check("cbk.deb is installed, used and removed", installs)


def as_a_tarball(run, build):
    """It needs glibc alone, in any folder."""
    call("cmake", "--build", build, "--target", "cbk-portable", "cbk-hdf5-portable")
    tarball = call("sh", os.path.join(TOP, "scripts/packaging/tarball.sh"), build).strip()

    def runs_anywhere():
        first, second = run.path("first"), run.path("a second folder")
        os.mkdir(first)
        call("tar", "-xzf", tarball, "-C", first)
        shutil.copytree(os.path.join(first, os.listdir(first)[0]), second, symlinks=True)
        shutil.rmtree(first)
        maps = lists_a_file(run, os.path.join(second, "bin/cbk"))
        reads_in_python(run, os.path.join(second, "bin/cbk"), os.path.join(second, "lib/python3/dist-packages"))
        foreign = [line for line in maps.splitlines()
                   if "=> /" in line and second not in line and not re.search(r"/(libc|libm|libdl|libpthread)\.so", line)]
        assert not foreign, foreign
        assert call(os.path.join(second, "bin/cbk"), "-e", 'require("argparse") and package.searchpath("argparse", package.path)',
                    cwd="/").startswith(second)
        # What is loaded when it is needed is its own, too.
        used = call(os.path.join(second, "bin/cbk"), "-e", "(function() local t = cbk.full({ 64, 64 }, 1); local c = require 'cstorch'; "
                    "local product = c.tensor(t):matmul(c.tensor(t)); local digest = t:sha256(); "
                    "local maps = io.open('/proc/self/maps'):read '*a'; return maps end)()")
        for library in "libdnnl", "libgomp", "libcrypto":
            places = set(re.findall(rf"(/\S.*/{library}\.so\S*)", used))
            assert places and all(place.startswith(second) for place in places), (library, places)
        for program in "bin/cbk", "libexec/cbk/cbk-hdf5", "lib/cbk/libdnnl.so.2":
            versions = re.findall(r"GLIBC_2\.(\d+)", call("objdump", "-T", os.path.join(second, program)))
            assert max(map(int, versions)) <= 36, (program, versions)

    def names_licences():
        names = call("tar", "-tzf", tarball)
        libraries = set(re.findall(r"/doc/cbk/libraries/(\S+)", names))
        assert {"libfmt9", "libluajit-5.1-dev", "libhdf5-dev", "lua-argparse", "libstdc++6"} <= libraries, libraries

    run.check("the tarball runs in any folder", runs_anywhere)
    run.check("the tarball has the licences of its libraries", names_licences)


def manual(run):
    """A page for each command and each topic, which man reads without a warning."""
    folder = run.path("man")
    run.call("run", os.path.join(TOP, "scripts/packaging/man.lua"), folder)
    pages = sorted(glob.glob(os.path.join(folder, "*.[17]")))
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "CBK_PATH": ""}

    def is_complete():
        everything = json.loads(subprocess.run([run.cbk, "help", "--json"], capture_output=True, check=True, env=environment).stdout)
        wanted = {f"cbk-{c['name'].split()[0]}.1" for c in everything["commands"] if c["name"][0] != "-"} | {"cbk.1"}
        wanted |= {f"cbk-{t['name']}.7" for t in everything["topics"] if t["name"] != "run"}
        found = {os.path.basename(page) for page in pages}
        assert found == wanted, found ^ wanted
        for name in wanted - {"cbk.1"}:
            run.call("help", name[4:-2])

    def has_no_warnings(page):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", page], capture_output=True, text=True, check=False,
                              env=environment, timeout=60)
        assert done.returncode == 0 and not done.stderr and len(done.stdout.splitlines()) > 10, done.stderr

    run.check("one page for each command and topic", is_complete)
    for page in pages:
        run.check(f"man {os.path.basename(page)}", lambda page=page: has_no_warnings(page))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    build = os.path.dirname(os.path.abspath(args.cbk))
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        run.call("-e", f"""local cbk = require "cbk"
            local out = cbk.create({json.dumps(run.path("model.safetensors"))})
            for layer = 0, 1 do out["layers." .. layer .. ".weight"] = cbk.full({{ 2, 2 }}, layer) end
            out:commit()""")
        as_a_package(run, build)
        as_a_tarball(run, build)
        manual(run)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
