-- `cbk infer` never converts a larger model wrongly: what a tiny pair does not show, such as the rows of a head, is read from configs, or
-- the converter refuses tensors of other shapes.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local infer = require "cbk.infer"
local inferred = require "inferred"
local keys = require "converters.engine.keys"
local sections = require "converters.engine.sections"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local describe, it, is_true = harness.describe, harness.it, harness.is_true
local sizes = inferred.sizes

local ways, names = tiny.newest_ways(), {}
for name in pairs(ways) do names[#names + 1] = name end
table.sort(names)

---What a converter does with a model: "equal", or the refusal. Anything else is an error.
---@param found Inferred
---@param side Side       that is read
---@param given { left: Dict, right: Dict }
---@param convert fun(model: table): Dict, string[]
---@return string
local function outcome(found, side, given, convert)
  local excused, missing = inferred.unexplained(found)
  local wanted = side == "left" and "right" or "left"
  local fine, out, unmatched = pcall(convert, inferred.model_of(found.text)[1])
  if not fine then
    is_true(type(out) == "table" and out.message, tostring(out))
    return out.message
  end
  if #unmatched > 0 and #missing == 0 then return "unmatched: " .. unmatched[1] end
  inferred.check_same(given[wanted], out, excused[wanted], "from the " .. side)
  return "equal"
end

---Both sides of a model as they are, and swapped.
local function both_ways(one) return { { left = one.left, right = one.right }, { left = one.right, right = one.left } } end

---Outcomes for a pair and another model, without configs: in both directions, and with the sides swapped.
---@param check fun(outcome: string, what: string)
local function each_outcome(way, seen, other, check)
  for place, pair in ipairs(both_ways(seen)) do
    local found, given = inferred.plainly(pair.left, pair.right), both_ways(other)[place]
    for _, side in ipairs { "left", "right" } do
      check(outcome(found, side, given, function(model) return inferred.run_plainly({ model }, side, given[side]) end), way.name)
    end
  end
end

local function is_refusal(text)
  return text:find("pair that the converter was inferred from", 1, true) or text:find("unmatched", 1, true)
    or text:find("values cannot be made again", 1, true) or text:find("do not split", 1, true)
end

describe("cbk infer, sizes", function()
  for _, name in ipairs(names) do
    it("is right or refuses larger models without configs: " .. name, function()
      local way = ways[name]
      local other = inferred.pair(way, sizes.large)
      for _, seen in ipairs { inferred.pair(way, sizes.small), inferred.pair(way, sizes.square) } do
        each_outcome(way, seen, other, function(found, what) is_true(found == "equal" or is_refusal(found), what .. ": " .. found) end)
      end
    end)
  end

  it("converts more layers and inner rows without configs", function()
    for _, name in ipairs(names) do
      local way = ways[name]
      each_outcome(way, inferred.pair(way, sizes.small), inferred.pair(way, sizes.deeper), function(found, what)
        harness.equal(found, "equal", what)
      end)
    end
  end)

  -- with the sides swapped, nothing of the vocabulary fits, and numbers are expressions of the fields
  it("reads sizes from configs of any layout", function()
    local count = { equal = 0, refused = 0 }
    for _, name in ipairs(names) do
      local way = ways[name]
      local seen, other = inferred.pair(way, sizes.small), inferred.pair(way, sizes.large)
      local found = infer.run({ tensors = seen.right, config = trainer.model(seen.right_config), format = "a", source = "left" },
        { tensors = seen.left, config = seen.left_config, format = "b", source = "right" }, { model = "inferred" })
      local given = { left = other.right, right = other.left }
      for _, side in ipairs { "left", "right" } do
        local result = outcome(found, side, given, function(model)
          local out, unmatched
          conversion.warnings(function()
            out, unmatched = keys.convert(model.keys, side, given[side], { left = trainer.model(other.right_config),
              right = other.left_config, fill = model.fill })
          end)
          return out, unmatched
        end)
        is_true(result == "equal" or is_refusal(result), name .. ": " .. result)
        local kind = result == "equal" and "equal" or "refused"
        count[kind] = count[kind] + 1
      end
    end
    is_true(count.equal >= 90, ("%d are equal, %d refused"):format(count.equal, count.refused))
  end)

  -- names of fields as people choose them, in a layout of no model here: the queries of a group, then its key and value
  it("reads the groups of queries from such configs", function()
    local function model_of(layers, count, groups, size)
      local width, model = count * size, { left = cbk.dict(), right = cbk.dict() }
      for i = 0, layers - 1 do
        local parts = {}
        for place, heads_of in ipairs { count, groups, groups } do
          local t = cbk.randn({ heads_of * size, width }, { seed = 10 * i + place, dtype = "float32" })
          model.left[("m.%d.%s"):format(i, ({ "q", "k", "v" })[place])] = t
          parts[place] = t:reshape { groups, heads_of / groups * size, width }
        end
        model.right[("x.%d.qkv"):format(i)] = cbk.cat(parts, 1):reshape { (count + 2 * groups) * size, width }
      end
      model.left_config = cbk.dict { n_layer = layers, heads = count, kv_groups = groups, hidden = width }
      model.right_config = cbk.dict { depth = layers, num_attn_heads = count, kv = groups, dim_per_head = size }
      return model
    end
    local seen, other = model_of(2, 4, 2, 8), model_of(4, 12, 3, 16)
    local found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
      { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
    for _, side in ipairs { "left", "right" } do
      harness.equal(outcome(found, side, other, function(model)
        return keys.convert(model.keys, side, other[side], { left = other.left_config, right = other.right_config, fill = model.fill })
      end), "equal", side)
    end
  end)

  -- in the pair, a head has as many rows as there are heads, or so few that both directions are the same
  local laws = {
    ["heads in a dimension of their own"] = function(t, count)
      return t:reshape { count, t:shape()[1] / count, t:shape()[2] }:permute { 2, 0, 1 }
    end,
    ["rotary rows"] = function(t, count)
      local rows, width = t:shape()[1] / count, t:shape()[2]
      return t:reshape { count, 2, rows / 2, width }:permute { 0, 2, 1, 3 }:reshape { count * rows, width }
    end,
  }
  for name, law in pairs(laws) do
    it("refuses numbers that mean two things in the pair: " .. name, function()
      local function model_of(layers, width, count)
        local model = { left = cbk.dict(), right = cbk.dict(),
          left_config = cbk.dict { n_layer = layers, n_head = count, hidden_size = width },
          right_config = cbk.dict { n_layers = layers, n_heads = count, d_model = width } }
        for i = 0, layers - 1 do
          local t = cbk.randn({ width, width }, { seed = i, dtype = "float32" })
          model.left[("h.%d.w"):format(i)], model.right[("l.%d.w"):format(i)] = t, law(t, count)
        end
        return model
      end
      for place, seen in ipairs(both_ways(model_of(3, 16, 4))) do
        local configs = model_of(3, 16, 4)
        local ends = { "left_config", "right_config" }
        local found = infer.run({ tensors = seen.left, config = configs[ends[place]], format = "a", source = "left" },
          { tensors = seen.right, config = configs[ends[3 - place]], format = "b", source = "right" }, { model = "inferred" })
        for _, case in ipairs { { model_of(5, 16, 4), true }, { model_of(5, 48, 6) }, { model_of(5, 48, 12) }, { model_of(5, 16, 8) },
          { model_of(5, 16, 2) } } do
          local other, is_alike = unpack(case)
          local given = both_ways(other)[place]
          for _, side in ipairs { "left", "right" } do
            local result = outcome(found, side, given, function(model)
              return keys.convert(model.keys, side, given[side], { left = other[ends[place]], right = other[ends[3 - place]],
                fill = model.fill })
            end)
            if is_alike then harness.equal(result, "equal", side) else is_true(result == "equal" or is_refusal(result), result) end
          end
        end
      end
    end)
  end

  ---What a converter inferred from one model does with another: models are { left, right, left_config, right_config }.
  local function of_other(seen, other)
    local found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
      { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
    return outcome(found, "left", other, function(model)
      local to, from = sections.convert(model, "left", other.left_config)
      return keys.convert(model.keys, "left", other.left, { left = sections.nested(model, "left", from), right = to, fill = model.fill })
    end)
  end

  ---Fused queries, keys and values of each layer against three tensors.
  local function fused(of)
    local width, heads = 16, of.heads or 4
    local model = { left = cbk.dict(), right = cbk.dict(), left_config = cbk.dict { n_layer = of.layers or 3, width = width },
      right_config = cbk.dict { num_layers = of.layers or 3, d_model = width } }
    model.left_config[of.name or "n_head"], model.right_config[of.name or "n_head"] = heads, heads
    if of.flag ~= nil then model.left_config.interleaved = of.flag end
    if of.style then model.left_config.style, model.right_config.style = of.style, of.style end
    for i = 0, (of.layers or 3) - 1 do
      local w = cbk.randn({ 3 * width, width }, { seed = 10 * heads + i, dtype = "float32" })
      local by_head = w:reshape { heads, 3, width / heads, width }
      model.left[("h.%d.qkv"):format(i)] = w
      for k, name in ipairs { "q", "k", "v" } do
        model.right[("l.%d.%s"):format(i, name)] = of.is_stacked and w:slice(0, (k - 1) * width, k * width)
          or by_head:select(1, k - 1):reshape { width, width }
      end
    end
    for name, t in pairs(of.made and of.made(of.layers or 3) or {}) do model.right[name] = t end
    return model
  end

  it("compares numbers in sections of any name, and reads lists of one number as such", function()
    local function model_of(layers, count, size, dim, lists)
      local width, left, right = count * size, cbk.dict(), cbk.dict()
      for i = 0, layers - 1 do
        local w = cbk.randn({ width, 8 }, { seed = i, dtype = "float32" })
        local heads = w:reshape { count, size, 8 }
        local turned = heads:slice(1, 0, dim):reshape({ count, 2, dim / 2, 8 }):permute({ 0, 2, 1, 3 }):reshape { count, dim, 8 }
        left[("h.%d.q"):format(i)], right[("l.%d.q"):format(i)] = w, cbk.cat({ turned, heads:slice(1, dim, size) }, 1):reshape { width, 8 }
      end
      local counted = lists or count
      return { left = left, right = right, left_config = cbk.dict { n_layer = layers, heads = counted, width = width,
        position_embedding = cbk.dict { of = dim } }, right_config = cbk.dict { depth = layers, n_heads = counted, dim = width,
        position_encoding = cbk.dict { dims = dim } } }
    end
    local sections_of = of_other(model_of(2, 6, 16, 4), model_of(2, 6, 16, 8))
    is_true(sections_of:find("and of = 4 in the config; here it is 8", 1, true), sections_of)
    local function list(...) return cbk.list { ... } end
    harness.equal(of_other(model_of(3, 6, 16, 16, list(6, 6, 6)), model_of(2, 4, 24, 24, list(4, 4))), "equal")
    local unlike = of_other(model_of(3, 6, 16, 16, list(6, 6, 6)), model_of(2, 4, 24, 24, list(4, 2)))
    is_true(unlike:find("has 4 and 2 here", 1, true), unlike)
  end)

  it("does not take a number of heads for one of layers because of its name", function()
    for _, name in ipairs { "n_head", "heads_per_layer", "head_depth", "layer_heads" } do
      for _, layers in ipairs { 3, 4 } do -- and 4 heads
        local found = of_other(fused { name = name, layers = layers }, fused { name = name, heads = 8 })
        is_true(found == "equal" or is_refusal(found), name .. ": " .. found)
      end
    end
  end)

  it("refuses buffers that may be made of the number of layers", function()
    local makes = {
      root = function(n) return { res = cbk.full({}, 1 / math.sqrt(2 * n)) } end,
      inverse = function(n) return { res = cbk.full({ 7 }, 1 / n) } end,
      count = function(n) return { count = cbk.full({}, n, { dtype = "int64" }) } end,
      ids = function(n)
        local ids = {}
        for i = 1, n do ids[i] = i - 1 end
        return { ids = cbk.tensor(ids, { dtype = "int64" }) }
      end,
    }
    for name, made in pairs(makes) do
      local found = of_other(fused { made = made, layers = 9 }, fused { made = made, layers = 14 })
      is_true(is_refusal(found), name .. ": " .. found)
    end
    local function mask() return { fill = cbk.full({}, -1e9), scale = cbk.full({}, 0.37) } end
    harness.equal(of_other(fused { made = mask, layers = 9 }, fused { made = mask, layers = 14 }), "equal")
  end)

  it("refuses other flags and names of layouts than those of the pair, if weights are more than renamed", function()
    for _, is_stacked in ipairs { true, false } do
      local found = of_other(fused { flag = not is_stacked, is_stacked = is_stacked },
        fused { flag = is_stacked, is_stacked = not is_stacked })
      is_true(found:find("has interleaved = " .. tostring(not is_stacked), 1, true), found)
    end
    local found = of_other(fused { style = "neox" }, fused { style = "gptj", is_stacked = true })
    is_true(found:find("has style = 'neox' in the config; here it is 'gptj'", 1, true), found)
    harness.equal(of_other(fused { style = "neox" }, fused { style = "neox", layers = 5 }), "equal")
    local function plain(style)
      local config = cbk.dict { style = style, width = 4 }
      local t = cbk.randn({ 4, 4 }, { dtype = "float32" })
      return { left = cbk.dict { a = t }, right = cbk.dict { b = t }, left_config = config, right_config = config }
    end
    harness.equal(of_other(plain "neox", plain "gptj"), "equal")
  end)

  ---A model of experts; `rename` gives the names on the right.
  local function experts(layers, count, rename)
    local model = { left = cbk.dict(), right = cbk.dict(), left_config = cbk.dict { n_layer = layers, experts = count },
      right_config = cbk.dict { depth = layers, num_experts = count } }
    for i = 0, layers - 1 do
      for e = 0, count do
        local t = cbk.randn({ 4, 4 }, { seed = 100 * i + e, dtype = "float32" })
        local name = e < count and ("l.%d.e.%d.w"):format(i, e) or ("l.%d.shared.w"):format(i)
        model.left[name], model.right[rename(i, e, count)] = t, t
      end
    end
    return model
  end
  for name, rename in pairs {
    ["in reverse"] = function(i, e, count) return e < count and ("h.%d.e.%d.w"):format(i, count - 1 - e) or ("h.%d.s.w"):format(i) end,
    ["one further"] = function(i, e, count) return e < count and ("h.%d.e.%d.w"):format(i, (e + 1) % count) or ("h.%d.s.w"):format(i) end,
    ["the shared one last"] = function(i, e, count) return ("h.%d.e.%d.%s"):format(i, e, e < count and "w" or "s") end,
    ["over all layers"] = function(i, e, count) return e < count and ("x.%d.w"):format(i * count + e) or ("h.%d.s.w"):format(i) end,
  } do
    it("refuses another number of experts where it changes their numbers: " .. name, function()
      local seen = experts(3, 5, rename)
      local found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
        { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
      for _, case in ipairs { { experts(3, 5, rename), true }, { experts(3, 3, rename) }, { experts(3, 7, rename) } } do
        local other, is_alike = unpack(case)
        for _, side in ipairs { "left", "right" } do
          local result = outcome(found, side, other, function(model)
            return keys.convert(model.keys, side, other[side], { left = other.left_config, right = other.right_config, fill = model.fill })
          end)
          if is_alike then harness.equal(result, "equal", side) else is_true(result == "equal" or is_refusal(result), side .. result) end
        end
      end
    end)
  end

  it("refuses other numbers in configs of any names, where a number of the pair is used", function()
    local function model_of(parts, factor, shown)
      local model = { left = cbk.dict(), right = cbk.dict(),
        left_config = cbk.dict { a = parts[1], b = parts[2], mul = factor, heads = shown },
        right_config = cbk.dict { x = parts[1], y = cbk.dict { z = cbk.list { parts[2] } }, emb = factor, kopf = shown } }
      local function random(rows, seed) return cbk.randn({ rows, 6 }, { seed = seed, dtype = "float32" }) end
      local one, two, emb = random(parts[1], 1), random(parts[2], 2), random(8, 3)
      model.left.fused, model.right.one, model.right.two = cbk.cat({ one, two }, 0), one, two
      model.left.emb, model.right.emb = emb, emb * factor
      model.right.zeros = cbk.full({ parts[1] - parts[2] }, 0, { dtype = "float32" })
      return model
    end
    local seen = model_of({ 20, 12 }, 4, 2)
    local found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
      { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
    for _, case in ipairs { { model_of({ 20, 12 }, 4, 2), true }, { model_of({ 18, 14 }, 4, 2) }, { model_of({ 20, 12 }, 2, 2) } } do
      local other, is_alike = unpack(case)
      for _, side in ipairs { "left", "right" } do
        local result = outcome(found, side, other, function(model)
          return keys.convert(model.keys, side, other[side], { left = other.left_config, right = other.right_config, fill = model.fill })
        end)
        if is_alike then harness.equal(result, "equal", side) else is_true(is_refusal(result), side .. ": " .. result) end
      end
    end
  end)

  it("refuses a size of heads that the pair's configs do not have", function()
    local function model_of(count, size, said)
      local width = count * 8
      local model = { left = cbk.dict(), right = cbk.dict(), left_config = cbk.dict { hidden_size = width, num_attention_heads = count },
        right_config = cbk.dict { dim = width, n_heads = count } }
      model.left_config.head_dim, model.right_config.head_dim = said, said
      for i = 0, 2 do
        local t = cbk.randn({ count * size, width }, { seed = i, dtype = "float32" })
        model.left[("h.%d.q"):format(i)] = t
        model.right[("l.%d.q"):format(i)] = t:reshape { count, 2, size / 2, width }:permute { 0, 2, 1, 3 }:reshape { count * size, width }
      end
      return model
    end
    local seen = model_of(6, 8)
    local found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
      { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
    for _, case in ipairs { { model_of(4, 8), true }, { model_of(4, 8, 8), true }, { model_of(6, 16, 16) } } do
      local other, is_alike = unpack(case)
      for _, side in ipairs { "left", "right" } do
        local result = outcome(found, side, other, function(model)
          return keys.convert(model.keys, side, other[side], { left = other.left_config, right = other.right_config, fill = model.fill })
        end)
        if is_alike then harness.equal(result, "equal", side) else is_true(is_refusal(result), side .. ": " .. result) end
      end
    end
  end)

  it("compares configs of so many fields as models have, and no more", function()
    local t = cbk.randn({ 4, 4 }, { seed = 1, dtype = "float32" })
    local function run(config)
      return infer.run({ tensors = cbk.dict { a = t }, config = config, format = "a", source = "left" },
        { tensors = cbk.dict { b = t }, config = config, format = "b", source = "right" }, { model = "inferred" })
    end
    local function config_of(count, inner)
      local config, map = cbk.dict(), cbk.dict()
      for i = 1, count do config["hidden_size_" .. i] = 7 end
      for i = 1, inner do map["a" .. i] = "x" end
      config.map = map
      return config
    end
    is_true(run(config_of(100, 1000)).text)
    for _, case in ipairs { { 401, 0 }, { 0, 20000 } } do
      harness.raises("the config of the left has too many fields", function() run(config_of(unpack(case))) end, "unsupported")
    end
  end)
end)

describe("a converter of cbk infer", function()
  local function saved(dir, name, root) cbk.create(dir .. "/" .. name, { root = root }):commit { progress = false } end

  it("computes in the wider of two dtypes, both ways", function()
    local w = cbk.randn({ 5, 3 }, { seed = 3, dtype = "float32" }):to "bfloat16"
    for kind, other in pairs { plus = w:to "float32" + 1, times = w:to "float32" * 0.3 } do
      for _, ends in ipairs { { "narrow", "wide" }, { "wide", "narrow" } } do
        local dir = harness.temp_dir()
        saved(dir, "narrow.pt", cbk.dict { a = w })
        saved(dir, "wide.pt", cbk.dict { b = other })
        local code, _, err = harness.cbk(dir, "infer", ends[1] .. ".pt", ends[2] .. ".pt", "-o", "f.lua")
        harness.equal(code, 0, err)
        code, _, err = harness.cbk(dir, "convert", ends[1] .. ".pt", "--converter", "f.lua", "--to", "b", "-o", "out")
        harness.equal(code, 0, err)
        local made = cbk.open(("%s/out/%s_to_b.pt"):format(dir, ends[1])).root
        local wanted = cbk.open(dir .. "/" .. ends[2] .. ".pt").root
        for key, t in cbk.tensors(wanted) do
          is_true(made[key].dtype == t.dtype and made[key]:compare(t).same_bits, kind .. ends[1])
        end
      end
    end
  end)

  it("reads fields in sections of the left, such as the rotary rows of a head", function()
    local dir = harness.temp_dir()
    local function folder(name, share)
      local config = cbk.dict { { "architectures", cbk.list { "GPTNeoXForCausalLM" } }, { "model_type", "gpt_neox" }, { "vocab_size", 24 },
        { "hidden_size", 32 }, { "num_hidden_layers", 2 }, { "num_attention_heads", 4 }, { "intermediate_size", 40 },
        { "hidden_act", "gelu" }, { "max_position_embeddings", 12 }, { "rope_parameters", cbk.dict {
          { "rope_theta", cbk.float(10000) }, { "rope_type", "default" }, { "partial_rotary_factor", share } } } }
      cbk.fs.mkdir(dir .. "/" .. name)
      local root = require "cbk.classes".new(config, "gpt-neox", "hf")
      for layer = 0, 1 do -- of two or four rotary rows
        local values = share == 0.5 and { 1, 0.005 } or { 1 }
        root[("gpt_neox.layers.%d.attention.rotary_emb.inv_freq"):format(layer)] = cbk.tensor(values, { dtype = "float32" })
      end
      saved(dir, name .. "/model.safetensors", root)
      cbk.config.save(config, dir .. "/" .. name .. "/config.json")
      local code, _, err = harness.cbk(dir, "convert", name, "--to", "cs-2.9", "-o", "zoo_" .. name)
      harness.equal(code, 0, err)
      config.rope_parameters.rope_theta = 40000
      cbk.config.save(config, dir .. "/" .. name .. "/config.json", { overwrite = true })
    end
    folder("pair", 0.5)
    folder("other", 0.25)
    for _, formats in ipairs { { "hf", "cs-2.9" }, { "a", "b" } } do
      local left, right = unpack(formats)
      local code, _, err = harness.cbk(dir, "infer", "pair", "zoo_pair/pair_to_cs-2.9.mdl", "--src-fmt", left, "--tgt-fmt", right,
        "--src-config", "pair/config.json", "--tgt-config", "zoo_pair/config_to_cs-2.9.yaml", "-o", right .. ".lua")
      harness.equal(code, 0, err)
      for _, name in ipairs { "pair", "other" } do
        local function convert(...)
          code, _, err = harness.cbk(dir, "convert", "--converter", right .. ".lua", "--overwrite", "--model", "inferred", ...)
          harness.equal(code, 0, err)
        end
        convert(name, "--src-fmt", left, "--to", right, "-o", "there", "--config", name .. "/config.json")
        local there = ("%s/there/%s_to_%s.mdl"):format(dir, name, right)
        local wanted = cbk.open(("%s/zoo_%s/%s_to_cs-2.9.mdl"):format(dir, name, name)).root.model
        local made = cbk.open(there).root.model
        for key, t in cbk.tensors(wanted) do is_true(t:same(made[key]) or t:compare(made[key]).same_bits, name .. key) end
        local config = right == "b" and there:gsub("mdl$", "json") or dir .. "/there/config_to_cs-2.9.yaml"
        convert(there, "--src-fmt", right, "--to", left, "-o", "back", "--config", config)
      end
    end
  end)

  it("reads fields in sections of the right, and rotated rows by fields with names of one's own", function()
    local function model_of(layers, count, size, dim)
      local width = count * size
      local model = { left = cbk.dict(), right = cbk.dict(), left_config = cbk.dict { n_layer = layers, heads = count, width = width,
        rope_dims = dim, patches = cbk.list { 3, 5 }, wave = 2 * size } }
      model.right_config = cbk.dict { depth = layers, dim = width, patch_grid = cbk.list { 3, 5 }, ff = 4 * width,
        attn_config = cbk.dict { n_heads = count, rotary_ndims = dim, wave = 2 * size } }
      for i = 0, layers - 1 do
        local w, parts = cbk.randn({ 3 * width, width }, { seed = i, dtype = "float32" }), {}
        for k, name in ipairs { "q", "k", "v" } do
          local t = w:slice(0, (k - 1) * width, k * width):reshape { count, size, width }
          local turned = t:slice(1, 0, dim):reshape({ count, 2, dim / 2, width }):permute({ 0, 2, 1, 3 }):reshape { count, dim, width }
          parts[k] = name == "v" and t or cbk.cat({ turned, t:slice(1, dim, size) }, 1)
          model.left[("h.%d.%s"):format(i, name)] = parts[k]:reshape { width, width }
        end
        model.right[("l.%d.qkv"):format(i)] = w
      end
      return model
    end
    local seen, other, found = nil, model_of(3, 8, 24, 8), nil
    for _, rotated in ipairs { 16, 6 } do -- all of a head, or some
      seen = model_of(2, 4, 16, rotated)
      found = infer.run({ tensors = seen.left, config = seen.left_config, format = "a", source = "left" },
        { tensors = seen.right, config = seen.right_config, format = "b", source = "right" }, { model = "inferred" })
      harness.has(found.text, 'nested = { right = { "attn_config" } }')
      for _, side in ipairs { "left", "right" } do
        harness.equal(outcome(found, side, other, function(model)
          local to, from = sections.convert(model, side, other[side .. "_config"])
          local right = side == "right" and sections.nested(model, "right", from) or to
          harness.equal(cbk.json(right.attn_config), cbk.json(other.right_config.attn_config))
          return keys.convert(model.keys, side, other[side], { left = side == "left" and from or to, right = right, fill = model.fill })
        end), "equal", side)
      end
    end
    local deeper = cbk.copy(seen.left_config) -- sizes that no field gives, where the numbers, lists too, are those of the pair
    deeper.n_layer = 5
    local made = sections.convert(inferred.model_of(found.text)[1], "left", deeper)
    harness.equal({ made.ff, cbk.totable(made.patch_grid) }, { 256, { 3, 5 } })
  end)

  it("writes sizes that no field gives for the pair's other sizes, and names them for others", function()
    local dir = harness.temp_dir()
    local function folder(name, width)
      local config = cbk.dict { { "architectures", cbk.list { "BloomForCausalLM" } }, { "model_type", "bloom" }, { "vocab_size", 24 },
        { "hidden_size", width }, { "n_layer", name == "pair" and 2 or 3 }, { "n_head", 4 } }
      cbk.fs.mkdir(dir .. "/" .. name)
      saved(dir, name .. "/model.safetensors", require "cbk.classes".new(config, "bloom", "hf"))
      cbk.config.save(config, dir .. "/" .. name .. "/config.json")
      harness.equal((harness.cbk(dir, "convert", name, "--to", "cs-2.9", "-o", "zoo_" .. name)), 0)
    end
    folder("pair", 32)
    folder("deeper", 32)
    folder("wider", 48)
    local code, _, err = harness.cbk(dir, "infer", "pair", "zoo_pair/pair_to_cs-2.9.mdl", "--src-fmt", "hf", "--tgt-fmt", "cs-2.9",
      "--src-config", "pair/config.json", "--tgt-config", "zoo_pair/config_to_cs-2.9.yaml", "-o", "f.lua")
    harness.equal(code, 0, err)
    for name, size in pairs { pair = 128, deeper = 128, wider = false } do
      local out = "out_" .. name
      code, _, err = harness.cbk(dir, "convert", name, "--converter", "f.lua", "--model", "inferred", "--to", "cs-2.9", "-o", out)
      harness.equal(code, 0, err)
      local made = cbk.config.load(("%s/out_%s/config_to_cs-2.9.yaml"):format(dir, name))
      harness.equal((made.trainer and made.trainer.init.model or made.model).filter_size, size or nil, name)
      local said = err:find("lacks filter_size (128 in the pair): cbk infer found no field that gives it, and hidden_size", 1, true)
      harness.equal(said ~= nil, not size, name .. err)
    end
  end)

  it("compares the fields of sections only where they are not too many", function()
    local config = cbk.dict { model_type = "x", hidden_size = 4 }
    for i = 1, 300 do
      local section = cbk.dict()
      for k = 1, 40 do section["f" .. k] = i * 100 + k end
      config["s" .. i] = section
    end
    harness.equal(#require "cbk.infer.fields".infer(config, config, false).sections.left, 0) -- comparing all would take minutes
  end)

  it("refuses other values of what a model may compute with", function()
    local config = cbk.dict { { "model_type", "llama" }, { "architectures", cbk.list { "LlamaForCausalLM" } }, { "vocab_size", 24 },
      { "hidden_size", 16 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 3 }, { "intermediate_size", 40 },
      { "hidden_act", "silu" }, { "rope_scaling", cbk.null }, { "tie_word_embeddings", false }, { "initializer_range", 0.02 },
      { "attention_dropout", 0 } }
    local dir = harness.temp_dir()
    local function folder(name, change)
      cbk.fs.mkdir(dir .. "/" .. name)
      saved(dir, name .. "/model.safetensors", require "cbk.classes".new(config, "llama", "hf"))
      cbk.config.save(conversion.with(config, change), dir .. "/" .. name .. "/config.json")
    end
    folder("hf", {})
    harness.equal((harness.cbk(dir, "convert", "hf", "--to", "cs-2.5", "-o", "zoo")), 0)
    local code, _, err = harness.cbk(dir, "infer", "hf", "zoo/hf_to_cs-2.5.mdl", "--src-fmt", "hf", "--tgt-fmt", "cs-2.5", "--src-config",
      "hf/config.json", "--tgt-config", "zoo/config_to_cs-2.5.yaml", "-o", "f.lua")
    harness.equal(code, 0, err)
    for name, case in pairs {
      same = { {} }, idle = { { initializer_range = 0.01, attention_dropout = 0.1 } },
      act = { { hidden_act = "gelu" }, "hidden_act='gelu'" },
      scaled = { { rope_scaling = cbk.dict { rope_type = "linear", factor = 4 } }, "rope_scaling=" },
    } do
      folder(name, case[1])
      code, _, err = harness.cbk(dir, "convert", name, "--converter", "f.lua", "--to", "cs-2.5", "-o", "out_" .. name)
      harness.equal(code, case[2] and 1 or 0, name .. err)
      is_true(not case[2] or err:find("cannot convert the config with " .. case[2], 1, true), err)
    end
  end)
end)
