-- Conversions that compute with 16-bit weights: in float32, and rounded once; a sum that 16 bits would round is written as float32.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

---Random tensors in place of those of a model, of a dtype; tied ones stay tied.
local function random(root, dtype)
  local out, made, seed = cbk.dict(), {}, 0
  for key, tensor in cbk.items(root) do
    local id = ("%s %s"):format(tensor:stats().sum, table.concat(tensor:shape(), "x"))
    seed = seed + 1
    made[id] = made[id] or cbk.randn(tensor:shape(), { std = 0.5, seed = seed, dtype = "float32" }):to(dtype)
    out[key] = made[id]
  end
  return out
end

local function same_bits(want, got, what)
  equal(got.dtype, want.dtype, what)
  equal(want:bits():compare(got:bits()).different, 0, what)
end

local function converted(...)
  local config, root
  local arguments = { ... }
  conversion.warnings(function() config, root = conversion.run(unpack(arguments)) end)
  return config, root
end

describe("Gemma 2's norms", function()
  local config, root = tiny.model(tiny.newest_ways().gemma2)
  local norms = { ["model.layers.0.input_layernorm.weight"] = "transformer_decoder.layers.0.norm1.weight",
    ["model.layers.0.post_feedforward_layernorm.weight"] = "transformer_decoder.layers.0.norm3_post.weight",
    ["model.norm.weight"] = "ln_f.weight" }

  for dtype, written in pairs { bfloat16 = "float32", float16 = "float32", float32 = "float32", float64 = "float64" } do
    it(dtype .. ": 1 + w is not rounded to 16 bits", function()
      local hf = random(root, dtype)
      for _, format in ipairs { "cs-2.3", "cs-2.9" } do
        local cs_config, cs = converted("gemma2", "hf", format, config, hf)
        for left, right in pairs(norms) do same_bits(hf[left]:to(written) + 1, cs.model[right], right) end
        equal(cs.model["embedding_layer.word_embeddings.weight"].dtype, dtype)
        local back_config, back = converted("gemma2", format, "hf", cs_config, cs)
        equal(back_config.torch_dtype, dtype)
        for key, tensor in cbk.items(dtype:find "16" and hf or {}) do same_bits(tensor, back[key], key) end
      end
    end)
  end

  it("stay as they are where the sum is exact, and come back", function()
    local hf = random(root, "bfloat16")
    local first = "model.layers.0.input_layernorm.weight"
    hf[first] = cbk.tensor({ 0, 0.5, -0.25, 1, 0, 3, -1, 0.0078125 }, { dtype = "bfloat16" })
    local cs_config, cs = converted("gemma2", "hf", "cs-2.9", config, hf)
    equal({ cs.model[norms[first]].dtype, cs.model["ln_f.weight"].dtype }, { "bfloat16", "float32" })
    local _, back = converted("gemma2", "cs-2.9", "hf", cs_config, cs)
    same_bits(hf[first], back[first])
  end)

  it("of the Model Zoo, float32 beside 16-bit weights or 16-bit ones, lose nothing towards Hugging Face", function()
    local cs_config, cs = converted("gemma2", "hf", "cs-2.9", config, random(root, "bfloat16"))
    local key, left = "transformer_decoder.layers.0.norm1.weight", "model.layers.0.input_layernorm.weight"
    for _, list in ipairs { { 1 + 2 ^ -20, 1.7, 0.3, 1, 1, 1, 1, 1 }, { 0.01171875, 1.7, 0.3, 1, 1, 1, 1, 1 } } do
      for _, dtype in ipairs { "float32", "bfloat16" } do
        cs.model[key] = cbk.tensor(list, { dtype = dtype })
        local _, back = converted("gemma2", "cs-2.9", "hf", cs_config, cs)
        conversion.same(back[left]:to("float64"):tolist(), (cs.model[key]:to "float64" - 1):to("float32"):tolist())
      end
    end
  end)
end)

describe("muP", function()
  local key, head = "transformer.h.0.attn.c_attn.weight", "lm_head.weight"
  for _, dtype in ipairs { "bfloat16", "float16" } do
    it(dtype .. " is multiplied in float32, and rounded once", function()
      local config, root = tiny.model(tiny.newest_ways().gpt2)
      local hf = random(root, dtype)
      local cs_config, cs = converted("gpt2", "hf", "cs-2.4", config, hf)
      for name, value in pairs { mup_base_hidden_size = 3, embeddings_scale = 9.7, attention_logits_alpha = 1.3, output_logits_alpha = 0.7,
        scale_qk_dot_by_d = true } do cs_config.model[name] = value end
      local _, back = converted("gpt2", "cs-2.4", "hf", cs_config, cs)
      local function times(tensor, factor) return (tensor:to "float32" * factor):to(dtype) end
      same_bits(times(hf[key]:slice(1, 8, 16), 1.3 * 4 ^ -0.5), back[key]:slice(1, 8, 16))
      same_bits(hf[key]:slice(1, 0, 8), back[key]:slice(1, 0, 8))
      same_bits(times(hf[head], 0.7 / (8 / 3)), back[head])
      same_bits(times(hf["transformer.wte.weight"], 9.7), back["transformer.wte.weight"])
    end)
  end
end)

describe("Arithmetic on 16-bit tensors", function()
  it("is rounded once, at the end of several operations, views between them included", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local t = cbk.randn({ 8, 6 }, { std = 1, seed = 3, dtype = "float32" }):to(dtype)
      local wide = t:to "float32"
      same_bits((wide * 0.37 + 1.9):to(dtype), t * 0.37 + 1.9, dtype)
      same_bits(((wide * 0.37):transpose(0, 1):slice(0, 1, 4):reshape { 24 } + 1.9):to(dtype),
        (t * 0.37):transpose(0, 1):slice(0, 1, 4):reshape { 24 } + 1.9, dtype)
      same_bits((wide * 0.37 + wide * 1.1):to(dtype), t * 0.37 + t * 1.1, dtype)
      is_true((wide * 0.37 + 1.9):to(dtype):compare((t * 0.37):to("float32"):to(dtype) + 1.9).different > 0, "these numbers show it")
    end
  end)
end)

describe("Names of activations that the way back does not give", function()
  local cases = {
    { "gemma2", "cs-2.9", "hidden_activation", "gelu_pytorch_tanh" }, { "gemma2", "cs-2.9", "hidden_activation", "gelu" },
    { "gpt2", "cs-2.4", "activation_function", "gelu_python" }, { "gpt2", "cs-2.4", "activation_function", "gelu_new" },
    { "gptj", "cs-2.9", "activation_function", "gelu_accurate" }, { "bert", "cs-2.9", "hidden_act", "gelu_pytorch_tanh" },
    { "vit", "cs-2.9", "hidden_act", "gelu_pytorch_tanh" }, { "dinov2", "cs-2.9", "hidden_act", "gelu_python" },
    { "llava", "cs-2.9", "hidden_act", "gelu_python", "image_model" },
  }
  for _, case in ipairs(cases) do
    local model, format, field, name, part = unpack(case, 1, 5)
    it(("come back: %s, %s=%s"):format(model, field, name), function()
      local config, root = tiny.model(tiny.newest_ways()[model] or tiny.composite(model))
      local own = part and config[part] or config
      own[field] = name
      local cs_config, cs = converted(model, "hf", format, config, root)
      local back = converted(model, format, "hf", cs_config, cs)
      equal((part and back[part] or back)[field], name)
      if model == "gpt2" then cs_config, cs = converted(model, "cs-2.4", "cs-2.5", cs_config, cs) end
      equal((part and back[part] or converted(model, model == "gpt2" and "cs-2.5" or format, "hf", cs_config, cs))[field], name)
    end)
  end

  it("are the default where the config had none", function()
    local config, root = tiny.model(tiny.newest_ways().gemma2)
    config.hidden_activation = nil
    local cs_config, cs = converted("gemma2", "hf", "cs-2.9", config, root)
    equal(converted("gemma2", "cs-2.9", "hf", cs_config, cs).hidden_activation, "gelu_pytorch_tanh")
  end)

  it("are those of the Model Zoo's config if that was changed, or if the checkpoint keeps none of them", function()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    config.activation_function = "gelu_python"
    local cs_config, cs = converted("gpt2", "hf", "cs-2.4", config, root)
    cs_config.model.nonlinearity = "relu"
    equal(converted("gpt2", "cs-2.4", "hf", cs_config, cs).activation_function, "relu")
    cs_config.model.nonlinearity = "gelu"
    for _, odd in ipairs { "gelu_new", 3, cbk.null, cbk.dict {} } do
      cs.__metadata__[1].hf_config.activation_function = odd
      equal(converted("gpt2", "cs-2.4", "hf", cs_config, cs).activation_function, "gelu")
    end
  end)
end)

describe("Sums and products of layouts", function()
  it("in 16 bits are warned of, once, where they are rounded", function()
    local keys, rules = require "converters.engine.keys", require "converters.engine.rules"
    local layouts = require "converters.vocabulary.layouts"
    local function warned(action, dtype, side)
      local source = cbk.dict()
      for i = 0, 2 do source[("layers.%d.w"):format(i)] = cbk.randn({ 4, 2 }, { seed = i, dtype = "float32" }):to(dtype) end
      return #conversion.warnings(function()
        keys.convert(rules.keys { { "layers.N.w", "layers.N.w", action } }, side, source, { left = {}, right = {} })
      end)
    end
    for _, case in ipairs {
      { layouts.plus(1), "bfloat16", 1 }, { layouts.plus(1), "float16", 1 }, { layouts.plus(1), "float32", 0 },
      { layouts.times(0.3), "bfloat16", 1 }, { layouts.times(-0.3), "float16", 1 }, { layouts.times(0.3), "float64", 0 },
      { layouts.times(0.125), "bfloat16", 0 }, { layouts.times(-4), "float16", 0 },
    } do
      local action, dtype, count = unpack(case)
      for _, side in ipairs { "left", "right" } do equal(warned(action, dtype, side), count, dtype .. " " .. action.name) end
    end
  end)
end)
