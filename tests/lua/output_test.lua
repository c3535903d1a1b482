local cbk = require "cbk"
local mistakes = require "cbk.mistakes"
local t = require "harness"
local describe, it = t.describe, t.it

local function sample()
  return cbk.dict { { "model", cbk.dict { { "w", cbk.randn({ 300, 200 }, { seed = 1 }) }, { "b", cbk.tensor { 1, 2, 3 } } } },
    { "step", 7 } }
end

local function opcodes_of(path)
  local opcodes = {}
  for opcode in cbk.pickle.opcodes(path) do opcodes[#opcodes + 1] = opcode end
  return opcodes
end

describe("Output", function()
  it("writes what its plan says", function()
    local path = cbk.fs.join(t.temp_dir(), "x.safetensors")
    local out = cbk.create(path)
    out["a.b"] = cbk.tensor({ 1, 2 })
    out["a.c"] = out["a.b"]:to("bfloat16")
    out.gone = out["a.b"]
    out.gone = nil
    t.equal({ out:get "gone", out["a.b"].dtype, out:path() }, { nil, "float32", path })
    local plan = out:plan()
    t.equal({ plan.tensors, plan.lossy }, { 2, { "a.c" } })
    t.is_true(tostring(plan):find("may lose precision (values are not read): a.c", 1, true))
    t.is_true(not cbk.fs.exists(path), "a plan writes nothing")
    t.equal(out:commit().tensors, 2)
    local back = cbk.open(path)
    t.equal(back.format, "safetensors")
    t.equal({ back["a.b"]:tolist(), back["a.c"].dtype }, { { 1, 2 }, "bfloat16" })
  end)

  it("has a plan with the most bytes that it writes, and with the tensors that are stored", function()
    for name, stored in pairs { ["x.safetensors"] = "2 stored tensors", ["x.pt"] = "1 stored tensor", ["x.mdl"] = "1 stored tensor" } do
      local path, root = cbk.fs.join(t.temp_dir(), name), cbk.dict { { "w", cbk.randn { 20, 30 } } }
      root.tied = root.w
      local plan = cbk.create(path, { root = root }):plan()
      t.is_true(tostring(plan):find("^reads 0 B, writes at most [%d.]+ KiB %(" .. stored .. "%), memory for ") ~= nil, tostring(plan))
      cbk.create(path, { root = root }):commit()
      t.is_true(#cbk.fs.read(path) <= plan.bytes_written, name)
    end
  end)

  it("puts keys of the model into the model of an H5 checkpoint", function()
    local folder = t.temp_dir()
    local model = cbk.dict { { "h.0.w", cbk.tensor { 1 } }, { "b", cbk.tensor { 2 } } }
    local tree = cbk.dict { { "model", model }, { "step", cbk.tensor { 3 } } }
    cbk.create(folder .. "/a.mdl", { root = tree }):commit()
    for _, version in ipairs { "0.4", "0.5" } do
      local path = ("%s/%s.mdl"):format(folder, version)
      local out = cbk.create(path, { h5_version = version })
      for key, tensor in cbk.open(folder .. "/a.mdl"):tensors() do out[key] = tensor end
      t.equal({ out["model.h.0.w"]:item(), out:has "model.b", out:has "model.c", out:get "model.x.y" }, { 1, true, false, nil })
      out["model.gone"] = cbk.tensor { 4 }
      out["model.gone"] = nil
      out["model.b"] = cbk.tensor { 5 }
      out:commit()
      local back = cbk.open(path)
      t.equal(cbk.keys(back.root), { "model", "step" }, version)
      t.equal(cbk.keys(back.root.model), { "h.0.w", "b" }, version)
      t.equal(back["model.b"]:item(), 5)
    end
  end)

  it("refuses other keys with dots in an H5 checkpoint", function()
    local folder = t.temp_dir()
    local w = cbk.tensor { 1 }
    local out = cbk.create(folder .. "/a.mdl")
    for _, key in ipairs { "optimizer.state.0.exp_avg", "transformer.wte.weight", "a." } do
      t.raises(("cannot set '%s' in '%s/a.mdl': an H5 checkpoint is a tree"):format(key, folder), function() out[key] = w end, "key")
      out[key] = nil
    end
    t.raises("for a weight of the model write out['model.a.weight'] = tensor", function() out["a.weight"] = w end, "key")
    t.raises("as in out.a = cbk.dict", function() out["a.step"] = 1 end, "key")
    out.model = w
    t.raises("cannot set 'model.x'", function() out["model.x"] = w end, "key")
    out:close()
    local cases = { ["b.mdl"] = { root = cbk.dict { { "a.b", w } } }, ["c.h5"] = { h5_version = "flat" }, ["d.pt"] = {} }
    for name, options in pairs(cases) do -- a tree that says so, and files that are none
      local other = cbk.create(cbk.fs.join(folder, name), options)
      other["a.b"] = cbk.tensor { 2 }
      other:commit()
      t.equal(cbk.open(cbk.fs.join(folder, name)).root["a.b"]:item(), 2, name)
    end
  end)

  it("refuses values that a dtype cannot hold, and counts them", function()
    local folder = t.temp_dir()
    local path = cbk.fs.join(folder, "x.safetensors")
    local floats = cbk.tensor { 1e5, -1e5, 1, 1e-10, 0, 0 / 0, math.huge }
    local half = floats:to "float16"
    local root = cbk.dict { { "half", half }, { "tied", half }, { "kept", floats:slice(0, 2, 3):to "float16" },
      { "whole", cbk.tensor({ 1.5, 2, 300, 0 / 0, -128, 127 }):to "int8" },
      { "scaled", cbk.tensor({ 6e4, 1 }, { dtype = "float16" }) * 2 },
      { "narrow", cbk.tensor({ 300, 255, -1 }, { dtype = "int64" }):to "uint8" } }
    local out = cbk.create(path, { root = root })
    t.raises("cannot keep the values of 4 tensors: ", function() out:commit() end, "value")
    for _, part in ipairs { "'half' (2 of 7 values overflow float16)", "'whole' (3 of 6 values are not exact in int8)",
      "'scaled' (1 of 2 values overflow float16)", "'narrow' (2 of 3 values are not exact in uint8)", "allow_overflow = true" } do
      t.raises(part, function() out:commit() end, "value")
    end
    t.equal(cbk.fs.list(folder), {})
    for threads = 1, 3 do
      local result = cbk.create(path, { root = root, overwrite = true }):commit { allow_overflow = true, threads = threads }
      local counts = {}
      for _, lost in ipairs(result.lost) do counts[lost.key] = { lost.numel, lost.overflowed, lost.changed, lost.vanished } end
      t.equal(counts, { half = { 7, 2, 0, 1 }, whole = { 6, 0, 3, 0 }, scaled = { 2, 1, 0, 0 }, narrow = { 3, 0, 2, 0 } })
      local text = table.concat(result.warnings, "\n")
      t.is_true(text:find("4 tensors cannot keep all values: ", 1, true), text)
      t.is_true(text:find("small values of 1 tensor became 0: 'half' (1 of 7 in float16)", 1, true), text)
    end
    t.equal(cbk.open(path)["narrow"]:tolist(), { 44, 255, 255 })
    t.equal(half:slice(0, 0, 1):tolist(), { math.huge }) -- reading refuses nothing
  end)

  it("counts what a tensor lost once, however often it is read", function()
    local x = cbk.tensor({ 1e5, 1, 1e6 }):to "float16"
    local y = cbk.tensor({ 1, 1, 1e9 }):to "float16"
    for i, case in ipairs { { x + x, 2 }, { x + 2 * x, 2 }, { 3 * x + 2 * x, 2 }, { x - (x + y), 3 }, { x + y, 3 } } do
      local out = cbk.create(cbk.fs.join(t.temp_dir(), "x.pt"), { root = cbk.dict { w = case[1] } })
      t.equal(out:commit({ allow_overflow = true }).lost[1].overflowed, case[2], "case " .. i)
    end
  end)

  it("writes small values that become 0, with a warning", function()
    local out = cbk.create(cbk.fs.join(t.temp_dir(), "x.pt"), { root = cbk.dict { w = cbk.tensor({ 1e-10, 1 }):to "float16" } })
    t.equal(out:commit().warnings, { "small values of 1 tensor became 0: 'w' (1 of 2 in float16)" })
  end)

  it("says which casts may lose precision by their dtypes", function()
    local function lossy(from, ...)
      local tensor = cbk.tensor({ 1 }, { dtype = from })
      for _, name in ipairs { ... } do tensor = tensor:to(name) end
      return #cbk.create(cbk.fs.join(t.temp_dir(), "x.pt"), { root = cbk.dict { w = tensor } }):plan().lossy == 1
    end
    t.equal({ lossy("float32", "bfloat16"), lossy("bfloat16", "float32"), lossy("float16", "bfloat16"), lossy("int8", "float16") },
      { true, false, true, false })
    t.equal({ lossy("bfloat16", "float32", "bfloat16"), lossy("bfloat16", "float32", "float16"), lossy("float32", "bfloat16", "float32") },
      { false, true, true })
  end)

  it("refuses a tree that holds itself", function()
    local folder, loop = t.temp_dir(), cbk.dict()
    loop.inner = loop
    for _, name in ipairs { "x.pt", "x.mdl" } do
      local out = cbk.create(cbk.fs.join(folder, name), { root = cbk.dict { { "w", cbk.tensor { 1 } }, { "loop", loop } } })
      t.raises("holds itself", function() out:commit() end, "value")
    end
    loop.inner = nil -- counted references do not free a circle
    t.equal(cbk.fs.list(folder), {})
  end)

  it("goes round through every format", function()
    local folder = t.temp_dir()
    local root = sample()
    for _, name in ipairs { "x.pt", "x.mdl", "x.h5" } do
      local path = cbk.fs.join(folder, name)
      cbk.create(path, { root = root }):commit { threads = 2, memory = "1MiB" }
      local back = cbk.open(path)
      t.equal({ back.root.step, back["model.b"]:tolist() }, { 7, { 1, 2, 3 } }, name)
      t.equal(back["model.w"]:sha256(), root.model.w:sha256(), name)
    end
    t.equal(cbk.fs.list(folder), { "x.h5", "x.mdl", "x.pt" })
  end)

  it("takes every key, also the names of its methods", function()
    local path = t.temp_dir() .. "/x.pt"
    local out = cbk.create(path)
    local keys = { "root", "path", "plan", "commit", "close", "set_root", "format", "version", "files", "tensors", "" }
    for i, key in ipairs(keys) do out[key] = cbk.tensor { i } end
    t.equal({ out:root()["commit"]:item(), cbk.count(out:root()), out:path() }, { 4, #keys, path })
    out:commit()
    local source, copy = cbk.open(path), cbk.create(path .. ".safetensors")
    for key, tensor in source:tensors() do copy[key] = tensor end
    copy:commit()
    local back = cbk.open(path .. ".safetensors")
    for i, key in ipairs(keys) do t.equal(back.root[key]:item(), i, key) end
    t.equal({ back.format, cbk.find(back.root, "format"):item() }, { "safetensors", 7 })
    copy = cbk.create(path .. "2.pt")
    copy:set_root { a = cbk.tensor { 1 } }
    copy:commit()
    t.equal(cbk.open(path .. "2.pt").a:item(), 1)
  end)

  it("does not change after its commit", function()
    local out = cbk.create(t.temp_dir() .. "/x.pt", { root = sample() })
    out:commit()
    t.raises("was already written", function() out:commit() end, "usage")
    t.raises("was already written", function() out.more = cbk.tensor { 1 } end, "usage")
    t.raises("was already written", function() out:set_root(sample()) end, "usage")
    t.equal(out.step, 7)
  end)

  it("streams a source that is closed and collected", function()
    local folder = t.temp_dir()
    cbk.create(folder .. "/a.pt", { root = sample() }):commit()
    local source = cbk.open(folder .. "/a.pt")
    local out = cbk.create(folder .. "/b.safetensors")
    for key, tensor in source:tensors() do out[key] = tensor * 2 end
    source:close()
    source = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    out:commit()
    t.equal(cbk.open(folder .. "/b.safetensors")["model.b"]:tolist(), { 2, 4, 6 })
  end)

  it("commits several outputs as one, with companions elsewhere", function()
    local folder = t.temp_dir()
    local first, second, config = folder .. "/x.pt", folder .. "/x.h5", t.temp_dir() .. "/x.yaml"
    local function outputs()
      return {
        cbk.create(first, { root = { a = cbk.tensor { 1 } } }),
        cbk.create(second, { root = { b = cbk.tensor { 2 } }, companions = { [cbk.fs.absolute(config)] = "a: 1\n" } }),
      }
    end
    cbk.fs.write(config, "theirs")
    t.raises("x.yaml' exists already", function() cbk.commit(outputs()) end, "exists")
    t.equal(cbk.fs.list(folder), {})
    cbk.fs.remove(config)
    local plans = cbk.commit(outputs())
    t.equal({ #plans, plans[2].tensors, cbk.fs.read(config) }, { 2, 1, "a: 1\n" })
    t.equal({ cbk.open(first).a:item(), cbk.open(second).b:item() }, { 1, 2 })
    t.raises("a list of outputs", function() cbk.commit "x" end, "usage")
  end)

  it("makes shards with their companions", function()
    local folder = t.temp_dir() .. "/out"
    local root = cbk.dict()
    for i = 1, 4 do root["w" .. i] = cbk.full({ 1000 }, i) end
    cbk.create(folder, { root = root, format = "safetensors", shard_size = 8000, companions = { ["config.json"] = "{}" } }):commit()
    t.equal(cbk.fs.list(folder), { "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
      "model.safetensors.index.json" })
    t.equal(cbk.open(folder)["w4"]:slice(0, 0, 2):tolist(), { 4, 4 })
  end)

  it("reports progress up to the end", function()
    local seen
    local out = cbk.create(t.temp_dir() .. "/x.pt", { root = sample() })
    out:commit { progress = function(p) seen = p end }
    t.is_true(seen.total >= 300 * 200 * 4)
    t.equal(seen.done, seen.total)
    t.equal(type(seen.key), "string")
  end)

  it("leaves nothing behind when it fails", function()
    local folder = t.temp_dir()
    local out = cbk.create(folder .. "/x.pt", { root = sample() })
    t.raises("stopped by the caller", function()
      out:commit { progress = function() error("stopped by the caller") end }
    end)
    t.raises("step", function() cbk.create(folder .. "/x.safetensors", { root = sample() }):commit() end)
    t.equal(cbk.fs.list(folder), {})
  end)

  it("refuses a target that exists, unknown options and unknown formats", function()
    local path = t.temp_dir() .. "/x.pt"
    cbk.create(path, { root = sample() }):commit()
    t.raises("exists already", function() cbk.create(path) end, "exists")
    cbk.create(path, { root = cbk.dict { a = 1 }, overwrite = true }):commit()
    t.equal(cbk.open(path).root.a, 1)
    t.raises("did you mean 'overwrite'", function() cbk.create(path, { overwite = true }) end, "usage")
    t.raises("x.foo", function() cbk.create(path .. "x.foo", { root = sample() }):plan() end, "usage")
    t.raises("option 'threads'", function() cbk.create(path .. "2.pt"):plan { threads = -1 } end, "usage")
    t.raises("is not a size", function() cbk.create(path .. "2.pt"):plan { memory = "much" } end, "usage")
  end)

  it("keeps ties where a format can say them", function()
    local path = t.temp_dir() .. "/x.pt"
    local w = cbk.randn({ 4, 4 }, { seed = 1 })
    cbk.create(path, { root = cbk.dict { a = w, b = w } }):commit()
    local back = cbk.open(path)
    t.is_true(back.root.a == back.root.b)
  end)
end)

describe("Folders of an output", function()
  it("are made with it, and only then", function()
    local dir = t.temp_dir()
    local function output(name, value) return cbk.create(dir .. name, { root = cbk.dict { a = value or cbk.tensor { 1 } } }) end
    output "/new/deep/x.pt":plan()
    t.equal(cbk.fs.list(dir), {})
    local bad = output("/new/deep/x.pt", cbk.tensor { 0 / 0 }:require_finite "a")
    t.is_true(not pcall(bad.commit, bad))
    t.equal(cbk.fs.list(dir), {})
    output "/new/deep/x.pt":commit()
    t.equal(cbk.fs.list(dir .. "/new/deep"), { "x.pt" })
    local tensors = cbk.dict { a = cbk.tensor { 1 } }
    cbk.create(dir .. "/folder/shards/", { format = "safetensors", shard_size = 100, root = tensors }):commit()
    t.is_true(cbk.fs.exists(dir .. "/folder/shards/model.safetensors.index.json"))
    cbk.config.save(cbk.dict { a = 1 }, dir .. "/c/d/x.yaml")
    cbk.fs.write(dir .. "/t/x", "text")
    t.equal({ cbk.fs.list(dir .. "/c/d"), cbk.fs.list(dir .. "/t") }, { { "x.yaml" }, { "x" } })
    t.raises("create the folder", function() cbk.fs.write(dir .. "/t/x/y/z", "") end)
  end)
end)

describe("Names that do not exist", function()
  local function made()
    local path = t.temp_dir() .. "/x.pt"
    local out = cbk.create(path, { root = cbk.dict { ["lm_head.weight"] = cbk.tensor { 1, 2 }, tensors = 3 } })
    out:commit()
    return path, out
  end

  it("are errors that name what looks like them", function()
    local path, out = made()
    local ckpt, edit_path = cbk.open(path), path .. ".h5"
    cbk.create(edit_path, { root = cbk.dict { a = 1 } }):commit()
    local cases = {
      { "'lm_haed.weight'; did you mean 'lm_head.weight'? ckpt:get(key)", function() return ckpt["lm_haed.weight"] end },
      { "did you mean 'tensors'", function() return ckpt:tensor() end },
      { "has no 'zzzzzzzzzz'; ckpt:get(key) returns nil", function() return ckpt.zzzzzzzzzz end },
      { "did you mean 'commit'? out:get(key)", function() out:comit() end },
      { "did you mean 'lm_head.weight'", function() return out["lm_head.weigth"] end },
      { "a Tensor has no 'mean'; t:stats().mean has it", function() return cbk.tensor { 1 }:mean() end },
      { "a Tensor has no 'reshap'; did you mean 'reshape'", function() return cbk.tensor { 1 }:reshap { 1 } end },
      { "this H5Edit has no 'nams'; did you mean 'names'", function() return cbk.h5.edit(edit_path):nams() end },
      { "cbk has no 'opne'; did you mean 'cbk.open'?", function() return cbk.opne end },
      { "cbk.fs has no 'lst'; did you mean 'cbk.fs.list'?", function() return cbk.fs.lst end },
    }
    for _, case in ipairs(cases) do t.raises(case[1], case[2], "key") end
    t.raises("read-only; use out = cbk.create(path)", function() ckpt["z"] = 1 end, "usage")
    t.raises("dotted keys, not by a number", function() return ckpt[1] end, "usage")
    t.raises("table of options such as { dtype = … } expected, got string", function() return cbk.tensor({ 1 }, "int64") end, "usage")
    local place = select(2, pcall(function() return ckpt.zzzzzzzzzz end)).where
    t.is_true(place:find "output_test.lua:%d+$", place)
  end)

  it("may be asked for", function()
    local path, out = made()
    local ckpt = cbk.open(path)
    t.equal({ ckpt:has "lm_head.weight", ckpt:has "gone", ckpt:get "gone", ckpt:get "tensors" }, { true, false, nil, 3 })
    t.equal({ out:has "lm_head.weight", out:has "gone", out:get "gone", out:get "tensors" }, { true, false, nil, 3 })
    t.equal(cbk.dict().gone, nil)
  end)

  it("a key with dots is no second name of a tensor in a dict", function()
    local out = cbk.create(t.temp_dir() .. "/a.pt", { root = cbk.dict { model = cbk.dict { ["a.b.w"] = cbk.full({ 2 }, 1) } } })
    t.raises("its dict 'model' has 'a.b.w'; set it there, as in out['model']['a.b.w'] = value", function()
      out["model.a.b.w"] = cbk.full({ 2 }, 2)
    end)
    out["model.a.b.c"] = cbk.full({ 2 }, 2)
    out:close()
  end)

  it("Lua's own loops take tables only, and shapes print", function()
    local path = made()
    for _, value in ipairs { cbk.open(path), cbk.dict { a = 1 }, cbk.list { 5 } } do
      for name, loop in pairs { pairs = function() for _ in pairs(value) do error "no" end end,
        ipairs = function() for _ in ipairs(value) do error "no" end end } do
        local _, problem = pcall(loop)
        t.has(mistakes(problem), ("'%s' takes plain Lua tables only; write 'for key, value in cbk.items(x) do'"):format(name))
      end
    end
    t.equal(tostring(cbk.full({ 2, 3 }, 1):shape()), "[2, 3]")
    t.equal(cbk.json(cbk.dict { s = cbk.full({ 2, 3 }, 1):shape() }), '{"s": [2, 3]}')
  end)
end)

describe("Checkpoint", function()
  it("has facts and finds values by path", function()
    local path = t.temp_dir() .. "/x.pt"
    cbk.create(path, { root = sample() }):commit()
    local checkpoint = cbk.open(path)
    t.equal({ checkpoint.format, checkpoint.path, checkpoint.files, checkpoint.warnings }, { "torch-zip", path, { path }, {} })
    t.equal({ checkpoint["model.w"]:shape(), checkpoint:get "model.x", checkpoint["step"] }, { { 300, 200 }, nil, 7 })
    local keys = {}
    for key in checkpoint:tensors "*.[ab]" do keys[#keys + 1] = key end
    t.equal(keys, { "model.b" })
    checkpoint:close()
    t.equal(tostring(checkpoint), "Checkpoint (closed)")
    t.raises("is closed", function() return checkpoint.root end, "usage")
  end)

  it("says what a file is not", function()
    local path = t.temp_dir() .. "/x.pt"
    cbk.fs.write(path, "nothing of the kind")
    t.raises("x.pt", function() cbk.open(path) end, "format")
    t.raises("no/such/file", function() cbk.open "no/such/file" end, "io")
  end)

  it("is seen at the level of its format", function()
    local folder = t.temp_dir()
    cbk.create(folder .. "/x.safetensors", { root = cbk.dict { a = cbk.tensor { 1, 2 } }, metadata = { format = "pt" } }):commit()
    local header = cbk.safetensors.inspect(folder .. "/x.safetensors")
    t.equal({ header.metadata.format, header.tensors[1].name, header.tensors[1].shape, header.tensors[1].stop }, { "pt", "a", { 2 }, 8 })
    cbk.create(folder .. "/x.pt", { root = sample() }):commit()
    local opcodes = opcodes_of(folder .. "/x.pt")
    t.equal({ opcodes[1].name, opcodes[#opcodes].name }, { "PROTO", "STOP" })
    local names = {}
    for i, record in ipairs(cbk.pickle.records(folder .. "/x.pt")) do names[i] = record.name end
    t.equal(names[1], "x/data.pkl")
    t.equal(cbk.pickle.verify(folder .. "/x.pt"), #names)
  end)

  it("has no records where the file is a legacy one", function()
    local path = t.temp_dir() .. "/x.pt"
    cbk.fs.write(path, "L119547037146038801333356L\n.I1001\n.")
    t.raises("is not an archive", function() cbk.pickle.records(path) end, "unsupported")
    t.raises("no checksums", function() cbk.pickle.verify(path) end, "unsupported")
    t.equal(#opcodes_of(path), 4)
  end)

  it("is checked against the checksums of its archive on demand", function()
    local path = t.temp_dir() .. "/large.pt" -- beyond what is checked at opening
    cbk.create(path, { root = cbk.dict { a = cbk.randn { 100 }, b = cbk.randn { 4500000 } } }):commit()
    t.equal(cbk.pickle.verify(path), 5)
    local file = assert(io.open(path, "r+b"))
    file:seek("set", 10000000)
    local byte = file:read(1):byte()
    file:seek("set", 10000000)
    file:write(string.char((byte + 1) % 256))
    file:close()
    t.raises("'large/data/1' is damaged", function() cbk.pickle.verify(path) end, "format")
    t.raises("large.pt", function() cbk.pickle.verify(path) end)
  end)

  it("is not changed by outputs that begin with its tree", function()
    local folder = t.temp_dir()
    local layers = cbk.dict { { "layers.0.weight", cbk.tensor { 1, 2 } }, { "layers.1.weight", cbk.tensor { 3 } } }
    cbk.create(folder .. "/x.mdl", { root = cbk.dict { { "model", layers }, { "list", cbk.list { 1, cbk.list { 2 } } } } }):commit()
    local source = cbk.open(folder .. "/x.mdl")
    for i = 1, 2 do
      local out = cbk.create(folder .. "/" .. i .. ".mdl", { root = source.root })
      out["model.layers.0.weight"] = source["model.layers.0.weight"] * 2
      out:root().model["layers.2.weight"] = cbk.tensor { 4 }
      out:commit()
      local new = cbk.open(folder .. "/" .. i .. ".mdl")
      t.equal({ new["model.layers.0.weight"]:tolist(), #cbk.keys(new.root.model) }, { { 2, 4 }, 3 })
    end
    local other = cbk.create(folder .. "/other.mdl")
    other.model = source.root.model
    for key, tensor in source:tensors "model.*" do other[key] = tensor:to "float16" end
    other:set_root(source.root)
    other["model.layers.0.weight"] = nil
    other:commit()
    t.equal(cbk.keys(cbk.open(folder .. "/other.mdl").root.model), { "layers.1.weight" })
    local inner = cbk.create(folder .. "/inner.mdl", { root = { model = source.root.model, step = 8 } })
    inner["model.layers.9.weight"] = cbk.tensor { 5 }
    inner.meta = { inner = source.root.list }
    inner.meta.inner[1] = 7
    inner:commit()
    t.equal(cbk.open(folder .. "/inner.mdl").meta.inner[1], 7)
    t.equal({ source["model.layers.0.weight"]:tolist(), source["model.layers.0.weight"].dtype, cbk.keys(source.root.model) },
      { { 1, 2 }, "float32", { "layers.0.weight", "layers.1.weight" } })
  end)

  it("is read-only with all containers in it; a copy can be changed", function()
    for _, name in ipairs { "x.mdl", "x.pt" } do
      local path = t.temp_dir() .. "/" .. name
      local model = cbk.dict { a = cbk.tensor { 1 } }
      cbk.create(path, { root = cbk.dict { { "model", model }, { "list", cbk.list { 1, cbk.list { 2 } } } } }):commit()
      local root = cbk.open(path).root
      local advice = "belongs to an open checkpoint, which is read-only; change a copy: cbk.copy"
      for _, change in ipairs { function() root.x = 1 end, function() root.model.a = nil end, function() root.list[1] = 2 end,
        function() cbk.insert(root.list[2], 1, 3) end, function() cbk.remove(root.list) end,
        function() cbk.copy(root).model.b = 1 end, function() cbk.dict(root).list[1] = 1 end } do
        t.raises(advice, change, "usage")
      end
      local copy, whole = cbk.copy(root), cbk.deep_copy(root)
      copy.model, whole.model.b = nil, 1
      cbk.insert(whole.list[2], 1, 3)
      t.equal({ cbk.keys(copy), cbk.keys(whole.model), #whole.list[2], cbk.keys(root), #root.list[2] },
        { { "list" }, { "a", "b" }, 2, { "model", "list" }, 1 })
    end
  end)

  it("may give one tree to several outputs, each of which changes its own", function()
    local folder = t.temp_dir()
    local tree = cbk.dict { { "model", cbk.dict { w = cbk.tensor { 1.5 } } } }
    local full, half = cbk.create(folder .. "/full.mdl", { root = tree }), cbk.create(folder .. "/half.mdl", { root = tree })
    half["model.w"] = tree.model.w:to "bfloat16"
    half.step = 2
    cbk.commit { full, half }
    local one, other = cbk.open(folder .. "/full.mdl"), cbk.open(folder .. "/half.mdl")
    t.equal({ one["model.w"].dtype, other["model.w"].dtype, cbk.keys(one.root), other.step }, { "float32", "bfloat16", { "model" }, 2 })
    local late = cbk.create(folder .. "/late.mdl", { root = tree }) -- a tree is seen as it is at the commit
    tree.step = 3
    late:commit()
    t.equal(cbk.open(folder .. "/late.mdl").step, 3)
    local lost = cbk.create(folder .. "/lost.mdl", { root = tree })
    lost.epoch = 1
    tree.model.x = cbk.tensor { 1 }
    t.raises("was changed after `out[key] = value` had made the output's own of it", function() lost:commit() end, "usage")
    lost:set_root(tree)
    lost:commit()
    t.equal(cbk.keys(cbk.open(folder .. "/lost.mdl").root), { "model", "step" })
  end)

  it("may have parts of an open checkpoint beside those that a script still fills", function()
    local folder = t.temp_dir()
    local model = cbk.dict { a = cbk.tensor { 1 } }
    cbk.create(folder .. "/x.mdl", { root = cbk.dict { { "model", model }, { "optimizer", cbk.dict { lr = 1 } } } }):commit()
    local source = cbk.open(folder .. "/x.mdl")
    local tree = cbk.dict { { "optimizer", source.root.optimizer }, { "model", cbk.dict() } }
    local out = cbk.create(folder .. "/filled.mdl", { root = tree })
    for i = 1, 3 do tree.model["k" .. i] = cbk.tensor { i } end
    out:commit()
    t.equal(cbk.keys(cbk.open(folder .. "/filled.mdl").root.model), { "k1", "k2", "k3" })
    local optimizer, other = cbk.copy(source.root.optimizer), cbk.create(folder .. "/other.mdl")
    other.model, other.optimizer = source.root.model, optimizer
    optimizer.lr = 0.5
    other:commit()
    t.equal(cbk.open(folder .. "/other.mdl").root.optimizer.lr, 0.5)
    local outs, one = {}, cbk.dict { model = cbk.dict { a = cbk.tensor { 0 } } }
    for i = 1, 2 do
      outs[i] = cbk.create(("%s/%d.mdl"):format(folder, i), { root = one })
      outs[i].model.a = cbk.tensor { i }
    end
    cbk.commit(outs)
    for i = 1, 2 do t.equal(cbk.open(("%s/%d.mdl"):format(folder, i))["model.a"]:tolist(), { i }) end
    local replaced = cbk.create(folder .. "/replaced.mdl")
    replaced.model = model
    replaced["model.b"] = cbk.tensor { 2 }
    replaced.model = cbk.dict { c = cbk.tensor { 3 } }
    model.z = cbk.tensor { 4 } -- no part of the output any more
    replaced:commit()
    t.equal(cbk.keys(cbk.open(folder .. "/replaced.mdl").root.model), { "c" })
  end)
end)
