-- The second wall around sandboxed converters: what leaves the sandbox of Lua meets the kernel.

local cbk = require "cbk"
local classes = require "cbk.classes"
local harness = require "harness"
local describe, it, equal, is_true, has = harness.describe, harness.it, harness.equal, harness.is_true, harness.has

--- Runs a command whose sandbox has a hole: a converter's file runs with all rights of Lua.
local LEAKS = [[
local command = table.remove(arg, 1)
package.loaded["converters.notation.sandbox"] = { load = function(path) return loadfile(path) end }
arg[0] = command
assert(loadfile(package.searchpath("cbk.cli", package.path):match "^(.*)lib/" .. command .. ".lua"))()
]]

local OWN = [[
local hf = require "converters.classes.hf.llama"
return { require "converters.shared.decoder".models {
  model = "mine", note = "LLaMA under another name (%s)", place = "model", embedding = "embed_tokens",
  classes = { with_head = hf.LlamaForCausalLM, headless = hf.LlamaModel, right = require "converters.classes.zoo.decoder".GPT2LMHeadModel },
  require "converters.engine.rules".between("hf", "cs-2.1 .. cs-2.9", require "converters.shared.llama".converter { model_type = "llama" }),
} }
]]

local ESCAPES = [[
io.stderr:write("file: ", select(2, io.open("../outside", "w")) or "made", "\n")
io.stderr:write("removed: ", select(2, os.remove "../precious") or "yes", "\n")
io.stderr:write("moved: ", select(2, os.rename("../precious", "../gone")) or "yes", "\n")
os.execute "touch ../by_program; echo x > ../precious"
os.execute [=[/usr/bin/python3 -c 'import socket; socket.socket()' 2>&1 | grep -o PermissionError >&2]=]
]] .. OWN

local function llama()
  return cbk.dict { { "model_type", "llama" }, { "architectures", cbk.list { "LlamaForCausalLM" } }, { "vocab_size", 24 },
    { "hidden_size", 16 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 1 }, { "intermediate_size", 32 },
    { "tie_word_embeddings", false } }
end

--- A folder "in" with a model, the leaking sandbox and a converter that makes use of it; beside it is "precious".
local function folder()
  local dir = harness.temp_dir()
  cbk.fs.mkdir(dir .. "/in")
  cbk.fs.write(dir .. "/precious", "whole")
  cbk.fs.write(dir .. "/in/leaks.lua", LEAKS)
  cbk.fs.write(dir .. "/in/own.lua", ESCAPES)
  cbk.create(dir .. "/in/model.safetensors", { root = classes.new(llama(), "llama", "hf") }):commit { progress = false }
  cbk.config.save(llama(), dir .. "/in/config.json")
  return dir
end

--- What every command with --sandbox does, and what it makes below "in".
local COMMANDS = {
  { "list" },
  { "params", "config.json", "--model", "mine" }, { "identify", "model.safetensors" }, { "check", "model.safetensors" },
  { "diff", "model.safetensors", "model.safetensors", "--model", "mine", code = 2 },
  { "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine", "-o", "new/out", makes = "new" },
  { "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine", "-o", "new/out", "--dry-run" },
  { "convert", ".", "--to", "cs-2.5", "--model", "mine", makes = "in_to_cs-2.5.mdl" },
  { "convert", "model.safetensors", "--config", ".", "--to", "cs-2.5", "--model", "mine", makes = "model_to_cs-2.5.mdl" },
  { "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine", "-o", "./new/../new/out", makes = "new" },
  { "convert-config", ".", "--to", "cs-2.5", "--model", "mine", makes = "config_to_cs-2.5.yaml" },
  { "convert", "model.safetensors", "--to", "cs-9.9", "-o", "new/out", code = 1 },
  { "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine", makes = "model_to_cs-2.5.mdl" },
  { "convert-config", "config.json", "--to", "cs-2.5", "--model", "mine", "-o", "new", makes = "new" },
  { "new", "config.json", "--model", "mine", "-o", "new/deep/model.pt", makes = "new" },
  { "report", "model.safetensors", "-o", "new/page.html", makes = "new" },
}

local function is_available()
  local _, out = harness.cbk(harness.temp_dir(), "-e", 'print(require "cbk.limits".confine {})')
  return out == "true\n"
end

describe("the wall behind the sandbox", function()
  it("keeps every command from writing outside of its output's folder, and from the network", function()
    if not is_available() then harness.skip "the kernel has no Landlock" end
    for _, command in ipairs(COMMANDS) do
      local dir = folder()
      local words = { "run", "leaks.lua" }
      for _, word in ipairs(command) do words[#words + 1] = word end
      for _, word in ipairs { "--converter", "own.lua", "--sandbox" } do words[#words + 1] = word end
      local code, out, err = harness.cbk(dir .. "/in", unpack(words))
      local name = table.concat(words, " ") .. "\n" .. out .. err
      for _, what in ipairs { "file: ../outside", "removed: ../precious", "moved: ../precious" } do
        is_true(err:find(what .. ": Permission denied", 1, true), name)
      end
      has(err, "\nPermissionError\n")
      equal({ cbk.fs.list(dir), cbk.fs.read(dir .. "/precious") }, { { "in", "precious" }, "whole" }, name)
      equal(code, command.code or 0, name)
      local left = {}
      for _, one in ipairs(cbk.fs.list(dir .. "/in")) do left[one] = true end
      equal({ left["new"], command.makes and left[command.makes] }, { command.makes == "new" or nil, command.makes and true }, name)
    end
  end)

  it("holds for every thread, empty folders and special files", function()
    if not is_available() then harness.skip "the kernel has no Landlock" end
    local dir = folder()
    cbk.fs.mkdir(dir .. "/empty")
    cbk.fs.write(dir .. "/in/own.lua", [[
      for _, command in ipairs { "rmdir ../empty", "ln -s / new/out/link", "mkfifo new/out/pipe", "mknod new/out/null c 1 3" } do
        io.stderr:write(command, ": ", os.execute(command .. " 2>/dev/null") == 0 and "done" or "refused", "\n")
      end
      for _, task in ipairs(require "cbk".fs.list "/proc/self/task") do
        local status = io.open("/proc/self/task/" .. task .. "/status"):read "*a"
        io.stderr:write("thread: ", status:match "NoNewPrivs:%s*(%d)", status:match "Seccomp:%s*(%d)", "\n")
      end
    ]] .. OWN, { overwrite = true })
    local _, _, err = harness.cbk(dir .. "/in", "run", "leaks.lua", "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine",
      "-o", "new/out", "--converter", "own.lua", "--sandbox")
    for _, command in ipairs { "rmdir ../empty", "ln -s / new/out/link", "mkfifo new/out/pipe", "mknod new/out/null c 1 3" } do
      has(err, command .. ": refused\n")
    end
    local threads = 0
    for status in err:gmatch "thread: (%d+)" do
      threads = threads + 1
      equal(status, "12")
    end
    is_true(threads > 1, err)
  end)

  it("closes what reaches other programs: terminals, datagrams, shared memory, keys", function()
    if not is_available() then harness.skip "the kernel has no Landlock" end
    local dir = folder()
    cbk.fs.write(dir .. "/in/calls.py", [[
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
ioctl, prlimit, msgget, keyctl = 16, 302, 68, 250
sendto, sched_setscheduler, sched_setaffinity, ioprio_set, sethostname, setns = 44, 144, 203, 251, 170, 308
fanotify_init, mount_setattr, fsopen = 300, 442, 430
def refused(number, *arguments):
    return libc.syscall(number, *(ctypes.c_ulong(one) for one in arguments)) < 0 and ctypes.get_errno() == errno.EACCES
for request in (0x5412, 0x541C, 0x540E, 0x5414, 0x5437, 0x541D, 0x540C, 0x540A, 0x5457, 0x5410, 0xC0045877, 0x8004587D, 0x5000940F):
    print(refused(ioctl, 0, request, 0), refused(ioctl, 0, request | 1 << 32, 0))
print(refused(prlimit, 1, 7, 0, 0), refused(msgget, 5, 0o1000), refused(keyctl, 0, 0, 0))
print(refused(sched_setscheduler, 1, 5, 0), refused(sched_setaffinity, 1, 8, 0), refused(ioprio_set, 1, 1, 0))
print(refused(sethostname, 0, 0), refused(setns, 0, 0), refused(sendto, 0, 0, 0, 0, 1, 0))
print(refused(fanotify_init, 0, 0), refused(mount_setattr, 0, 0, 0, 0, 0), refused(fsopen, 0, 0))
print(refused(467, 0, 0, 0, 0, 0), refused(469, 0, 0, 0, 0, 0), refused(56, 0x10000000 | 17, 0, 0, 0, 0))
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try:
        print(socket.socketpair(socket.AF_UNIX, kind))
    except PermissionError:
        print(True)
print(len(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)) == 2)
import os
for flags in (os.O_RDONLY | os.O_TRUNC, os.O_RDWR | os.O_WRONLY | os.O_TRUNC):
    try:
        os.open("own.lua", flags)
        print("emptied")
    except PermissionError:
        print(True)
]])
    cbk.fs.write(dir .. "/in/own.lua", "os.execute '/usr/bin/python3 calls.py 1>&2' " .. OWN, { overwrite = true })
    local _, _, err = harness.cbk(dir .. "/in", "run", "leaks.lua", "list", "--converter", "own.lua", "--sandbox")
    local lines = {}
    for line in err:gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
    local twos, threes, ones = ("True True\n"):rep(13), ("True True True\n"):rep(5), ("True\n"):rep(5)
    equal(table.concat(lines, "\n", 1, 23) .. "\n", twos .. threes .. ones, err)
  end)

  it("leaves no empty folder behind, however the program ends", function()
    for _, signal in ipairs { "SEGV", "KILL", "TERM" } do
      local dir = folder()
      cbk.fs.write(dir .. "/in/own.lua", ("os.execute 'kill -%s $PPID; sleep 1'\n"):format(signal) .. OWN, { overwrite = true })
      harness.cbk(dir .. "/in", "run", "leaks.lua", "convert", "model.safetensors", "--to", "cs-2.5", "--model", "mine",
        "-o", "new/out", "--converter", "own.lua", "--sandbox")
      for _ = 1, 50 do
        if cbk.fs.exists(dir .. "/in/new") then os.execute "sleep 0.1" end
      end
      equal(cbk.fs.exists(dir .. "/in/new"), false, signal)
    end
  end)

  it("keeps `cbk rules` from writing anywhere", function()
    if not is_available() then harness.skip "the kernel has no Landlock" end
    local dir = folder()
    cbk.fs.write(dir .. "/in/own.lua", 'io.stderr:write(select(2, io.open("here", "w")) or "made")\n' .. OWN, { overwrite = true })
    local _, _, err = harness.cbk(dir .. "/in", "run", "leaks.lua", "rules", "own.lua")
    has(err, "here: Permission denied")
  end)

  it("is not there for scripts, which write where they like", function()
    local dir = folder()
    cbk.fs.write(dir .. "/in/own.lua", OWN, { overwrite = true })
    cbk.fs.write(dir .. "/in/script.lua", [[
      require "cbk.converters".load("own.lua", true)
      assert(io.open("../outside", "w")):close()
    ]])
    local code, _, err = harness.cbk(dir .. "/in", "run", "script.lua")
    equal(code, 0, err)
    is_true(cbk.fs.exists(dir .. "/outside"))
  end)
end)
