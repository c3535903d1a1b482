-- --salvage: what is whole in a file that is cut short. tests/interop/salvage_interop.py has files of other programs.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has = harness.has

local function tree()
  return cbk.dict { { "a", cbk.full({ 3, 4 }, 1) }, { "b", cbk.full({ 1000, 100 }, 2) }, { "c", cbk.full({ 500 }, 3) } }
end

local function cut(path, size)
  local bytes = cbk.fs.read(path)
  cbk.fs.write(path, bytes:sub(1, size), { overwrite = true })
end

--- A folder with the tree in a file of that name.
local function make(name, options)
  local dir = harness.temp_dir()
  options = options or {}
  options.root = tree()
  cbk.create(dir .. "/" .. name, options):commit()
  return dir
end

describe("--salvage", function()
  local cases = {
    { "m.safetensors", whole = "a", lost = { "b", "c" } },
    { "m.pt", whole = "a", lost = { "b", "c" } },
    { "m.mdl", { h5_version = "0.4" }, whole = "a", lost = { "b", "c" } },
    { "m.h5", whole = "a", lost = { "b", "c" } },
    { "m.npz", whole = "a", lost = { "b" } }, -- of what follows the end, not even names are known
    { "m", { format = "tensorflow" }, file = "m.data-00000-of-00001", whole = "a", lost = { "b", "c" } },
  }
  for _, case in ipairs(cases) do
    local name = case[1]
    it("reads the whole tensors of " .. name, function()
      local dir = make(name, case[2])
      local path = dir .. "/" .. name
      if case.file then cut(dir .. "/" .. case.file, 20000) else cut(path, 100000) end
      local code, _, problem = run(dir, "ls", name)
      equal(code, 1)
      if not case.file then has(problem, "'cbk copy --salvage' takes the tensors that are whole") end
      local shown, out, err = run(dir, "ls", name, "--salvage", "--flat")
      equal(shown, 0, err)
      has(out, "[3, 4]")
      has(err, "cannot be read and")
      for _, key in ipairs(case.lost) do has(err, ("'%s'"):format(key)) end
      local checkpoint = cbk.open(path, { salvage = true })
      equal(checkpoint.lost, case.lost)
      equal(checkpoint.root.a:tolist()[3], { 1, 1, 1, 1 })
      equal(run(dir, "copy", name, "new.safetensors", "--salvage", "-q"), 0)
      equal(cbk.keys(cbk.open(dir .. "/new.safetensors").root), { "a" })
      equal(run(dir, "stats", name, "--salvage", "--no-progress-bar"), 0)
      equal(run(dir, "show", name, "a", "--salvage"), 0)
      equal(run(dir, "export", name, "a", "-o", "a.npy", "--salvage"), 0)
    end)
  end

  it("changes nothing of a file that is whole", function()
    for _, case in ipairs(cases) do
      local dir = make(case[1], case[2])
      local code, out, err = run(dir, "ls", case[1], "--salvage")
      equal({ code, err, out }, { 0, "", (select(2, run(dir, "ls", case[1]))) })
    end
  end)

  it("names the first of many lost tensors", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for i = 1, 500 do root["w" .. i] = cbk.full({ 10 }, i) end
    cbk.create(dir .. "/m.safetensors", { root = root }):commit()
    cut(dir .. "/m.safetensors", #cbk.fs.read(dir .. "/m.safetensors") - 5000)
    local _, _, err = run(dir, "ls", "m.safetensors", "--salvage")
    has(err, "and 105 more")
    is_true(#err < 1000, #err)
  end)

  it("leaves out what a cut or missing shard has lost", function()
    local dir = make("s", { format = "safetensors", shard_size = 401000 })
    local names = {}
    for _, name in ipairs(cbk.fs.list(dir .. "/s")) do
      if name:find "%.safetensors$" then names[#names + 1] = name end
    end
    equal(#names, 2)
    cut(dir .. "/s/" .. names[1], 1000)
    local checkpoint = cbk.open(dir .. "/s", { salvage = true })
    is_true(#checkpoint.lost >= 1 and cbk.count(checkpoint.root) == 3 - #checkpoint.lost)
    cbk.fs.remove(dir .. "/s/" .. names[1])
    checkpoint = cbk.open(dir .. "/s", { salvage = true })
    is_true(#checkpoint.lost >= 1 and cbk.count(checkpoint.root) == 3 - #checkpoint.lost)
  end)

  it("has the recipes of the help page", function()
    local here, count = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or "", 0
    local dir = make "cut.safetensors"
    cut(dir .. "/cut.safetensors", 100000)
    for line in cbk.fs.read(here .. "scripts/help/recipes.md"):gmatch "\n  cbk (%a+ cut%.safetensors[^\n]*)" do
      local words = {}
      for word in line:gmatch "%S+" do words[#words + 1] = word end
      equal(run(dir, unpack(words)), 0)
      count = count + 1
    end
    equal({ count, cbk.keys(cbk.open(dir .. "/rest.safetensors").root) }, { 2, { "a" } })
  end)

  it("says that nothing is left", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "a", cbk.randn({ 300, 300 }, { seed = 1 }) } }
    cbk.create(dir .. "/m.h5", { root = root, compression = "deflate" }):commit() -- whose tables are at the end
    cut(dir .. "/m.h5", 100000)
    local first, _, why = run(dir, "ls", "m.h5", "--salvage")
    equal(first, 1)
    has(why, "nothing can be salvaged: the tables that name its tensors are not in the file")
    cbk.create(dir .. "/w.npy", { root = cbk.dict { { "w", cbk.full({ 1000 }, 1) } } }):commit()
    cut(dir .. "/w.npy", 1000)
    local code, _, err = run(dir, "ls", "w.npy", "--salvage")
    equal(code, 1)
    has(err, "nothing can be salvaged")
    dir = make "m.safetensors"
    cut(dir .. "/m.safetensors", 50)
    code, _, err = run(dir, "ls", "m.safetensors", "--salvage")
    equal(code, 1)
    has(err, "the header")
  end)
end)
