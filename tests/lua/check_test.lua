-- `cbk check`: what it finds, what it leaves alone, and its exit status.

local cbk = require "cbk"
local classes = require "cbk.classes"
local harness = require "harness"
local tiny = require "tiny"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local NAN = 0 / 0

local has, lacks = harness.has, harness.lacks

local function create(path, root, options)
  options = options or {}
  options.root = root
  cbk.create(path, options):commit()
end

local function random(shape, seed, options)
  return cbk.randn(shape, { seed = seed, std = 0.02, dtype = options and options.dtype })
end

---Runs `cbk check … --json`: exit status, the findings as { "rule key" or "rule" }, the result.
local function findings(dir, ...)
  local status, out, err = run(dir, "check", "--json", ...)
  local fine, result = pcall(cbk.config.parse, out, "json")
  if not fine then error(out .. err, 2) end
  result = cbk.totable(result)
  local names = {}
  for i, one in ipairs(result.findings) do names[i] = one.rule .. (one.key and " " .. one.key or "") end
  return status, names, result, err
end

---The exit status and the names of the findings alone.
local function brief(...)
  local status, names = findings(...)
  return status, names
end

---A model of six layers, as no class has it.
local function layers_model(change)
  local root, seed = cbk.dict(), 0
  for layer = 0, 5 do
    for _, name in ipairs { "attn.q.weight", "attn.k.weight", "mlp.up.weight" } do
      seed = seed + 1
      root[("layers.%d.%s"):format(layer, name)] = random({ 16, 8 }, seed)
    end
    root[("layers.%d.norm.weight"):format(layer)] = cbk.full({ 8 }, 1)
    root[("layers.%d.norm.bias"):format(layer)] = cbk.full({ 8 }, 0)
    root[("layers.%d.rotary.inv_freq"):format(layer)] = random({ 4 }, 99)
  end
  if change then change(root) end
  return root
end

---A tiny LLaMA with its config.
local function llama(dir, change, change_config)
  local config, root = tiny.model(tiny.newest_ways().llama)
  if change then change(root) end
  if change_config then change_config(config) end
  cbk.config.save(config, dir .. "/config.json")
  create(dir .. "/model.safetensors", root)
  return config, root
end

---Changes a byte of a file.
local function damage(path, offset)
  local file = assert(io.open(path, "r+b"))
  file:seek("set", offset)
  local byte = file:read(1):byte()
  file:seek("set", offset)
  file:write(string.char((byte + 1) % 256))
  file:close()
end

describe("cbk check of values", function()
  it("is clean where norms are 1 and biases 0", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", layers_model())
    local status, out, err = run(dir, "check", "m.pt")
    equal({ status, err }, { 0, "" })
    equal(out, "clean: 36 tensors in 1 checkpoint, 9.5 KiB\n")
  end)

  it("names the row of the first NaN and of the first infinity", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", cbk.dict {
      { "w", cbk.cat({ random({ 17, 3 }, 1), cbk.tensor { { 1, NAN, NAN } }, random({ 2, 3 }, 2) }, 0) },
      { "v", cbk.tensor({ 1, 2, 1 / 0 }, { dtype = "bfloat16" }) }, { "x", cbk.tensor(NAN, { dtype = "float64" }) },
      { "attention_mask", cbk.tensor { -1 / 0, 0 } },
    })
    local status, out = run(dir, "check", "m.pt")
    equal(status, 1)
    has(out, "error    m.pt: w: 2 of 60 elements are NaN, the first in row 17, at [17, 1]; try: go back to an earlier checkpoint")
    has(out, "error    m.pt: v: 1 of 3 elements is infinite, the first at [2]; try: ")
    has(out, "error    m.pt: x: 1 of 1 element is NaN; try: ")
    has(out, "note     m.pt: attention_mask: 1 of 2 elements is infinite")
    has(out, "3 errors, 1 note: 4 tensors in 1 checkpoint, ")
  end)

  it("reports constants, but not what is usual", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", cbk.dict {
      { "zero.weight", cbk.full({ 4, 4 }, 0) }, { "norm.weight", cbk.full({ 4 }, 1) }, { "scale", cbk.full({ 4 }, 3) },
      { "a.bias", cbk.full({ 4 }, 0) }, { "causal_mask", cbk.full({ 4, 4 }, 1) }, { "ids", cbk.full({ 4 }, 2, { dtype = "int64" }) },
      { "optimizer", cbk.dict { { "state", cbk.dict { { "exp_avg", cbk.full({ 4, 4 }, 0) } } } } },
      { "one", cbk.full({ 1 }, 0) }, { "nothing", cbk.full({ 0, 4 }, 0) },
    })
    local status, names, result = findings(dir, "m.pt")
    equal({ status, names }, { 1, { "constant zero.weight", "constant scale" } })
    equal({ result.errors, result.warnings, result.notes }, { 0, 1, 1 })
    equal(result.findings[1].text, "all 16 elements are 0")
    equal(result.findings[2].severity, "note")
  end)

  it("takes no zeros of an optimizer's state for weights, also as TensorFlow names them", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for _, key in ipairs { "layer/kernel/Adam", "layer/kernel/Adam_1", "layer/kernel/adam_m", "x/Momentum", "optimizer.0.exp_avg" } do
      root[key] = cbk.full({ 8, 8 }, 0)
    end
    create(dir .. "/m.pt", root)
    equal({ brief(dir, "m.pt") }, { 0, {} })
    root["layer/kernel"] = cbk.full({ 8, 8 }, 0)
    create(dir .. "/n.pt", root)
    equal({ brief(dir, "n.pt") }, { 1, { "constant layer/kernel" } })
  end)

  it("reports what a dtype cannot hold", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", cbk.dict { { "w", cbk.tensor { 1, 70000, -80000, 1e-9 } },
      { "ids", cbk.tensor({ 2 ^ 40, 1 }, { dtype = "int64" }) } })
    equal({ brief(dir, "m.pt") }, { 0, {} })
    local status, names, result = findings(dir, "m.pt", "--for", "float16", "--for", "bfloat16")
    equal({ status, names }, { 1, { "overflow w", "underflow w" } })
    equal(result.findings[1].text, "2 of 4 elements are too large for float16, which ends at 65,504; the largest is 80000")
    equal(select(2, findings(dir, "m.pt", "--for", "float8")), { "overflow w", "underflow w" })
    create(dir .. "/small.pt", cbk.dict { { "w", random({ 64, 64 }, 1) * 1e-9 } }) -- nothing of it would be left
    status, names, result = findings(dir, "small.pt", "--for", "float16")
    equal({ status, names, result.findings[1].severity }, { 1, { "underflow w" }, "warning" })
    equal((run(dir, "check", "m.pt", "--for", "int8")), 2)
    equal((run(dir, "check", "m.pt", "--for", "float17")), 2)
  end)

  it("reads a tied tensor once, and knows the same content at two keys", function()
    local dir = harness.temp_dir()
    local w = random({ 16, 16 }, 1)
    create(dir .. "/m.pt", cbk.dict { { "a", w }, { "b", w }, { "c", random({ 16, 16 }, 1) } })
    local status, names, result = findings(dir, "m.pt")
    equal({ status, names }, { 0, { "duplicate c" } })
    equal(result.findings[1].severity, "note")
    has(result.findings[1].text, "has the same content as a, but is not tied to it")
  end)
end)

describe("cbk check of layers", function()
  it("finds layers that repeat another one, are missing or are incomplete", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", layers_model(function(root)
      for _, name in ipairs { "attn.q.weight", "attn.k.weight", "mlp.up.weight" } do
        root["layers.1." .. name] = random({ 16, 8 }, ({ ["attn.q.weight"] = 1, ["attn.k.weight"] = 2, ["mlp.up.weight"] = 3 })[name])
      end
      root["layers.2.mlp.up.weight"] = nil
      for _, key in ipairs(cbk.keys(root)) do
        if key:find "^layers%.4%." then root[key] = nil end
      end
    end))
    local status, names, result = findings(dir, "m.pt")
    equal({ status, names }, { 1, { "layer-gap layers", "layer-incomplete layers.2", "duplicate layers.1" } })
    equal(result.findings[1].text, "a layer is missing between 0 and 5: 4")
    equal(result.findings[2].text, "a tensor is missing that the other layers have: mlp.up.weight")
    equal(result.findings[3].text, "the layer has the same weights as layers.0: all 3 matrices are equal")
  end)

  ---What is found in `layers` blocks of three tensors, where `shape` may give another one to a tensor of a layer.
  local function odd_shapes(layers, shape, prefix, dtype)
    local dir, root = harness.temp_dir(), cbk.dict()
    for layer = 0, layers - 1 do
      for i, part in ipairs { { "up.weight", { 32, 64 } }, { "up.bias", { 32 } }, { "down.weight", { 64, 32 } } } do
        local key, own = ("%s.%d.%s"):format(prefix or "layers", layer, part[1]), shape(layer, part[1])
        local tensor = random(own or part[2], 10 * layer + i)
        root[key] = dtype and own and cbk.full(own, i, { dtype = dtype }) or tensor
      end
    end
    create(dir .. "/m.pt", root)
    local _, names, result = findings(dir, "m.pt", "--only", "layer-shape")
    return names, result.findings[1]
  end

  local function at(layer, name, shape)
    return function(own_layer, own_name) return own_layer == layer and own_name == name and shape or nil end
  end

  it("finds the one weight of another shape", function()
    local names, first = odd_shapes(8, at(4, "up.weight", { 32, 65 }))
    equal(names, { "layer-shape layers.4.up.weight" })
    equal({ first.text, first.severity }, { "it has the shape [32, 65], and the same weight of the 7 other layers [32, 64]", "warning" })
    equal((odd_shapes(8, at(1, "up.bias", { 64 }))), { "layer-shape layers.1.up.bias" })
    equal((odd_shapes(8, at(4, "down.weight", { 64, 2, 16 }), "model.layers.3.experts")),
      { "layer-shape model.layers.3.experts.4.down.weight" })
  end)

  it("leaves shapes that a model may have", function()
    local function none(...) equal((odd_shapes(...)), {}) end
    none(5, at(2, "up.weight", { 32, 65 })) -- too few to say what is usual
    none(8, at(0, "up.weight", { 32, 3 })) -- the input
    none(8, at(7, "down.weight", { 10, 32 })) -- the output
    none(8, function(layer, name) return layer % 4 == 3 and name == "up.weight" and { 32, 128 } or nil end) -- hybrid
    none(8, function(layer, name) return layer > 0 and name == "up.weight" and { 32, 64 - 4 * layer } or nil end) -- pruned
    none(8, function(layer, name) return layer == 4 and ({ ["up.weight"] = { 16, 64 }, ["up.bias"] = { 16 } })[name] or nil end)
    none(8, function(layer, name) -- a bottleneck
      return layer == 4 and name == "up.bias" and { 16 } or layer == 5 and name == "up.weight" and { 32, 16 } or nil
    end)
    none(8, at(4, "up.weight", { 32, 16 }), nil, "int8") -- stored otherwise
    none(8, at(4, "up.weight", { 32, 65 }), "layers.0", "float16")
  end)

  it("leaves a layer of another kind, which also has other tensors", function()
    local dir, root = harness.temp_dir(), layers_model()
    for layer = 6, 9 do
      for _, name in ipairs { "attn.q.weight", "attn.k.weight", "mlp.up.weight" } do
        root[("layers.%d.%s"):format(layer, name)] = random({ 16, 8 }, 1000 + 10 * layer + #name)
      end
    end
    root["layers.4.mlp.up.weight"], root["layers.4.mixer.A_log"] = random({ 32, 8 }, 2000), random({ 16 }, 2001)
    create(dir .. "/m.pt", root)
    local _, names = findings(dir, "m.pt", "--only", "layer-shape")
    equal(names, {})
  end)

  it("notes copies in another stack, such as averages of weights", function()
    local dir = harness.temp_dir()
    local function copies(first, second) return cbk.dict { { first, random({ 16, 16 }, 1) }, { second, random({ 16, 16 }, 1) } } end
    create(dir .. "/m.pt", copies("a.layers.0.w.weight", "ema.layers.0.w.weight"))
    local status, names = brief(dir, "m.pt")
    equal({ status, names }, { 0, { "duplicate ema.layers.0.w.weight" } })
    create(dir .. "/n.pt", copies("layers.0.q.weight", "layers.0.k.weight"))
    equal({ brief(dir, "n.pt") }, { 1, { "duplicate layers.0.k.weight" } })
  end)

  it("leaves modules without tensors and layers of two kinds alone", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for seed, number in ipairs { 0, 2, 5, 7 } do root[("features.%d.weight"):format(number)] = random({ 4, 4 }, 1000 + seed) end
    for layer = 0, 7 do
      local names = layer % 2 == 0 and { "attn.q.weight", "mlp.up.weight" } or { "ssm.a.weight", "mlp.up.weight", "mlp.gate.weight" }
      for seed, name in ipairs(names) do root[("layers.%d.%s"):format(layer, name)] = random({ 4, 4 }, 100 * layer + seed) end
    end
    create(dir .. "/m.pt", root)
    equal({ brief(dir, "m.pt") }, { 0, {} })
  end)
end)

describe("cbk check against the config", function()
  it("is clean for a model and its config", function()
    local dir = harness.temp_dir()
    llama(dir)
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names }, { 0, {} })
    equal({ result.files[1].model, result.files[1].config, result.files[1].format }, { "llama", "./config.json", "safetensors" })
  end)

  it("names missing layers, missing weights, other shapes and unknown tensors", function()
    local dir = harness.temp_dir()
    local config, root = llama(dir)
    local layers, size = config.num_hidden_layers, config.hidden_size
    config.num_hidden_layers = layers + 1
    cbk.config.save(config, dir .. "/config.json", { overwrite = true })
    root["model.layers.0.mlp.up_proj.weight"] = nil
    root["model.norm.weight"] = cbk.full({ size + 1 }, 1)
    root["model.extra.weight"] = random({ 4, 4 }, 1)
    create(dir .. "/model.safetensors", root, { overwrite = true })
    local status, names, result = findings(dir, "model.safetensors")
    equal(status, 1)
    equal(names, { ("missing-layer model.layers.%d"):format(layers), "missing-weight model.layers.0.mlp.up_proj.weight",
      "wrong-shape model.norm.weight", "unknown-weight model.extra.weight" })
    equal(result.findings[1].text, ("the layer is missing: the config says num_hidden_layers=%d"):format(layers + 1))
    has(result.findings[2].text, "the weight is missing: LlamaForCausalLM with this config has it, [")
    has(result.findings[3].text, ("expected [%d] (hidden_size=%d), found [%d]"):format(size, size, size + 1))
    equal(select(2, findings(dir, "model.safetensors", "--no-values")), names)
  end)

  it("misses nothing in one shard that is in the others, and finds wrong shapes there", function()
    local dir = harness.temp_dir()
    local config, root = llama(dir)
    root["model.embed_tokens.weight"], root["model.norm.weight"] = nil, cbk.full({ config.hidden_size + 1 }, 1)
    create(dir .. "/model-00002-of-00002.safetensors", root)
    cbk.fs.remove(dir .. "/model.safetensors")
    local shard = "model-00002-of-00002.safetensors"
    equal({ brief(dir, shard) }, { 1, { "wrong-shape model.norm.weight", "part" } })

    cbk.fs.remove(dir .. "/config.json")
    local halves = layers_model(function(tree)
      for key in cbk.items(tree) do
        if key:find "^layers%.2%." or key == "layers.4.mlp.up.weight" then tree[key] = nil end
      end
    end)
    create(dir .. "/whole.safetensors", halves)
    equal({ brief(dir, "whole.safetensors") }, { 1, { "layer-gap layers", "layer-incomplete layers.4" } })
    create(dir .. "/" .. shard, halves, { overwrite = true })
    equal({ brief(dir, shard) }, { 1, { "part" } })

    create(dir .. "/" .. shard, cbk.dict { { "m.0.q.lora_A.weight", random({ 2, 2 }, 1) } }, { overwrite = true })
    equal({ brief(dir, shard) }, { 1, { "part" } })
  end)

  it("warns of H5 files without a dict 'model'", function()
    local dir = harness.temp_dir()
    local out = cbk.create(dir .. "/flat.mdl", { h5_version = "flat" })
    out["model.lm_head.weight"], out["model.norm.weight"] = random({ 2, 2 }, 1), random({ 2 }, 2)
    out:commit()
    equal((run(dir, "copy", "flat.mdl", "copy.mdl")), 0)
    for _, name in ipairs { "flat.mdl", "copy.mdl" } do
      local status, names = findings(dir, name)
      equal({ status, names }, { 1, { "flat-keys model.lm_head.weight" } }, name)
    end
    local tree = cbk.create(dir .. "/tree.mdl")
    for key, tensor in cbk.open(dir .. "/flat.mdl"):tensors() do tree[key] = tensor end
    tree:commit()
    equal(select(2, findings(dir, "tree.mdl")), {})
  end)

  it("has other words for a weight that is null than for one that is missing", function()
    local dir = harness.temp_dir()
    local _, root = llama(dir)
    root["model.norm.weight"], root["model.embed_tokens.weight"] = cbk.null, nil
    create(dir .. "/model.bin", root)
    local _, names, result = findings(dir, "model.bin")
    equal(names, { "missing-weight model.embed_tokens.weight", "missing-weight model.norm.weight" })
    has(result.findings[1].text, "the weight is missing: LlamaForCausalLM")
    has(result.findings[2].text, "the weight is null or another value, and no tensor: LlamaForCausalLM")
  end)

  it("finds a layer beyond those of the config once", function()
    local dir = harness.temp_dir()
    local config, count = tiny.model(tiny.newest_ways().llama), 0
    local layers = config.num_hidden_layers
    llama(dir, function(root)
      for _, key in ipairs(cbk.keys(root)) do
        local name = key:match "^model%.layers%.0%.(.*)"
        if name then root[("model.layers.%d.%s"):format(layers, name)], count = root[key] * 2, count + 1 end
      end
    end)
    local status, names, result = findings(dir, "model.safetensors", "--no-values")
    equal({ status, names }, { 1, { ("unknown-weight model.layers.%d"):format(layers) } })
    equal(result.findings[1].text, ("the config says num_hidden_layers=%d, but this layer has %d tensors"):format(layers, count))
  end)

  it("uses the config that a checkpoint of the Model Zoo keeps", function()
    local dir = harness.temp_dir()
    llama(dir)
    equal((run(dir, "convert", "model.safetensors", "--to", "cs-2.4", "-o", "zoo", "-q")), 0)
    local name
    for _, file in ipairs(cbk.fs.list(dir .. "/zoo")) do
      if file:find "%.yaml$" then cbk.fs.remove(dir .. "/zoo/" .. file) else name = file end
    end
    local status, names, result = findings(dir .. "/zoo", name)
    equal({ status, names, result.files[1].model, result.files[1].config }, { 0, {}, "llama" })
    local root = cbk.deep_copy(cbk.open(dir .. "/zoo/" .. name).root)
    root.model["transformer_decoder.layers.0.norm1.weight"] = nil
    create(dir .. "/zoo/less.mdl", root)
    status, names = findings(dir .. "/zoo", "less.mdl")
    equal({ status, names }, { 1, { "missing-weight model.transformer_decoder.layers.0.norm1.weight" } })
  end)

  it("misses the head that a config names, and takes a model without one for that", function()
    local dir = harness.temp_dir()
    llama(dir, function(root) root["lm_head.weight"] = nil end, function(config)
      config.tie_word_embeddings, config.architectures = false, cbk.list { "LlamaForCausalLM" }
    end)
    equal({ brief(dir, "model.safetensors") }, { 1, { "missing-weight lm_head.weight" } })
    local config = cbk.config.load(dir .. "/config.json")
    config.architectures = cbk.list { "LlamaModel" }
    cbk.config.save(config, dir .. "/config.json", { overwrite = true })
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names, result.files[1].model }, { 0, { "wrapped" }, "llama-headless" }) -- a class without a head has other names
    has(result.findings[1].text, "the names are those without 'model.'")
  end)

  it("finds a config of another width without its heads, as convert does", function()
    local dir = harness.temp_dir()
    llama(dir, nil, function(config) config.num_attention_heads = nil end)
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names }, { 1, { "config" } })
    has(result.findings[1].text, "the config has no 'num_attention_heads'")
  end)

  it("gives one advice on a config that cannot be", function()
    local dir = harness.temp_dir()
    llama(dir, nil, function(config) config.num_attention_heads = 3 end)
    local _, names, result = findings(dir, "model.safetensors", "--only", "config")
    equal(names, { "config" })
    local first = result.findings[1]
    is_true(first.text:find("num_attention_heads=3: only a divisor of hidden_size %(%d+%) is supported$"), first.text)
    equal(first.advice, "Correct one of them")
  end)

  it("warns of a config that cannot be read", function()
    local dir = harness.temp_dir()
    llama(dir, nil, function(config) config.hidden_size = "x" end)
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names[1] }, { 1, "config" })
    has(result.findings[1].text, "hidden_size='x'")
  end)

  it("names tied weights that differ", function()
    local dir = harness.temp_dir()
    llama(dir, function(root)
      root["lm_head.weight"] = root["model.embed_tokens.weight"] * 2
    end, function(config) config.tie_word_embeddings = true end)
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names }, { 1, { "tied-weights-differ lm_head.weight" } })
    equal(result.findings[1].text, "it differs from model.embed_tokens.weight, but the config ties them")
  end)

  it("takes copies of tied weights as they are, and notes a config of no known model", function()
    local dir = harness.temp_dir()
    llama(dir, function(root)
      root["lm_head.weight"] = cbk.cat({ root["model.embed_tokens.weight"] }, 0) * 1
    end, function(config) config.tie_word_embeddings = true end)
    equal({ brief(dir, "model.safetensors") }, { 0, {} })
    cbk.fs.write(dir .. "/config.json", '{"model_type": "unheard_of"}', { overwrite = true })
    local status, names, result = findings(dir, "model.safetensors")
    equal({ status, names[1] }, { 0, "config" })
    has(result.findings[1].text, "unheard_of")
    cbk.fs.write(dir .. "/config.json", "{", { overwrite = true })
    status, names = findings(dir, "model.safetensors")
    equal({ status, names[1] }, { 1, "config" })
  end)
end)

describe("cbk check of every family", function()
  it("finds nothing in a model with its config, and each tensor that is then missing", function()
    for name, way in pairs(tiny.newest_ways()) do
      local fine, config, root = pcall(tiny.model, way)
      local is_whole = fine and config.model_type and not name:find "^mpt" -- what the tiny MPT has beside its config is reported
      if is_whole then
        local dir = harness.temp_dir()
        cbk.config.save(config, dir .. "/config.json")
        create(dir .. "/pytorch_model.bin", root)
        equal({ brief(dir, ".") }, { 0, {} }, name)
        local has_class, known = pcall(classes.tensors, config, name, "hf")
        for _, one in ipairs(has_class and #known:tied_names() == 0 and known or {}) do
          local may_lack = one.tied_to or one.buffer or one.optional or one.part or one.key:find "bias$"
          if not may_lack and root[one.key] ~= nil then
            root[one.key] = nil
            cbk.create(dir .. "/pytorch_model.bin", { root = root, overwrite = true }):commit()
            equal(select(2, brief(dir, ".", "--no-values")), { "missing-weight " .. one.key }, name)
            break
          end
        end
      end
    end
  end)
end)

describe("cbk check of files", function()
  local function sharded(dir)
    create(dir .. "/s", layers_model(), { format = "safetensors", shard_size = "4KB" })
    local index = dir .. "/s/model.safetensors.index.json"
    return index, cbk.config.load(index)
  end

  it("compares an index with its shards", function()
    local dir = harness.temp_dir()
    local index_path, index = sharded(dir)
    equal({ brief(dir, "s") }, { 0, {} })
    equal({ brief(dir, "s/model.safetensors.index.json") }, { 0, {} })
    local first = index.weight_map["layers.0.attn.q.weight"]
    index.metadata.total_size = 5
    cbk.config.save(index, index_path, { overwrite = true })
    equal({ brief(dir, "s") }, { 1, { "total-size" } })
    index.weight_map["layers.0.attn.q.weight"], index.weight_map.more = nil, first
    cbk.config.save(index, index_path, { overwrite = true })
    local status, names, result = findings(dir, "s")
    equal({ status, names }, { 1, { "shard-key-missing more", "unlisted-key layers.0.attn.q.weight" } })
    equal(result.findings[1].file, "s/" .. first)
    index.weight_map.more = "../s/" .. first
    cbk.config.save(index, index_path, { overwrite = true })
    equal(select(2, findings(dir, "s"))[1], "shard-missing more")
    index.weight_map = cbk.dict()
    cbk.config.save(index, index_path, { overwrite = true })
    equal({ brief(dir, "s") }, { 1, { "damaged" } }) -- and its shards are no leftovers
    local code, _, stderr = run(dir, "copy", "s", "new.safetensors")
    equal({ code, cbk.fs.exists(dir .. "/new.safetensors") }, { 1, false })
    harness.has(stderr, "'weight_map' is empty")
  end)

  it("names LoRA matrices whose partner is missing", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for i, key in ipairs { "0.q.lora_A.weight", "0.q.lora_B.weight", "1.q.lora_A.weight", "1.e.lora_embedding_B" } do
      root["m." .. key] = cbk.randn({ 2, 2 }, { seed = i, dtype = "float32" })
    end
    create(dir .. "/adapter.safetensors", root)
    equal({ brief(dir, "adapter.safetensors") },
      { 1, { "missing-weight m.1.e.lora_embedding_A", "missing-weight m.1.q.lora_B.weight" } })
  end)

  it("names missing shards, shards without index, and what was left over", function()
    local dir = harness.temp_dir()
    local index_path, index = sharded(dir)
    local last = index.weight_map["layers.5.mlp.up.weight"]
    cbk.fs.write(dir .. "/s/model-00001-of-00009.safetensors", cbk.fs.read(dir .. "/s/" .. last))
    cbk.fs.write(dir .. "/s/model.safetensors.0123abcd.tmp", "")
    local status, names, result = findings(dir, "s")
    equal({ status, names }, { 1, { "leftover-file", "leftover-file" } })
    equal(result.findings[1].file, "s/model-00001-of-00009.safetensors")
    cbk.fs.remove(dir .. "/s/model-00001-of-00009.safetensors")
    cbk.fs.remove(dir .. "/s/model.safetensors.0123abcd.tmp")
    cbk.fs.remove(dir .. "/s/" .. last)
    status, names, result = findings(dir, "s")
    equal({ status, names[1] }, { 1, "shard-missing" })
    equal(result.findings[1].file, "s/" .. last)
    cbk.fs.remove(index_path)
    status, names = findings(dir, "s")
    equal({ status, names[1] }, { 1, "index-missing" })
  end)

  it("checks each checkpoint of a folder, and each part in a folder of its own", function()
    local dir = harness.temp_dir()
    sharded(dir)
    create(dir .. "/s/b", layers_model(), { format = "torch", shard_size = "4KB" })
    for _, file in ipairs(cbk.fs.list(dir .. "/s/b")) do os.rename(dir .. "/s/b/" .. file, dir .. "/s/" .. file) end
    create(dir .. "/s/bad.pt", cbk.dict { { "w", cbk.tensor { NAN } } })
    local status, names, result = findings(dir, "s")
    equal({ status, names, #result.files }, { 1, { "nan w" }, 3 })
    equal(result.findings[1].file, "s/bad.pt")
    create(dir .. "/m/encoder/model.safetensors", layers_model())
    create(dir .. "/m/decoder/model.safetensors", cbk.dict { { "v", cbk.tensor { NAN } } })
    status, names, result = findings(dir, "m")
    equal({ status, names, #result.files }, { 1, { "nan v" }, 2 })
    cbk.fs.mkdir(dir .. "/empty/inner")
    equal((run(dir, "check", "empty")), 2)
  end)

  it("names leftovers beside a single file only where they are its own", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", layers_model())
    cbk.fs.write(dir .. "/m.pt.0123abcd.tmp", "")
    cbk.fs.write(dir .. "/other.tmp", "")
    local _, names, result = findings(dir, "m.pt")
    equal(names, { "leftover-file" })
    equal(result.findings[1].file, "./m.pt.0123abcd.tmp")
  end)

  it("finds damage by checksums, and goes on", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "a", random({ 2560, 2048 }, 1) }, { "b", cbk.tensor { 1, NAN } } }
    create(dir .. "/m.pt", root)
    create(dir .. "/m.ckpt", root, { format = "tensorflow" })
    damage(dir .. "/m.pt", cbk.open(dir .. "/m.pt").root.a:storage().position + 100)
    damage(dir .. "/m.ckpt.data-00000-of-00001", 100)
    for _, file in ipairs { "m.pt", "m.ckpt" } do
      local status, names, result = findings(dir, file)
      equal({ status, names }, { 1, { "damaged a", "nan b" } }, file)
      has(result.findings[1].text, "checksum")
    end
  end)

  it("names missing data of a TensorFlow checkpoint", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/tf/m.ckpt", { root = cbk.dict { { "a", random({ 64, 64 }, 1) }, { "b", random({ 64, 64 }, 2) } },
      format = "tensorflow", shard_size = "17KB" }):commit()
    cbk.fs.remove(dir .. "/tf/m.ckpt.data-00001-of-00002")
    local status, names, result = findings(dir, "tf")
    equal({ status, names, result.findings[1].file }, { 1, { "shard-missing" }, "tf/m.ckpt.index" })
  end)

  it("finds files that were cut short", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "a", random({ 64, 64 }, 1) } }
    for _, name in ipairs { "m.pt", "m.safetensors", "m.mdl", "m.npy" } do
      create(dir .. "/" .. name, root)
      local text = cbk.fs.read(dir .. "/" .. name)
      cbk.fs.write(dir .. "/" .. name, text:sub(1, #text - 1000), { overwrite = true })
      local status, names = findings(dir, name)
      equal({ status, names[1]:match "^%S+" }, { 1, "damaged" }, name)
    end
  end)

  it("calls damage what --salvage leaves out, and not missing", function()
    local dir = harness.temp_dir()
    llama(dir)
    local text = cbk.fs.read(dir .. "/model.safetensors")
    cbk.fs.write(dir .. "/model.safetensors", text:sub(1, math.floor(#text / 2)), { overwrite = true })
    local status, names = findings(dir, "model.safetensors", "--salvage")
    equal(status, 1)
    is_true(#names > 1)
    for _, name in ipairs(names) do has(name, "damaged ") end
  end)

  it("names all globals of a pickle that are not plain data", function()
    local dir = harness.temp_dir()
    local pickle = "\128\2cos\nsystem\n(X\2\0\0\0idtR0\128\2ccollections\nOrderedDict\n)R0\128\4\140\8builtins\148\140\4eval\148\147"
      .. "0h\0\140\4exec\148\1470cmy.module\nConfig\n)\129."
    local text = "\128\2\138\10\108\252\156\70\249\32\106\168\80\25." .. "\128\2M\233\3." .. "\128\2}." .. pickle .. "\128\2]."
    cbk.fs.write(dir .. "/m.pt", text)
    local status, names, result = findings(dir, "m.pt")
    equal({ status, #names }, { 1, 4 })
    local texts = {}
    for i, one in ipairs(result.findings) do texts[i] = one.text:match "^it asks for ([^,(]+)" end
    equal(texts, { "os.system", "builtins.eval", "builtins.exec", "the class my.module.Config " })
    for i = 1, 4 do equal(result.findings[i].rule, "unsafe-global") end
  end)

  it("ends with 2 where a file cannot be opened at all, and checks the others", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", cbk.dict { { "w", cbk.full({ 2, 2 }, 0) } })
    cbk.fs.write(dir .. "/note.txt", "no checkpoint")
    local status, out, err = run(dir, "check", "missing.pt", "m.pt", "note.txt")
    equal(status, 2)
    has(out, "warning  m.pt: w: all 4 elements are 0")
    has(err, "missing.pt")
    has(err, "note.txt")
    equal((run(dir, "check", "m.pt", "m.pt", "--config", "c.json")), 2)
    equal((run(dir, "check", "m.pt", "--json", "--sarif")), 2)
    equal((run(dir, "check")), 2)
  end)
end)

describe("cbk check for people and programs", function()
  it("folds like findings, and lists 20 of each kind", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for layer = 0, 29 do
      root[("layers.%d.a.weight"):format(layer)] = cbk.full({ 4, 4 }, 0)
      root[("layers.%d.b.weight"):format(layer)] = cbk.cat({ cbk.full({ layer + 1 }, NAN), cbk.full({ 40 - layer }, 1) }, 0)
    end
    create(dir .. "/m.pt", root)
    local out = select(2, run(dir, "check", "m.pt"))
    has(out, "warning  m.pt: layers.{0..29}.a.weight (30): all 16 elements are 0; try: ")
    has(out, "error    … and 10 more [nan] (--all lists them)")
    equal(select(2, select(2, run(dir, "check", "m.pt", "--all")):gsub("%[nan%]", "")), 30)
  end)

  it("prints SARIF", function()
    local dir = harness.temp_dir()
    create(dir .. "/a b.pt", cbk.dict { { "w", cbk.tensor { 1, NAN } } })
    local status, out = run(dir, "check", "--sarif", "a b.pt")
    equal(status, 1)
    local log = cbk.totable(cbk.config.parse(out, "json"))
    equal({ log.version, #log.runs }, { "2.1.0", 1 })
    local one = log.runs[1]
    equal({ one.tool.driver.name, one.invocations[1].executionSuccessful, #one.results }, { "cbk", true, 1 })
    local result = one.results[1]
    equal({ result.ruleId, result.level }, { "nan", "error" })
    equal(one.tool.driver.rules[result.ruleIndex + 1].id, "nan")
    equal(result.locations[1].physicalLocation.artifactLocation.uri, "a%20b.pt")
    equal(result.locations[1].logicalLocations[1].fullyQualifiedName, "w")
    has(result.message.text, "1 of 2 elements is NaN")
    status, out = run(dir, "check", "--sarif", "missing.pt")
    equal(status, 2)
    log = cbk.totable(cbk.config.parse(out, "json"))
    equal(log.runs[1].invocations[1].executionSuccessful, false)
    equal(#log.runs[1].results, 0)
  end)

  it("has room for more findings than Lua's stack", function()
    local found = require("cbk.check.findings").new()
    for i = 1, 20000 do found:add(i % 2 == 0 and "nan" or "constant", "m.pt", "w" .. i, "text") end
    local sorted, counts = found:sorted(), found:counts()
    equal({ #sorted, sorted[1].key, sorted[8000].key, found:left_out() }, { 8000, "w2", "w7999", 12000 })
    equal({ counts.error, counts.warning }, { 10000, 10000 })
    has(table.concat(found:lines(false), "\n"), "and 9,980 more [nan] (--all lists them)")
    has(table.concat(found:lines(true), "\n"), "and 6,000 more [nan]\n")
  end)

  it("shows no control characters of a file", function()
    local dir = harness.temp_dir()
    create(dir .. "/m.pt", cbk.dict { { "w\27[31m", cbk.tensor { NAN, 1 } } })
    for _, option in ipairs { "--all", "--json", "--sarif" } do
      lacks(select(2, run(dir, "check", "m.pt", option)), "\27")
    end
  end)
end)
