-- `cbk infer` explains buffers that follow from the config, in every family whose class has them: the inferred converter makes those of a
-- larger model.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local harness = require "harness"
local infer = require "cbk.infer"
local inferred = require "inferred"
local keys = require "converters.engine.keys"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local small, large = inferred.sizes.small, inferred.sizes.large

-- --- the buffers as PyTorch computes them, written for these tests alone

local function float32(list) return cbk.tensor(list, { dtype = "float32" }):tolist() end

local function each(n, f)
  local out = {}
  for i = 1, n do out[i] = f(i - 1) end
  return out
end

local function frequencies(n, base)
  local exponents = float32(each(n, function(i) return 2 * i / (2 * n) end))
  local powers = float32(each(n, function(i) return base ^ exponents[i + 1] end))
  return float32(each(n, function(i) return 1 / powers[i + 1] end))
end

local function slopes(n)
  local power = 2 ^ math.floor(math.log(n) / math.log(2) + 1e-9)
  local out = each(power, function(i) return 2 ^ (-8 * (i + 1) / power) end)
  for i = 0, n - power - 1 do out[#out + 1] = 2 ^ (-8 * (2 * i + 1) / (2 * power)) end
  return out
end

local function numel_of(shape)
  local out = 1
  for _, n in ipairs(shape) do out = out * n end
  return out
end

---What a buffer of a class holds, by its name.
local function value_of(key, shape, config)
  local last = key:match "[^.]+$"
  local function of(list, dtype) return cbk.tensor(list, { dtype = dtype, shape = shape }) end
  if last == "position_ids" then return of(each(numel_of(shape), function(i) return i end), "int64") end
  if last == "inv_freq" then return of(frequencies(shape[1], config.rope_theta or config.rotary_emb_base or 10000), "float32") end
  if last == "slopes" then return of(slopes(shape[1]), "float32") end
  if last == "masked_bias" then return cbk.full({}, key:find "^h%." and -1e4 or -1e9, { dtype = "float32" }) end
  if #shape == 4 then return cbk.tril(shape, { dtype = "uint8" }) end
end

---A pair with the buffers of the left's class, which the right does not have.
---@return Pair, integer count   of buffers
local function with_buffers(way, size)
  local one = inferred.pair(way, size)
  local left, count = cbk.dict(), 0
  for key, tensor in cbk.items(one.left) do left[key] = tensor end
  local fine, list = pcall(classes.tensors, one.left_config, way.name, "hf")
  for _, tensor in ipairs(fine and list or {}) do
    local value = tensor.buffer and left[tensor.key] == nil and value_of(tensor.key, { unpack(classes.shape(tensor)) }, one.left_config)
    if value then left[tensor.key], count = value, count + 1 end
  end
  return { left = left, right = one.right, left_config = one.left_config, right_config = one.right_config }, count
end

local function infer_of(left, left_config, right, right_config, formats)
  return infer.run({ tensors = left, config = left_config, format = formats and formats[1] or "a", source = "left" },
    { tensors = right, config = right_config, format = formats and formats[2] or "b", source = "right" }, { model = "inferred" })
end

---What a converter makes of a side of a model, with both configs.
---@param is_excused? table<string, boolean>   keys that need not be matched
local function converted(model, side, tensors, left_config, right_config, is_excused)
  local out, unmatched
  conversion.warnings(function()
    out, unmatched = keys.convert(model.keys, side, tensors, { left = left_config, right = right_config, fill = model.fill })
  end)
  for _, key in ipairs(unmatched) do is_true(is_excused and is_excused[key], key) end
  return out
end

---Buffers of a side that nothing explains.
local function missing_buffers(found)
  local out = {}
  for _, one in ipairs(found.unexplained) do
    local last = one.key:match "[^.]+$"
    if last ~= "weight" then out[#out + 1] = one.side .. " " .. one.key end
  end
  return out
end

describe("cbk infer, buffers of", function()
  local ways, names, families = tiny.newest_ways(), {}, {}
  for name in pairs(ways) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local way = ways[name]
    local is_plain = not (way.converter.components or way.converter.wrap)
    local seen, count = nil, 0
    if is_plain then seen, count = with_buffers(way, small) end
    if count > 0 then
      families[#families + 1] = name
      it(("%s are made again: %d"):format(name, count), function()
        local other = with_buffers(way, large)
        local right = trainer.model(seen.right_config)
        local found = infer_of(seen.left, seen.left_config, seen.right, right, { "hf", way.format })
        equal(missing_buffers(found), {})
        local model = inferred.model_of(found.text)[1]
        local excused = inferred.unexplained(found)
        local made = converted(model, "right", other.right, other.left_config, trainer.model(other.right_config),
          excused.right)
        inferred.check_same(other.left, made, excused.left, name)
      end)
    end
  end

  it("several families at least", function() is_true(#families >= 8, table.concat(families, " ")) end)
end)

-- --- layouts of no model here

---A model of some layers on both sides; the left has buffers, once or twice.
local function own_model(layers, heads, size, prefixes, buffers)
  local left, right = cbk.dict(), cbk.dict()
  local function weight(seed, shape) return cbk.randn(shape, { seed = seed, dtype = "float32" }) end
  local embedding = weight(1, { 11, heads * size })
  right["words"] = embedding
  for i = 0, layers - 1 do right[("x.%d.w"):format(i)] = weight(10 + i, { heads * size, 5 }) end
  for _, prefix in ipairs(prefixes) do
    left[prefix .. "embed"] = embedding
    for i = 0, layers - 1 do left[("%sh.%d.w"):format(prefix, i)] = right[("x.%d.w"):format(i)] end
    for key, make in pairs(buffers) do
      for i = 0, key:find "N" and layers - 1 or 0 do left[prefix .. key:gsub("N", i)] = make(heads, size) end
    end
  end
  return { left = left, right = right }
end

local LENGTH = 9

local OWN = {
  ["h.N.mask"] = function() return cbk.tril({ 1, 1, LENGTH, LENGTH }, { dtype = "bool" }) end,
  ["h.N.filled"] = function() return cbk.full({}, -1e4, { dtype = "float32" }) end,
  ["h.N.rope.inv_freq"] = function(_, size) return cbk.tensor(frequencies(size / 2, 500000), { dtype = "float32" }) end,
  ["ids"] = function() return cbk.tensor(each(LENGTH, function(i) return i end), { dtype = "int64", shape = { 1, LENGTH } }) end,
  ["slopes"] = function(heads) return cbk.tensor(slopes(heads), { dtype = "float32", shape = { 1, heads, 1, 1 } }) end,
  ["h.N.slopes"] = function(heads) return cbk.tensor(slopes(heads), { dtype = "float32", shape = { heads } }) end,
}

describe("cbk infer, buffers of a layout of one's own", function()
  local function configs(layers, heads, size)
    return cbk.dict { n_layer = layers, n_heads = heads, width = heads * size, head_dim = size, rope_theta = 500000, max_seq_len = LENGTH },
      cbk.dict { depth = layers, num_attn_heads = heads, dim_per_head = size, rotary_base = 500000, ctx = LENGTH }
  end
  for name, prefixes in pairs { once = { "" }, ["twice, as a policy and its reference"] = { "policy.m.", "ref.m." } } do
    for _, side in ipairs { "left", "right" } do
      it(("are made from the config, %s, on the %s"):format(name, side), function()
        local function sides(layers, heads, size)
          local one, a, b = own_model(layers, heads, size, prefixes, OWN), configs(layers, heads, size)
          if side == "left" then return one.left, a, one.right, b end
          return one.right, b, one.left, a
        end
        local left, left_config, right, right_config = sides(2, 4, 8)
        local found = infer_of(left, left_config, right, right_config)
        equal(missing_buffers(found), {})
        local other_left, other_left_config, other_right, other_right_config = sides(3, 6, 12)
        local model = inferred.model_of(found.text)[1]
        local read = side == "left" and other_right or other_left
        local made = converted(model, side == "left" and "right" or "left", read, other_left_config, other_right_config)
        inferred.check_same(side == "left" and other_left or other_right, made, {}, "made")
      end)
    end
  end

  local function with_vector(name, make)
    local function sides(layers, heads, size)
      local one = own_model(layers, heads, size, { "" }, { ["h.N." .. name] = function() return make(size / 2) end })
      return one, configs(layers, heads, size)
    end
    local one, a, b = sides(2, 4, 12)
    return infer_of(one.left, a, one.right, b), sides
  end

  -- A model that was cast casts its buffers; other programs take powers in another dtype, or on another processor.
  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
    for name, off in pairs { cast = 0, ["rounded otherwise"] = 2 ^ -23 } do
      it(("are frequencies of %s, %s, of any dim"):format(dtype, name), function()
        local found, sides = with_vector("rope.inv_freq", function(n)
          local list = frequencies(n, 500000)
          for i = 3, #list do list[i] = list[i] * (1 + (i % 2 == 0 and off or -off)) end
          return cbk.tensor(float32(list), { dtype = dtype })
        end)
        equal(missing_buffers(found), {})
        local model = inferred.model_of(found.text)[1]
        for _, size in ipairs { 8, 24, 80, 96, 128 } do
          local other, other_a, other_b = sides(3, 6, size)
          inferred.check_same(other.right, converted(model, "left", other.left, other_a, other_b), {}, "read")
          local made = converted(model, "right", other.right, other_a, other_b)["h.2.rope.inv_freq"]
          equal(made.dtype, dtype)
          local wanted = other.left["h.2.rope.inv_freq"]
          is_true(made:to("float32"):compare(wanted:to "float32", { rtol = 2 ^ -7, atol = 2 ^ -24 }).different == 0)
          other.left["h.1.rope.inv_freq"] = (wanted:to "float32" * 1.02):to(dtype)
          harness.raises("its values cannot be made again", function() converted(model, "left", other.left, other_a, other_b) end)
        end
      end)
    end
  end

  for what, case in pairs {
    ["two frequencies of an unknown base"] = { "rope.inv_freq", function() return cbk.tensor({ 1, 0.0131 }, { dtype = "bfloat16" }) end },
    ["numbers that fall like frequencies"] = { "gate", function()
      return cbk.tensor({ 1, .50390625, .2490234375, .1259765625, .0625, .031494140625 }, { dtype = "bfloat16" })
    end },
    ["frequencies that were trained"] = { "rope.inv_freq", function(n)
      local list = frequencies(n, 500000)
      for i = 2, #list, 2 do list[i] = list[i] * (1 + 2 ^ -8) end
      return cbk.tensor(list, { dtype = "bfloat16" })
    end },
  } do
    it("are not " .. what, function()
      local key = "left h.%d." .. case[1]
      equal(missing_buffers((with_vector(case[1], case[2]))), { key:format(0), key:format(1) })
    end)
  end

  -- as LlamaRotaryEmbedding of transformers makes them
  for kind, scaled in pairs {
    linear = function(list) return float32(each(#list, function(i) return list[i + 1] / 4 end)) end,
    llama3 = function(list)
      local out = {}
      for i, f in ipairs(list) do
        local wave = float32({ 2 * math.pi / f })[1]
        if wave < 64 / 4 then
          out[i] = f
        elseif wave > 64 then
          out[i] = f / 4
        else
          local smooth = float32({ float32({ float32({ 64 / wave })[1] - 1 })[1] / 3 })[1]
          local low = float32({ float32({ 1 - smooth })[1] * float32({ f / 4 })[1] })[1]
          out[i] = low + float32({ smooth * f })[1]
        end
      end
      return float32(out)
    end,
  } do
    it("are scaled frequencies of type " .. kind, function()
      local function sides(layers, heads, size)
        local one = own_model(layers, heads, size, { "" }, { ["h.N.rope.inv_freq"] = function()
          return cbk.tensor(scaled(frequencies(size / 2, 10000)), { dtype = "float32" })
        end })
        local a, b = configs(layers, heads, size)
        a.rope_theta, b.rotary_base = 10000, 10000
        a.rope_scaling = cbk.dict { rope_type = kind, factor = 4 }
        if kind == "llama3" then
          a.rope_scaling.low_freq_factor, a.rope_scaling.high_freq_factor = 1, 4
          a.rope_scaling.original_max_position_embeddings = 64
        end
        return one, a, b
      end
      local one, a, b = sides(2, 4, 16)
      local found = infer_of(one.left, a, one.right, b)
      equal(missing_buffers(found), {})
      local other, other_a, other_b = sides(3, 6, 24)
      inferred.check_same(other.left, converted(inferred.model_of(found.text)[1], "right", other.right, other_a, other_b), {}, "made")
    end)
  end
end)
