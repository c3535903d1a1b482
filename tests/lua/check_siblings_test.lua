-- `cbk check`: weights unlike those of the other layers, dead rows, rows that were never trained; and healthy models without findings.

local cbk = require "cbk"
local check = require "cbk.check"
local findings = require "cbk.check.findings"
local harness = require "harness"
local healthy = require "healthy_models"
local sarif = require "cbk.check.sarif"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local has, lacks = harness.has, harness.lacks

local OF_SIZES = { only = { "layer-outlier", "dead-rows", "untrained-rows", "constant" } }

---The findings of a tree that is written and checked.
local function check_root(dir, root, choice)
  local path, found = dir .. "/m.safetensors", findings.new(choice or OF_SIZES)
  cbk.create(path, { root = root, overwrite = true }):commit()
  local subject = check.open(path, { reading = {}, dtypes = {}, folders = {} }, found)
  check.values(subject, { reading = {}, dtypes = {} }, found, function() end)
  return found
end

local function texts(found)
  local out = {}
  for i, one in ipairs(found:sorted()) do out[i] = ("%s %s: %s"):format(one.rule.id, one.key, one.text) end
  return out
end

local function names(found)
  local out = {}
  for i, one in ipairs(found:sorted()) do out[i] = one.rule.id .. " " .. one.key end
  return out
end

local CASES = 60

describe("check of siblings: healthy models", function()
  for _, kind in ipairs(healthy.kinds) do
    it("has no findings in " .. kind, function()
      local dir = harness.temp_dir()
      for seed = 1, CASES do
        if harness.is_sampled(("%s %d"):format(kind, seed), 10) or seed == 1 then
          equal(texts(check_root(dir, (healthy.model(kind, seed)))), {}, ("%s of the seed %d"):format(kind, seed))
        end
      end
    end)
  end

  it("has no findings in models with few layers", function()
    local dir = harness.temp_dir()
    for layers = 1, 5 do
      for _, kind in ipairs { "llama", "gpt2", "fresh" } do equal(texts(check_root(dir, (healthy.model(kind, layers, layers)))), {}) end
    end
  end)
end)

local function scaled(factor)
  return function(tensor) return tensor:to "float32" * factor end
end

---Zeros in place of some rows.
local function without_rows(first, last)
  return function(tensor)
    local shape = tensor:shape()
    return cbk.cat({ tensor:slice(0, 0, first), cbk.full({ last - first + 1, shape[2] }, 0, { dtype = tensor.dtype }),
      tensor:slice(0, last + 1, shape[1]) }, 0)
  end
end

local function without_columns(first, last)
  return function(tensor) return without_rows(first, last)(tensor:transpose(0, 1)):transpose(0, 1) end
end

---One element, many times larger than all others: a bit of its exponent has changed.
local function with_large_element(tensor) return healthy.with_element(tensor:to "float32", 2 ^ 13) end

local function constant(number)
  return function(tensor) return cbk.full(tensor:shape(), number, { dtype = tensor.dtype }) end
end

---kind, rule, key with %d, change
local MUTATIONS = {
  { "llama", "layer-outlier", "model.layers.%d.self_attn.o_proj.weight", scaled(30) },
  { "llama", "layer-outlier", "model.layers.%d.self_attn.o_proj.weight", scaled(1 / 30) },
  { "llama", "layer-outlier", "model.layers.%d.mlp.gate_proj.weight", scaled(25) },
  { "llama", "layer-outlier", "model.layers.%d.self_attn.v_proj.weight", with_large_element },
  { "llama", "layer-outlier", "model.layers.%d.post_attention_layernorm.weight", scaled(60) },
  { "llama", "layer-outlier", "model.layers.%d.post_attention_layernorm.weight", scaled(-1) },
  { "llama", "dead-rows", "model.layers.%d.mlp.up_proj.weight", without_rows(3, 7) },
  { "llama", "dead-rows", "model.layers.%d.mlp.down_proj.weight", without_columns(0, 0) },
  { "llama", "constant", "model.layers.%d.post_attention_layernorm.weight", constant(1) },
  { "gpt2", "layer-outlier", "h.%d.attn.c_proj.weight", scaled(30) },
  { "gpt2", "constant", "h.%d.attn.c_attn.bias", constant(0) },
  { "gpt2", "layer-outlier", "h.%d.ln_2.bias", scaled(2000) },
  { "experts", "layer-outlier", "layers.%d.block_sparse_moe.experts.2.w1.weight", scaled(60) },
  { "experts", "dead-rows", "layers.%d.block_sparse_moe.experts.1.w2.weight", without_rows(31, 31) },
  { "t5", "layer-outlier", "decoder.block.%d.layer.0.SelfAttention.q.weight", scaled(30) },
  { "fresh", "layer-outlier", "encoder.layer.%d.output.dense.weight", scaled(20) },
  { "adapter", "layer-outlier", "base_model.model.model.layers.%d.self_attn.q_proj.lora_A.weight", scaled(200) },
}

describe("check of siblings: changed weights", function()
  for number, mutation in ipairs(MUTATIONS) do
    local kind, rule, pattern, change = unpack(mutation)
    it(("finds %s in %s (%d)"):format(rule, pattern, number), function()
      local dir = harness.temp_dir()
      for case = 1, 4 do
        local seed = case + 10 * number
        local root, layers = healthy.model(kind, seed, 10 + seed % 20)
        local key = pattern:format(2 + seed % (layers - 4)) -- neither of the first nor of the last
        root[key] = change(root[key])
        equal(names(check_root(dir, root)), { rule .. " " .. key }, ("seed %d, %d layers"):format(seed, layers))
      end
    end)
  end

  it("finds changes of the first and last layers if they are larger", function()
    local dir = harness.temp_dir()
    for _, layer in ipairs { 0, 1, 10, 11 } do
      local root = healthy.model("gpt2", 5, 12)
      local key = ("h.%d.mlp.c_fc.weight"):format(layer)
      root[key] = scaled(200)(root[key])
      equal(names(check_root(dir, root)), { "layer-outlier " .. key })
    end
  end)

  it("finds two of twelve layers, wherever they are", function()
    for _, pair in ipairs { { 3, 4 }, { 3, 8 }, { 4, 6 } } do
      local root, keys = healthy.model("gpt2", 5, 12), {}
      for i, layer in ipairs(pair) do
        keys[i] = ("h.%d.attn.c_proj.weight"):format(layer)
        root[keys[i]] = scaled(100)(root[keys[i]])
      end
      equal(names(check_root(harness.temp_dir(), root)), { "layer-outlier " .. keys[1], "layer-outlier " .. keys[2] })
    end
  end)

  it("finds two layers beside each other", function()
    local root = healthy.model("gpt2", 5, 24)
    for layer = 10, 11 do
      local key = ("h.%d.mlp.c_fc.weight"):format(layer)
      root[key] = scaled(50)(root[key])
    end
    equal(names(check_root(harness.temp_dir(), root)), { "layer-outlier h.10.mlp.c_fc.weight", "layer-outlier h.11.mlp.c_fc.weight" })
  end)

  it("takes half of the layers for another kind", function()
    local root = healthy.model("gpt2", 5, 12)
    for layer = 0, 10, 2 do
      local key = ("h.%d.mlp.c_fc.weight"):format(layer)
      root[key] = scaled(100)(root[key])
    end
    equal(names(check_root(harness.temp_dir(), root)), {})
  end)

  it("compares the one weight of another shape with the others, and not weights of many shapes", function()
    local root, many = cbk.dict(), cbk.dict()
    for layer = 0, 11 do
      local is_odd, rows = layer == 5, 16 * (1 + layer % 3)
      root[("layers.%d.w.weight"):format(layer)] = cbk.randn({ 16, is_odd and 17 or 16 }, { seed = layer, std = is_odd and 1 or 0.02 })
      many[("tables.%d.w.weight"):format(layer)] = cbk.randn({ rows, 16 }, { seed = layer, std = 1 / rows ^ 4 })
    end
    equal(names(check_root(harness.temp_dir(), root)), { "layer-outlier layers.5.w.weight" })
    equal(names(check_root(harness.temp_dir(), many)), {})
  end)

  it("finds them under the names of TensorFlow", function()
    local root = cbk.dict()
    for layer = 0, 11 do
      local std = layer == 5 and 1 or 0.02
      root[("bert/encoder/layer_%d/output/dense/kernel"):format(layer)] = cbk.randn({ 16, 16 }, { seed = layer, std = std })
    end
    equal(names(check_root(harness.temp_dir(), root)), { "layer-outlier bert/encoder/layer_5/output/dense/kernel" })
  end)
end)

describe("check of layers without a class", function()
  local CHOICE = { only = { "layer-gap", "layer-incomplete", "layer-shape", "layer-outlier" } }

  ---The findings of 12 layers, of which the one with the number 5 is changed.
  local function found_in(format, what)
    local root, separator = cbk.dict(), format:find "/" and "/" or "."
    for layer = 0, 11 do
      local is_own = layer == 5
      local function put(parts, shape, std)
        root[format:format(layer) .. parts:gsub("%.", separator)] = cbk.randn(shape, { seed = layer, std = std })
      end
      if not (is_own and what == "gap") then
        put(".attn.q.weight", { 32, is_own and what == "odd" and 48 or 32 }, is_own and what == "scale" and 0.6 or 0.02)
        if not (is_own and what == "lack") then put(".mlp.up.weight", { 64, 32 }, 0.02) end
      end
    end
    return names(check_root(harness.temp_dir(), root, CHOICE))
  end

  it("knows layers under many names", function()
    for format, stack in pairs { ["core.%d"] = "core", ["core.block_%02d"] = "core.block", ["model/block_%03d"] = "model/block",
      ["model/h%d"] = "model/h", ["a/%d"] = "a" } do
      local layer, separator = format:format(5), format:find "/" and "/" or "."
      local query = layer .. (".attn.q.weight"):gsub("%.", separator)
      equal(found_in(format), {})
      equal(found_in(format, "gap"), { "layer-gap " .. stack })
      equal(found_in(format, "lack"), { "layer-incomplete " .. layer })
      equal(found_in(format, "odd"), { "layer-shape " .. query })
      equal(found_in(format, "scale"), { "layer-outlier " .. query })
    end
  end)
end)

describe("check of siblings: biases", function()
  ---Biases of one size, but for that of layer 5, and weights that make about 0.6 of inputs of the size 1.
  local function with_bias(usual, unusual, change)
    local root = cbk.dict()
    for layer = 0, 9 do
      root[("blocks.%d.up.weight"):format(layer)] = cbk.randn({ 64, 32 }, { seed = layer, std = 0.1 })
      root[("blocks.%d.up.bias"):format(layer)] = cbk.randn({ 64 }, { seed = 100 + layer, std = layer == 5 and unusual or usual })
    end
    if change then change(root) end
    return texts(check_root(harness.temp_dir(), root))
  end

  it("finds one that is much larger than all others, and than what its weight makes", function()
    local found = with_bias(0.1, 20)
    equal(#found, 1)
    is_true(found[1]:find("^layer%-outlier blocks%.5%.up%.bias: RMS .* x that of its 9 siblings %(0%.%d+; more than 100 x%)$"), found[1])
  end)

  it("leaves small ones, and one that was trained beside others near 0", function()
    equal(with_bias(0.1, 1e-5), {})
    equal(with_bias(1e-3, 0.4), {})
    equal(with_bias(0.1, 20, function(root) root["blocks.5.up.weight"] = nil end), {})
  end)
end)

describe("check of siblings: constants", function()
  ---Biases of 0 and norms of 1, as new models have, but for those of layer 5.
  local function beside_constants(bias, norm)
    local root = cbk.dict()
    for layer = 0, 9 do
      local is_own = layer == 5
      root[("h.%d.up.weight"):format(layer)] = cbk.randn({ 64, 32 }, { seed = layer, std = 0.02 })
      root[("h.%d.up.bias"):format(layer)] = is_own and bias and cbk.randn({ 64 }, { seed = 1, std = bias }) or cbk.full({ 64 }, 0)
      root[("h.%d.ln.weight"):format(layer)] = is_own and norm and cbk.randn({ 64 }, { seed = 2, std = norm }) or cbk.full({ 64 }, 1)
    end
    return texts(check_root(harness.temp_dir(), root))
  end

  it("finds a bias and a norm that are far from what all others still are", function()
    local found = beside_constants(1e4, 1e5)
    equal(#found, 2)
    is_true(found[1]:find("^layer%-outlier h%.5%.ln%.weight: all elements of its 9 siblings are 1, .*more than 100%)$"), found[1])
    is_true(found[2]:find("^layer%-outlier h%.5%.up%.bias: all elements of its 9 siblings are 0, .*more than 100%)$"), found[2])
  end)

  it("leaves those that training moved", function()
    equal(beside_constants(10, 20), {})
    equal(beside_constants(), {})
  end)
end)

describe("check of siblings: texts", function()
  local function uniform(change)
    local root = cbk.dict()
    for layer = 0, 11 do root[("layers.%d.w.weight"):format(layer)] = cbk.randn({ 64, 64 }, { seed = layer, std = 0.02 }) end
    local key = "layers.7.w.weight"
    root[key] = change(root[key])
    return texts(check_root(harness.temp_dir(), root))
  end

  it("say the measure, the usual value and the threshold", function()
    local large = uniform(scaled(30))
    equal(#large, 1)
    local key, siblings = "^layer%-outlier layers%.7%.w%.weight: ", " that of its 11 siblings "
    is_true(large[1]:find(key .. "RMS 0%.%d+, %d+%.?%d* x" .. siblings .. "%(0%.0%d+; more than 8 x%)$"), large[1])
    local small = uniform(scaled(1 / 30))
    is_true(small[1]:find(key .. "RMS 0%.000%d+, 1/%d+%.?%d* of" .. siblings .. "%(0%.0%d+; less than 1/8%)$"), small[1])
    local element = uniform(with_large_element)
    is_true(element[1]:find(key .. "largest element 8.19e%+03, .* x" .. siblings .. "%(.*; more than 100 x%)$"), element[1])
    equal(#element, 1)
  end)

  it("list rows and columns", function()
    local key, others = "dead-rows layers.7.w.weight: ", ", counted from 0); its 11 siblings have none"
    equal(uniform(without_rows(3, 7)), { key .. "5 of 64 rows are all 0 (3 to 7" .. others })
    equal(uniform(without_columns(9, 9)), { key .. "1 of 64 columns is all 0 (9" .. others })
    equal(#uniform(function(tensor) return without_columns(1, 2)(without_rows(60, 63)(tensor)) end), 2)
  end)

  it("leave rows of zeros that most siblings have", function()
    local root = cbk.dict()
    for layer = 0, 11 do
      local tensor = cbk.randn({ 64, 64 }, { seed = layer, std = 0.02 })
      root[("layers.%d.w.weight"):format(layer)] = layer % 2 == 0 and without_rows(layer, layer + 2)(tensor) or tensor
    end
    equal(texts(check_root(harness.temp_dir(), root)), {})
  end)
end)

describe("check of vocabularies", function()
  local function rows(change, key, dtype)
    local tensor = cbk.randn({ 200, 24 }, { seed = 3, std = 0.02, dtype = dtype or "bfloat16" })
    local root = cbk.dict { { key or "model.embed_tokens.weight", change(tensor) } }
    local found = check_root(harness.temp_dir(), root)
    equal(found:counts().error + found:counts().warning, 0)
    return texts(found)
  end

  it("report rows that were never trained, in one note", function()
    equal(rows(without_rows(190, 199)), { "untrained-rows model.embed_tokens.weight: of 200 rows, 10 are 0 (190 to 199)" })
    local quiet = rows(function(tensor)
      return cbk.cat({ tensor:slice(0, 0, 150), (tensor:slice(0, 150, 200):to "float32" * 1e-3):to(tensor.dtype) }, 0)
    end)
    equal(#quiet, 1)
    has(quiet[1], "of 200 rows, 50 have an RMS below 1/20 of the median, which is 0.0")
    has(quiet[1], "(150 to 199)")
    local repeated = function(tensor)
      local parts = { tensor:slice(0, 0, 100) }
      for _ = 1, 100 do parts[#parts + 1] = tensor:slice(0, 5, 6) end
      return cbk.cat(parts, 0)
    end
    equal(rows(repeated), { "untrained-rows model.embed_tokens.weight: of 200 rows, 100 are equal to the row beside them (100 to 199)" })
    equal(#rows(repeated, "lm_head.weight", "float16"), 1)
  end)

  it("leave one row of padding, positions, and weights of layers", function()
    equal(rows(without_rows(0, 0)), {})
    equal(rows(without_rows(0, 5), "model.embed_positions.weight"), {})
    equal(rows(without_rows(0, 5), "layers.0.embed.weight"), {})
    equal(rows(without_rows(0, 5), "classifier.weight"), {})
  end)
end)

describe("check with chosen rules", function()
  local function broken()
    local root = healthy.model("gpt2", 5, 12)
    root["h.6.mlp.c_fc.weight"] = scaled(100)(root["h.6.mlp.c_fc.weight"])
    root["wte.weight"] = without_rows(60, 63)(root["wte.weight"])
    root["x.weight"] = cbk.full({ 8, 8 }, 2)
    return root
  end

  it("reports only these, or all others", function()
    local dir = harness.temp_dir()
    equal(names(check_root(dir, broken())), { "constant x.weight", "layer-outlier h.6.mlp.c_fc.weight", "untrained-rows wte.weight" })
    local status, out = harness.cbk(dir, "check", "m.safetensors", "--only", "untrained-rows")
    equal(status, 0)
    has(out, "note     m.safetensors: wte.weight: of 64 rows, 4 are 0 (60 to 63); try: nothing has to be done")
    has(out, "1 note (only untrained-rows): ")
    status, out = harness.cbk(dir, "check", "m.safetensors", "--skip", "constant", "--skip", "untrained-rows")
    equal(status, 1)
    lacks(out, "x.weight")
    has(out, "[layer-outlier]\n")
    has(out, "1 warning (without constant, untrained-rows): ")
  end)

  it("names a rule that does not exist", function()
    local dir = harness.temp_dir()
    local status, _, err = harness.cbk(dir, "check", "m.safetensors", "--skip", "dead-row")
    equal(status, 2)
    has(err, "'dead-row' is not a rule; did you mean 'dead-rows'")
  end)

  it("describes the rules in SARIF", function()
    local found = check_root(harness.temp_dir(), broken())
    local log = cbk.totable(sarif.log(found, {}))
    local ids = {}
    for _, rule in ipairs(log.runs[1].tool.driver.rules) do ids[rule.id] = rule.defaultConfiguration.level end
    equal({ ids["layer-outlier"], ids["dead-rows"], ids["untrained-rows"] }, { "warning", "warning", "note" })
    equal(log.runs[1].results[2].ruleId, "layer-outlier")
    equal(log.runs[1].results[2].locations[1].logicalLocations[1].fullyQualifiedName, "h.6.mlp.c_fc.weight")
  end)
end)
