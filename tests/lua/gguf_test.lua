-- GGUF files in commands and in Lua. tests/interop/gguf_interop.py decodes every type with NumPy.

local cbk = require "cbk"
local ffi = require "ffi"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has = harness.has

local function number(type, value) return ffi.string(ffi.new(type .. "[1]", value), ffi.sizeof(type)) end

local function u32(value) return number("uint32_t", value) end

local function u64(value) return number("uint64_t", value) end

local function text(value) return u64(#value) .. value end

--- A file with a text as metadata, and tensors { name, type, shape as the file has it, bytes }.
local function make(path, tensors)
  local head, data = "GGUF" .. u32(3) .. u64(#tensors) .. u64(2), ""
  head = head .. text "general.architecture" .. u32(8) .. text "llama" .. text "llama.block_count" .. u32(4) .. u32(2)
  for _, tensor in ipairs(tensors) do
    head = head .. text(tensor[1]) .. u32(#tensor[3])
    for _, extent in ipairs(tensor[3]) do head = head .. u64(extent) end
    head = head .. u32(tensor[2]) .. u64(#data)
    data = data .. tensor[4] .. ("\0"):rep(-#tensor[4] % 32)
  end
  cbk.fs.write(path, head .. ("\0"):rep(-#head % 32) .. data, { overwrite = true })
end

--- Q8_0: a scale of 0.5 and the elements 0 to 31.
local function block()
  local bytes = {}
  for i = 0, 31 do bytes[i + 1] = string.char(i) end
  return "\0\x38" .. table.concat(bytes)
end

local function folder()
  local dir = harness.temp_dir()
  make(dir .. "/model.gguf", { { "blk.0.w", 8, { 64, 2 }, block():rep(4) }, { "blk.1.w", 8, { 64, 2 }, block():rep(4) },
    { "norm", 0, { 3 }, ("\0"):rep(12) } })
  return dir
end

describe("a GGUF file", function()
  it("lists its types and their sizes in the file", function()
    local _, out, err = run(folder(), "ls", "model.gguf")
    equal(err, "")
    has(out, "model.gguf  gguf 3\n")
    has(out, "general.architecture")
    has(out, "Q8_0")
    has(out, "[2, 64]")
    has(out, "3 tensors, 259 elements, 284 B (Q8_0 272 B, float32 12 B)")
    out = select(2, run(folder(), "ls", "model.gguf", "--dtype", "Q8_0", "--json"))
    local entries = cbk.config.parse(out, "json").entries
    equal({ #entries, entries[1].dtype, entries[1].encoding, entries[1].bytes }, { 2, "float32", "Q8_0", 136 })
  end)

  it("names the type of the blocks as the dtype in listings, statistics and filters", function()
    local dir = folder()
    for _, dtype in ipairs { "Q8_0", "q8_0" } do
      local out = select(2, run(dir, "ls", "model.gguf", "--dtype", dtype, "--flat"))
      has(out, "blk.0.w  Q8_0  [2, 64]")
      is_true(not out:find "norm")
    end
    local out = select(2, run(dir, "ls", "model.gguf", "--dtype", "float32", "--flat"))
    is_true(out:find "norm" and not out:find "blk")
    has(select(2, run(dir, "stats", "model.gguf")), "blk.0.w  Q8_0     [2, 64]")
    has(select(2, run(dir, "stats", "model.gguf", "--csv")), "model.gguf,blk.0.w,Q8_0,")
    local first = cbk.config.parse(select(2, run(dir, "stats", "model.gguf", "--json")), "json").tensors[1]
    equal({ first.dtype, first.encoding }, { "float32", "Q8_0" })
    first = cbk.config.parse(select(2, run(dir, "show", "model.gguf", "blk.0.w", "--json")), "json")[1]
    equal({ first.dtype, first.encoding }, { "float32", "Q8_0" })
  end)

  it("decodes when it is read, whole or in part", function()
    local dir = folder()
    local root = cbk.open(dir .. "/model.gguf").root
    local w = root["blk.0.w"]
    equal({ w.dtype, tostring(w:shape()[1]), w:storage().encoding }, { "float32", "2", "Q8_0" })
    equal(w:slice(1, 30, 34):tolist(), { { 15, 15.5, 0, 0.5 }, { 15, 15.5, 0, 0.5 } })
    equal(w:blocks():shape(), { 4, 34 })
    equal({ w:slice(0, 0, 1):blocks(), root.norm:blocks() }, {})
    equal(root.metadata["llama.block_count"], 2)
    has(select(2, run(dir, "show", "model.gguf", "blk.0.w")), "blk.0.w\n  Q8_0 [2, 64]\n")
    equal(select(2, run(dir, "export", "model.gguf", "blk.0.w", "-o", "w.npy")), "blk.0.w: float32 [2, 64] (from Q8_0)\n")
    equal(select(2, run(dir, "export", "model.gguf", "blk.0.w[1, 2:5]", "-o", "part.npy")), "blk.0.w[1, 2:5]: float32 [3]\n")
    has(select(3, run(dir, "export", "model.gguf", "blk.0.w[1]", "-o", "part.raw")),
      "cannot write a part of the quantised 'blk.0.w[1]' as it is stored")
    equal(select(2, run(dir, "export", "model.gguf", "blk.0.w", "-o", "w.raw")), "blk.0.w: uint8 [2, 68] (the blocks of Q8_0)\n")
    equal(cbk.fs.read(dir .. "/w.raw"), block():rep(4))
  end)

  it("has the recipes of the help page", function()
    local here, dir, count = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or "", folder(), 0
    for line in cbk.fs.read(here .. "scripts/help/recipes.md"):gmatch "\n  cbk (%a+ model%.gguf[^\n]*)" do
      local words = {}
      for word in line:gmatch "%S+" do words[#words + 1] = word end
      local code, _, err = run(dir, unpack(words))
      equal({ code, err }, { 0, "" })
      count = count + 1
    end
    equal(count, 3)
    equal(cbk.open(dir .. "/model.safetensors").root["blk.1.w"].dtype, "float16")
  end)
end)

describe("a folder of GGUF files", function()
  local tensors = { { "w", 8, { 64, 2 }, block():rep(4) } }

  ---A folder with files of these names.
  local function folder_of(...)
    local dir = harness.temp_dir()
    for _, name in ipairs { ... } do make(dir .. "/" .. name, tensors) end
    cbk.fs.write(dir .. "/README.md", "x")
    return dir
  end

  it("is opened if it has one model, and else names them", function()
    for _, command in ipairs { "ls", "check", "stats" } do
      local code, out, err = run(folder_of "model.gguf", command, ".")
      equal({ code, err }, { 0, "" }, out)
      local _, _, several = run(folder_of("a.gguf", "b.gguf"), command, ".")
      has(several, "the folder holds several checkpoints; open one of a.gguf, b.gguf")
      local _, _, parts = run(folder_of("m-00001-of-00003.gguf", "m-00002-of-00003.gguf"), command, ".")
      has(parts, "the model 'm' is in 3 files, and the folder has 2: 'm-00003-of-00003.gguf' is missing")
    end
  end)

  it("is one model in several files, whose tensors are all there", function()
    local dir = harness.temp_dir()
    for i = 1, 3 do make(("%s/m-%05d-of-00003.gguf"):format(dir, i), { { "w" .. i, 8, { 64, 2 }, block():rep(4) } }) end
    for _, command in ipairs { "ls", "check", "stats" } do
      local code, out, err = run(dir, command, ".")
      equal(code, 0, err)
      for i = 1, 3 do has(command == "check" and "w" .. i or out, "w" .. i) end
    end
    equal(#cbk.open(dir).files, 3)
    make(dir .. "/m-00003-of-00003.gguf", { { "w1", 8, { 64, 2 }, block():rep(4) } })
    local _, _, err = run(dir, "ls", ".")
    has(err, "'m-00003-of-00003.gguf': another file has 'w1', too")
  end)

  it("is that of its other checkpoint, if it has one", function()
    local dir = folder_of "model.gguf"
    cbk.create(dir .. "/model.safetensors", { root = cbk.dict { w = cbk.full({ 2 }, 1) } }):commit { progress = false }
    has(select(2, run(dir, "ls", ".")), "model.safetensors")
  end)
end)

describe("cbk.gguf", function()
  it("refuses what is no object of texts", function()
    harness.raises("an object of the type gguf.texts expected", function() cbk.gguf.texts(cbk.list()) end)
  end)
end)
