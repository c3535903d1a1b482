-- Checkpoints in several files: by names (--shard-by), and one file in place of shards (--single-file).

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, equal = harness.describe, harness.it, harness.equal
local run = harness.cbk

local function ten_tensors(dir)
  local root = cbk.dict()
  for i = 0, 9 do root[("layers.%d.weight"):format(i)] = conversion.counted({ 2, 3 }, 10 * i) end
  root["embed.weight"] = conversion.counted({ 4 }, 0)
  cbk.create(dir .. "/a.safetensors", { root = root }):commit { progress = false }
end

---The keys of each shard of a folder, in the order of the files.
local function keys_of_shards(dir, suffix)
  local out = {}
  for _, name in ipairs(cbk.fs.list(dir)) do
    if name:find(suffix .. "$") then out[#out + 1] = cbk.keys(cbk.open(dir .. "/" .. name).root) end
  end
  return out
end

describe("shards by names", function()
  it("have the tensors of each glob, the first that matches, and the rest in a last file", function()
    local dir = harness.temp_dir()
    ten_tensors(dir)
    equal((run(dir, "copy", "a.safetensors", "out", "--format", "safetensors", "--shard-by", "embed", "--shard-by", "layers.[0-4]*",
      "--shard-by", "layers.[0-7]*")), 0)
    local shards = keys_of_shards(dir .. "/out", "safetensors")
    equal(#shards, 4)
    equal(shards[1], { "embed.weight" })
    equal({ #shards[2], #shards[3], #shards[4] }, { 5, 3, 2 })
    equal((run(dir, "diff", "out", "a.safetensors")), 0)
    equal(shards[4], { "layers.8.weight", "layers.9.weight" })
  end)

  it("are data files of TensorFlow, and H5 files of those again", function()
    local dir = harness.temp_dir()
    ten_tensors(dir)
    cbk.fs.mkdir(dir .. "/tf")
    equal((run(dir, "copy", "a.safetensors", "tf/m", "--format", "tensorflow", "--shard-by", "embed")), 0)
    assert(cbk.fs.exists(dir .. "/tf/m.data-00001-of-00002"))
    equal((run(dir, "diff", "tf/m", "a.safetensors")), 0)
    equal((run(dir, "tensorflow-to-h5", "tf/m", "h5", "--shard-by", "layers.0", "--shard-by", "layers.1")), 0)
    equal(#keys_of_shards(dir .. "/h5", "h5"), 3)
    equal((run(dir, "h5-to-tensorflow", "h5", "tf/again", "--shard-by", "layers")), 0)
    equal((run(dir, "diff", "tf/again", "tf/m")), 0)
  end)

  it("refuse a glob that matches nothing, and a size besides", function()
    local dir = harness.temp_dir()
    ten_tensors(dir)
    local code, _, stderr = run(dir, "copy", "a.safetensors", "out", "--format", "safetensors", "--shard-by", "layer")
    equal({ code, stderr }, { 1, "cbk: --shard-by 'layer' matches no tensor that is left for it\n" })
    equal((run(dir, "copy", "a.safetensors", "out", "--shard-by", "embed", "--shard-size", "1GB", "--format", "torch")), 2)
    assert(not cbk.fs.exists(dir .. "/out"))
  end)
end)

describe("a tensor that the index does not list", function()
  ---A folder of two shards; the second one has these further tensors.
  local function folder(more)
    local dir, first = harness.temp_dir(), conversion.counted({ 2, 3 }, 0)
    cbk.create(dir .. "/model-00001-of-00002.safetensors", { root = cbk.dict { a = first } }):commit { progress = false }
    local root = cbk.dict { b = conversion.counted({ 2 }, 5) }
    for key, value in pairs(more(first)) do root[key] = value end
    cbk.create(dir .. "/model-00002-of-00002.safetensors", { root = root }):commit { progress = false }
    cbk.fs.write(dir .. "/model.safetensors.index.json", [[{"weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}]])
    return dir
  end

  it("is an error under a listed name, if it is another one", function()
    local function double(t) return t * 2 end
    local function narrow(t) return t:to "float16" end
    local function flat(t) return t:reshape { 6 } end
    for _, change in ipairs { double, narrow, flat } do
      local dir = folder(function(first) return { a = change(first) } end)
      for _, command in ipairs { { "ls", "." }, { "copy", ".", "out.pt" }, { "stats", "." } } do
        local code, _, err = run(dir, unpack(command))
        equal(code, 1)
        harness.has(err, "the shard 'model-00002-of-00002.safetensors' has another 'a' than the one that is read by the index")
      end
      local code, out = run(dir, "check", ".")
      equal(code, 1)
      harness.has(out, "it lists that key for 'model-00001-of-00002.safetensors'")
    end
  end)

  it("is an error under a name that a shard's metadata gives to another tensor, too", function()
    local dir = harness.temp_dir()
    local metadata = cbk.dict { c = "a" }
    cbk.create(dir .. "/x.safetensors", { root = cbk.dict { a = conversion.counted({ 3 }, 0) }, metadata = metadata })
      :commit { progress = false }
    cbk.create(dir .. "/y.safetensors", { root = cbk.dict { b = cbk.full({ 2 }, 1), c = conversion.counted({ 3 }, 5) } })
      :commit { progress = false }
    cbk.fs.write(dir .. "/model.safetensors.index.json", [[{"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}]])
    local code, _, err = run(dir, "copy", ".", "out.pt")
    equal(code, 1)
    harness.has(err, "the shard 'y.safetensors' has another 'c' than the one that is read by the index")
    code, _, err = run(dir, "copy", ".", "out.pt", "--salvage")
    equal(code, 0)
    harness.has(err, "the shard 'y.safetensors' has another 'c'")
  end)

  it("is a warning under another name, and nothing where it is the same", function()
    local _, _, err = run(folder(function(first) return { a_scale = first } end), "copy", ".", "out.pt")
    harness.has(err, "a tensor that the index does not list is not read, but other programs may load it: 'a_scale' in "
      .. "'model-00002-of-00002.safetensors'")
    equal({ run(folder(function(first) return { a = first } end), "copy", ".", "out.pt") }, { 0, "", "" })
    local dir = harness.temp_dir() -- tensors in a dict
    cbk.create(dir .. "/x.pt", { root = cbk.dict { a = cbk.full({ 2 }, 1), more = cbk.dict { b = cbk.full({ 2 }, 2) } } })
      :commit { progress = false }
    cbk.fs.write(dir .. "/pytorch_model.bin.index.json", '{"weight_map": {"a": "x.pt"}}')
    harness.has(select(3, run(dir, "copy", ".", "out.pt")), "other programs may load it: 'more' in 'x.pt'")
  end)
end)

describe("shards by size", function()
  it("of PyTorch say which ties they lose: those of several shards", function()
    local dir, tied = harness.temp_dir(), conversion.counted({ 8 }, 0)
    local root = cbk.dict { { "a", tied }, { "b", cbk.full({ 8 }, 1) }, { "c", tied } }
    cbk.create(dir .. "/m.pt", { root = root }):commit { progress = false }
    local function said(size) return select(3, run(dir, "copy", "m.pt", "out" .. size, "--format", "torch", "--shard-size", size)) end
    harness.has(said "40B", "1 tied tensor is written as a copy: its names are in several shards")
    equal(said "400B", "")
  end)

  it("are never empty, also where the first tensor is larger than a shard", function()
    for _, format in ipairs { "safetensors", "torch" } do
      for _, size in ipairs { "1B", "20B", "50B" } do
        local dir = harness.temp_dir()
        local root = cbk.dict()
        for i, count in ipairs { 100, 1, 2, 200 } do root["w" .. i] = cbk.full({ count }, i) end
        cbk.create(dir .. "/m.safetensors", { root = root }):commit { progress = false }
        equal((run(dir, "copy", "m.safetensors", "out", "--format", format, "--shard-size", size)), 0)
        local stem = format == "torch" and "pytorch_model.bin" or "model.safetensors"
        local index = cbk.config.load(("%s/out/%s.index.json"):format(dir, stem))
        local files, used = 0, {}
        for _, file in cbk.items(index.weight_map) do used[file] = true end
        for _, name in ipairs(cbk.fs.list(dir .. "/out")) do
          if not name:find "index%.json$" then
            files = files + 1
            assert(used[name], name .. " is empty")
          end
        end
        equal(files, size == "1B" and 4 or 3, format .. " " .. size)
        equal(cbk.open(dir .. "/out").root.w4:shape(), { 200 })
      end
    end
  end)
end)

describe("a Hugging Face checkpoint in one file", function()
  it("has no index, and its usual name", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    conversion.warnings(function() config, root = conversion.run("gpt2", "hf", "cs-2.4", config, root) end)
    cbk.config.save(config, dir .. "/p.yaml")
    cbk.create(dir .. "/a.mdl", { root = root }):commit { progress = false }
    for name, more in pairs { ["pytorch_model.bin"] = {}, ["model.safetensors"] = { "--export-safetensors" } } do
      equal((run(dir, "convert", "--model", "gpt2", "--config", "p.yaml", "a.mdl", "--to", "hf", "--single-file", "--overwrite",
        unpack(more))), 0)
      equal(cbk.fs.list(dir .. "/a_to_hf"), { "config.json", name })
    end
  end)
end)
