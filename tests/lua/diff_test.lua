-- `cbk diff`: tensors with other keys, through a converter, ranked and folded. What is equal is in commands_test.lua.

local cbk = require "cbk"
local harness = require "harness"
local tiny = require "tiny"
local describe, it, equal, near, is_true = harness.describe, harness.it, harness.equal, harness.near, harness.is_true
local run = harness.cbk

local has, lacks = harness.has, harness.lacks

local function create(path, root) cbk.create(path, { root = root }):commit() end

local function diff(dir, ...)
  local status, out, err = run(dir, "diff", ...)
  return status, out, err
end

local function json_of(dir, ...)
  local status, out, err = run(dir, "diff", "--json", ...)
  local fine, result = pcall(cbk.config.parse, out, "json")
  if not fine then error(out .. err, 2) end
  return cbk.totable(result), status
end

---Two folders, where the second one's layers have other names, and some other values.
local function make()
  local dir, a, b = harness.temp_dir(), cbk.dict(), cbk.dict()
  for layer = 0, 11 do
    for seed, name in ipairs { "q", "k" } do
      local t = cbk.randn({ 8, 4 }, { seed = 10 * layer + seed })
      a[("layers.%d.%s.weight"):format(layer, name)], b[("h.%d.attn.%s.w"):format(layer, name)] = t, t
    end
    local t = cbk.randn({ 8, 4 }, { seed = 1000 + layer })
    a[("x.%d.w"):format(layer)] = t
    b[("x.%d.w"):format(layer)] = layer == 0 and t or t + cbk.randn({ 8, 4 }, { seed = 2000 + layer, std = 0.0001 * 2 ^ layer })
  end
  a.norm, b.ln = cbk.full({ 3 }, 1), cbk.full({ 3 }, 1)
  create(dir .. "/a.pt", a)
  create(dir .. "/b.pt", b)
  return dir
end

describe("cbk diff of renamed tensors", function()
  it("matches them by content, and folds layers", function()
    local dir = make()
    local status, out = diff(dir, "a.pt", "b.pt")
    equal(status, 1)
    has(out, "renamed, with the same content (24):\n  layers.{0..11}.q.weight -> h.{0..11}.attn.q.w\n"
      .. "  layers.{0..11}.k.weight -> h.{0..11}.attn.k.w\n")
    has(out, "only in a.pt (1):\n  norm\nonly in b.pt (1):\n  ln\n") -- ones, which prove nothing
    has(out, "1 value the same")
    has(select(2, diff(dir, "a.pt", "b.pt", "--all")), "  layers.3.k.weight -> h.3.attn.k.w\n")
    local result = json_of(dir, "a.pt", "b.pt")
    equal({ #result.renamed, result.only_a, result.only_b }, { 24, { "norm" }, { "ln" } })
    local keys = json_of(dir, "a.pt", "b.pt", "--keys-only")
    equal({ #keys.renamed, #keys.only_a, #keys.only_b }, { 0, 25, 25 })
  end)

  it("takes no tensors of other shapes or dtypes for the same", function()
    local dir = harness.temp_dir()
    create(dir .. "/a.pt", cbk.dict { { "a", cbk.tensor { 1, 2 } }, { "b", cbk.tensor { 3 } }, { "n", cbk.tensor { 0 / 0, 1 } } })
    create(dir .. "/b.pt", cbk.dict { { "c", cbk.tensor { { 1, 2 } } }, { "d", cbk.tensor({ 3 }, { dtype = "float64" }) },
      { "m", cbk.tensor { 0 / 0, 1 } } })
    local result = json_of(dir, "a.pt", "b.pt")
    equal({ result.only_a, result.only_b, result.renamed }, { { "a", "b" }, { "c", "d" }, { { a = "n", b = "m" } } })
  end)
end)

describe("cbk diff of renamed layers with other values", function()
  it("compares them by the pattern of the others' names", function()
    local dir, a, b = harness.temp_dir(), cbk.dict(), cbk.dict()
    for layer = 0, 3 do
      local t = cbk.randn({ 8, 4 }, { seed = layer })
      a[("h.%d.w"):format(layer)], b[("layers.%d.weight"):format(layer)] = t, layer == 2 and t + 0.5 or t
      a[("h.%d.ones"):format(layer)], b[("layers.%d.x"):format(layer)] = cbk.full({ 3 }, 1), cbk.full({ 3 }, layer == 2 and 2 or 1)
    end
    create(dir .. "/a.pt", a)
    create(dir .. "/b.pt", b)
    local out = select(2, diff(dir, "a.pt", "b.pt"))
    has(out, "renamed, with the same content (3):\n  h.{0,1,3}.w -> layers.{0,1,3}.weight\n")
    is_true(out:find("\n  h.2.w %-> layers.2.weight .* 0.5   100 %% "), out)
    local result = json_of(dir, "a.pt", "b.pt")
    equal({ result.different[1].key, result.different[1].renamed, #result.different }, { "h.2.w", "layers.2.weight", 1 })
    equal({ #result.only_a, #result.only_b, result.only_a[3], result.only_b[3] }, { 4, 4, "h.2.ones", "layers.2.x" }) -- equal constants
    equal((diff(dir, "a.pt", "b.pt", "--atol", "0.6", "--key", "h.*.w")), 1)
  end)

  it("pairs equal norms of a layer by what follows its number", function()
    local dir, a, b = harness.temp_dir(), cbk.dict(), cbk.dict()
    for layer = 0, 3 do
      for _, norm in ipairs { "norm", "after.norm" } do
        local t = cbk.full({ 3 }, 1)
        a[("h.%d.%s"):format(layer, norm)] = t
        b[("layers.%d.%s"):format(layer, norm)] = layer == 2 and norm == "norm" and t + 1 or t
      end
    end
    create(dir .. "/a.pt", a)
    create(dir .. "/b.pt", b)
    local result = json_of(dir, "a.pt", "b.pt")
    equal({ result.only_a, result.only_b, #result.renamed }, { {}, {}, 7 })
    equal({ result.different[1].key, result.different[1].renamed, #result.different }, { "h.2.norm", "layers.2.norm", 1 })
  end)

  it("finds the other name where a filter chooses one of them", function()
    local dir = make()
    for key, count in pairs { ["layers.3.*"] = 2, ["h.*.attn.q.w"] = 12 } do
      local result = json_of(dir, "a.pt", "b.pt", "--key", key)
      equal({ #result.renamed, #result.only_a, #result.only_b, #result.different }, { count, 0, 0, 0 }, key)
    end
  end)
end)

describe("cbk diff of values", function()
  it("ranks tensors, folds layers, and says where the largest differences are", function()
    local dir = make()
    local out = select(2, diff(dir, "a.pt", "b.pt"))
    has(out, "different tensors (11):\n  tensor       tensors  max rel  rel norm  most in  max abs  differ")
    is_true(out:find "\n  x.{1..11}.w       11 +[%d.]+ +[%d.]+  11  ", out)
    has(out, "\n  largest in x.11.w[")
    has(select(2, diff(dir, "a.pt", "b.pt", "--all")), ", cosine 0.9")
    local result = json_of(dir, "a.pt", "b.pt")
    equal({ #result.different, result.different[1].key }, { 11, "x.11.w" })
    for i = 2, 11 do is_true(result.different[i - 1].rel_norm >= result.different[i].rel_norm) end
    local by_key = json_of(dir, "a.pt", "b.pt", "--sort", "key")
    equal(by_key.different[1].key, "x.1.w")
    has(select(2, diff(dir, "a.pt", "b.pt", "--all", "--top", "2")), "  … and 9 more lines (a larger --top lists them)")
  end)

  it("computes them as they are", function()
    local dir = harness.temp_dir()
    create(dir .. "/a.pt", cbk.dict { { "w", cbk.tensor { { 3, 4, 0 }, { 0, 0, 1 } } },
      { "i", cbk.tensor({ 1, 2 }, { dtype = "int64" }) } })
    create(dir .. "/b.pt", cbk.dict { { "w", cbk.tensor { { 3, 4, 2 }, { 0, 0, 0 } } },
      { "i", cbk.tensor({ 1, 5 }, { dtype = "int64" }) } })
    local different = json_of(dir, "a.pt", "b.pt").different
    equal({ different[1].key, different[2].key }, { "i", "w" })
    local w = different[2]
    equal({ w.different, w.numel, w.first, w.max_abs, w.max_rel }, { 2, 6, { 0, 2 }, 2, 1 })
    near(w.rel_norm, math.sqrt(5 / 29), 1e-12)
    near(w.cosine, 25 / math.sqrt(26 * 29), 1e-12)
    equal(w.largest, { { position = { 0, 2 }, a = 0, b = 2 }, { position = { 1, 2 }, a = 1, b = 0 } })
    equal(different[1].largest, { { position = { 1 }, a = 2, b = 5 } })
    local every = select(2, diff(dir, "a.pt", "b.pt", "--all"))
    has(every, "w: 2 of 6 elements differ (33.3 %), max abs 2, max rel 1, rel norm 0.4152, cosine 0.910446, "
      .. "first at [0, 2], largest at [0, 2]: 0, 2")
  end)

  it("chooses by the shape and dtype of either side", function()
    local dir = harness.temp_dir()
    create(dir .. "/a.pt", cbk.dict { { "w", cbk.full({ 2, 3 }, 1) }, { "v", cbk.full({ 2 }, 1) } })
    create(dir .. "/b.pt", cbk.dict { { "w", cbk.full({ 3, 2 }, 1) }, { "v", cbk.full({ 2 }, 1, { dtype = "bfloat16" }) } })
    for _, shape in ipairs { "2,3", "3,2" } do
      equal(json_of(dir, "a.pt", "b.pt", "--shape", shape).different, { { key = "w", what = "shape", a = "[2, 3]", b = "[3, 2]" } })
    end
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local keys = {}
      for i, one in ipairs(json_of(dir, "a.pt", "b.pt", "--dtype", dtype).different) do keys[i] = one.key end
      equal(keys[#keys], "v")
      equal((diff(dir, "a.pt", "b.pt", "--dtype", dtype, "--ignore-dtype", "--key", "v")), 0)
    end
  end)

  it("shows complex elements, and the digits in which elements differ", function()
    local dir = harness.temp_dir()
    local function complex(...) return cbk.tensor({ ... }, { dtype = "complex64", shape = { 2 } }) end
    create(dir .. "/a.pt", cbk.dict { { "c", complex(1, 2) }, { "w", cbk.tensor { 1 } } })
    create(dir .. "/b.pt", cbk.dict { { "c", complex(1, 3) }, { "w", cbk.tensor { 1 + 2 ^ -23 } } })
    local out = select(2, diff(dir, "a.pt", "b.pt", "--all"))
    has(out, "largest at [1]: 2+0i, 3+0i")
    has(out, "largest at [0]: 1, 1.00000012")
    equal(json_of(dir, "a.pt", "b.pt").different[1].largest, { { position = { 1 }, a = { 2, 0 }, b = { 3, 0 } } })
  end)

  it("compares only what is asked for", function()
    local dir = make()
    equal((diff(dir, "a.pt", "b.pt", "--key", "x.0")), 0)
    equal((diff(dir, "a.pt", "b.pt", "--key", "x.*")), 1)
    for _, filter in ipairs { { "--dtype", "int8" }, { "--key", "y.*" }, { "--shape", "9,9" } } do
      local status, _, err = diff(dir, "a.pt", "b.pt", unpack(filter))
      equal(status, 2)
      has(err, "no tensor of either side is chosen")
    end
    local result = json_of(dir, "a.pt", "b.pt", "--shape", "3")
    equal({ result.only_a, result.only_b, #result.different }, { { "norm" }, { "ln" }, 0 })
    equal((diff(dir, "a.pt", "b.pt", "--shape", "x")), 2)
    equal((diff(dir, "a.pt", "b.pt", "--sort", "nothing")), 2)
  end)
end)

describe("Numbers for people", function()
  it("have 6 digits, or as many as show a difference; in JSON they are exact", function()
    local dir = harness.temp_dir()
    for name, lr in pairs { a = 0.00047999999999999996, b = 0.00047999999999999991, c = 0.1 } do
      local group = cbk.dict { { "lr", lr }, { "betas", cbk.list { 0.9500000000000001 } }, { "scale", cbk.float(4294967296) } }
      create(dir .. "/" .. name .. ".pt", cbk.dict { { "w", cbk.tensor { 1 } }, { "group", group } })
    end
    local _, listed = run(dir, "ls", "a.pt", "--flat")
    is_true(listed:find "group.lr +float +0.00048\n" ~= nil and listed:find "betas.0 +float +0.95\n" ~= nil, listed)
    has(listed, "4294967296")
    has(select(2, run(dir, "show", "a.pt", "group.lr")), "0.00047999999999999996")
    is_true(select(2, diff(dir, "a.pt", "c.pt")):find "\n  group.lr  0.00048  0.1\n" ~= nil)
    is_true(select(2, diff(dir, "a.pt", "b.pt")):find "group.lr  0.00047999999999999996  0.0004799999999999999\n" ~= nil)
    equal(json_of(dir, "a.pt", "c.pt").different[1].a, "0.00047999999999999996")
  end)
end)

describe("cbk diff of folders", function()
  local function folders(name, a, b)
    local dir = harness.temp_dir()
    for side, config in pairs { a = a, b = b } do
      cbk.fs.mkdir(cbk.fs.join(dir, side))
      create(cbk.fs.join(dir, side, "model.safetensors"), cbk.dict { w = cbk.tensor { 1 } })
      cbk.config.save(config, cbk.fs.join(dir, side, name))
    end
    return dir
  end

  it("compares their configs, too", function()
    for name, place in pairs { ["config.json"] = "", ["params.yaml"] = "model." } do
      local function config(fields) return place == "" and cbk.dict(fields) or cbk.dict { model = cbk.dict(fields) } end
      local dir = folders(name,
        config { { "tied", false }, { "eps", 1e-5 }, { "size", 8 }, { "ids", cbk.list { 1, 2 } }, { "none", cbk.null } },
        config { { "tied", true }, { "eps", 1e-6 }, { "size", cbk.float(8) }, { "ids", cbk.list { 1, 3 } }, { "more", false } })
      local status, out = diff(dir, "a", "b")
      equal(status, 1)
      has(out, "different fields of the configs (4):\n")
      is_true(out:find("\n  " .. place .. "more +%(absent%) +False\n") ~= nil, out)
      has(out, "\n1 value the same\n")
      local result = json_of(dir, "a", "b")
      equal(result.config, { { field = place .. "tied", a = false, b = true },
        { field = place .. "eps", a = 1e-5, b = 1e-6 }, { field = place .. "ids.1", a = 2, b = 3 },
        { field = place .. "more", b = false } })
      equal(result.equal, false)
      equal({ diff(dir, "a", "b", "--keys-only") }, { 0, "the same: 1 value (without values)\n", "" })
      equal((diff(dir, "a", "b", "--key", "w")), 0)
      equal((diff(dir, "a", "a")), 0)
      equal((diff(dir, "a", "b/model.safetensors")), 0) -- a file alone
    end
  end)

  it("takes the default of a field for the same as none", function()
    local dir = folders("config.json", cbk.dict { { "model_type", "llama" } },
      cbk.dict { { "model_type", "llama" }, { "initializer_range", 0.02 }, { "rms_norm_eps", 1e-5 }, { "hidden_act", "silu" },
        { "tie_word_embeddings", false } })
    equal(json_of(dir, "a", "b").config, { { field = "rms_norm_eps", b = 1e-5 } })
  end)
end)

describe("cbk diff through a converter", function()
  local function model(dir, name, change)
    local config, root = tiny.model(tiny.newest_ways()[name])
    cbk.fs.mkdir(dir .. "/hf")
    cbk.config.save(config, dir .. "/hf/config.json")
    create(dir .. "/hf/model.safetensors", root)
    local status, _, err = run(dir, "convert", "hf", "--to", "cs-2.5", "-o", "zoo", "-q")
    equal(status, 0, err)
    if change then
      change(root)
      cbk.create(dir .. "/hf/model.safetensors", { root = root, overwrite = true }):commit()
    end
    return "zoo/hf_to_cs-2.5.mdl"
  end

  it("compares a Hugging Face folder with a Model Zoo checkpoint, both ways", function()
    for _, name in ipairs { "llama", "gpt2", "bert", "t5" } do
      local dir = harness.temp_dir()
      local zoo = model(dir, name)
      local status, out, err = diff(dir, "hf", zoo, "--model", name)
      equal({ status, err }, { 0, "" }, name .. out)
      has(out, "comparing hf as cs-2.5\nthe same: ")
      equal((diff(dir, zoo, "hf", "--model", "auto")), 0, name)
      equal((diff(dir, "hf", zoo)), 1, name)
    end
  end)

  it("is advised where no name is in both", function()
    local dir = harness.temp_dir()
    local zoo = model(dir, "gpt2")
    has(select(2, diff(dir, "hf", zoo)), "no name is in both: A is in hf, B in cs-2.5; compare them with --model gpt2\n")
    local other = harness.temp_dir()
    model(other, "bert")
    has(select(2, diff(dir, "hf", other .. "/hf")), "no name is in both: A is of gpt2, B is of bert\n")
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    equal(cbk.kind(config), "dict")
    create(dir .. "/x.pt", root)
    lacks(select(2, diff(dir, "hf", "x.pt")), "no name is in both")
  end)

  it("names what differs as the other side has it", function()
    local dir = harness.temp_dir()
    local zoo = model(dir, "gpt2", function(root)
      root["transformer.h.0.mlp.c_fc.weight"] = root["transformer.h.0.mlp.c_fc.weight"] * 1.5
      root["transformer.h.0.ln_1.bias"] = root["transformer.h.0.ln_1.bias"] + 1
    end)
    local result, status = json_of(dir, "hf", zoo, "--model", "gpt2")
    equal({ status, result.through, #result.only_a, #result.only_b }, { 1, "hf as cs-2.5", 0, 0 })
    local keys = {}
    for i, one in ipairs(result.different) do keys[i] = one.key end
    table.sort(keys)
    equal(keys, { "model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight", "model.transformer_decoder.layers.0.norm1.bias" })
  end)

  it("lists tensors that are not of the model, and compares the others", function()
    local dir = harness.temp_dir()
    local zoo = model(dir, "llama", function(root) root.junk = cbk.full({ 3 }, 1) end)
    for _, sides in ipairs { { "hf", zoo, "only_a" }, { zoo, "hf", "only_b" } } do
      local result, status = json_of(dir, sides[1], sides[2], "--model", "llama")
      equal({ status, #result.different, #result.only_a + #result.only_b, result[sides[3]][1] },
        { 1, 0, 1, "junk" })
    end
  end)

  it("names tensors that the conversion leaves out", function()
    local dir = harness.temp_dir()
    local key = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    local like = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    local zoo = model(dir, "t5", function(root) root[key] = root[like] end)
    local status, _, err = diff(dir, "hf", zoo, "--model", "t5")
    equal({ status, err }, { 0, "warning: 1 key is left out: " .. key .. " (not used by T5)\n" })
  end)

  it("looks into a dict around the model of the other format", function()
    local dir = harness.temp_dir()
    local zoo = model(dir, "llama")
    local root = cbk.open(dir .. "/hf").root
    cbk.create(dir .. "/train.pt", { root = cbk.dict { { "model", root }, { "step", 3 } } }):commit()
    equal({ diff(dir, zoo, "train.pt", "--model", "llama") }, { 0, "comparing " .. zoo .. " as hf\nthe same: 12 values\n", "" })
  end)

  it("says that a state of an optimizer is a tensor on one side alone", function()
    local dir = harness.temp_dir()
    for name, momentum in pairs { ["a.pt"] = cbk.null, ["b.pt"] = cbk.tensor { 1, 2 } } do
      local states = cbk.dict { { 0, cbk.dict { { "momentum_buffer", momentum }, { "step", cbk.tensor(1) } } } }
      local groups = cbk.list { cbk.dict { { "lr", 0.1 }, { "params", cbk.list { 0 } } } }
      cbk.create(dir .. "/" .. name, { root = cbk.dict { { "model", cbk.dict { { "w", cbk.tensor { 1, 2 } } } },
        { "optimizer", cbk.dict { { "state", states }, { "param_groups", groups } } } } }):commit()
    end
    has(select(2, diff(dir, "a.pt", "b.pt")), "momentum_buffer  w        null in A, a tensor in B\n")
    has(select(2, diff(dir, "b.pt", "a.pt")), "momentum_buffer  w        a tensor in A, null in B\n")
  end)

  it("shows the values where their kinds differ", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { "lr", cbk.null }, { "step", 2 }, { "tag", 2 } } }):commit()
    cbk.create(dir .. "/b.pt", { root = cbk.dict { { "lr", 0.5 }, { "step", cbk.float(2) }, { "tag", "2" } } }):commit()
    has(select(2, diff(dir, "a.pt", "b.pt")), "lr    null     0.5\n  step  2 (int)  2 (float)\n  tag   2        \"2\"\n")
  end)

  it("compares the models inside two checkpoints of one format, where a trainer has put one into a dict", function()
    local dir = harness.temp_dir()
    model(dir, "llama")
    local inner = cbk.open(dir .. "/hf").root
    for name, factor in pairs { ["same.pt"] = 1, ["other.pt"] = 2 } do
      local root = cbk.dict()
      for key, tensor in cbk.items(inner) do root[key] = tensor * factor end
      cbk.create(dir .. "/" .. name, { root = cbk.dict { { "model", root }, { "step", 3 } } }):commit()
    end
    local status, out = diff(dir, "same.pt", "hf", "--model", "llama")
    equal({ status, (out:match "^[^\n]*") }, { 0, "comparing the models inside" })
    status, out = diff(dir, "other.pt", "hf")
    equal(status, 1)
    has(out, "no name is in both: the names in A begin with 'model.'; compare the models inside with --model llama\n")
    local result
    result, status = json_of(dir, "hf", "other.pt", "--model", "llama")
    equal({ status, #result.only_a, #result.only_b, result.same, result.through }, { 1, 0, 0, 0, "the models inside" })
  end)

  it("says what it needs", function()
    local dir = harness.temp_dir()
    local zoo = model(dir, "llama")
    local cases = {
      { "use --model llama", "hf", zoo, "--model", "gpt2" }, { "compare them without --model", "hf", "hf", "--model", "llama" },
      { "--config needs --model NAME", "hf", zoo, "--config", "hf/config.json" },
    }
    for _, case in ipairs(cases) do
      local status, _, err = diff(dir, unpack(case, 2))
      equal(status, 2)
      has(err, case[1])
    end
  end)
end)
