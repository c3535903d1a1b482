-- CodeGen: GPT-J with fused queries, keys and values, against the Model Zoo's GPTJModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local decoder = require "converters.shared.decoder"
local gptj = require "converters.shared.gptj"
local classes = require "converters.classes.hf.gptj"
local zoo = require "converters.classes.zoo.decoder"

local between, variant = rules.between, rules.variant
local stacked = actions.qkv.stacked

-- --- keys

-- Models were trained on four devices: the left has the rows of each below each other, queries first, then values, then keys.
local DEVICES = 4

---Parts 0, 1, 2 as 0, 2, 1.
local function swapped(t) return cbk.cat({ t:slice(0, 0, 1), t:slice(0, 2, 3), t:slice(0, 1, 2) }, 0) end

local by_device = actions.pair("qkv of 4 devices", function(t, at)
  local shape = t:shape()
  if shape[1] % (3 * DEVICES) ~= 0 then
    cbk.fail("shape", ("expected rows of q, v and k for %d devices, found %d"):format(DEVICES, shape[1]))
  end
  local parts = t:reshape { DEVICES, 3, shape[1] / (3 * DEVICES), -1 }:permute { 1, 0, 2, 3 }
  return stacked.forward(swapped(parts):reshape(shape), at)
end, function(parts, at)
  local t = stacked.backward(parts, at)
  local shape = t:shape()
  return swapped(t:reshape { 3, DEVICES, shape[1] / (3 * DEVICES), -1 }):permute({ 1, 0, 2, 3 }):reshape(shape)
end, { parts = 3 })

local qkv = { "attn.qkv_proj.weight", actions.qkv.keys "self_attn.proj_%s_dense_layer.weight", by_device }

local now = gptj.body(rules.keys { qkv, rules.only.left("attn.causal_mask", "made from the config") })

-- releases up to 1.9 wrote the causal mask into the Hugging Face file
local then_ = gptj.body(rules.keys { qkv }, { { "attn.causal_mask", actions.buffer.causal_mask "max_position_embeddings" } })

-- --- config

---Each device has whole heads.
local function whole_heads(count, at)
  if count % DEVICES ~= 0 then at:refuse(count, ("a multiple of %d"):format(DEVICES)) end
  return count
end

local config = fields.config {
  fields.fixed.left { model_type = "codegen" },
  fields.fixed.right { use_bias_in_output = true },
  fields.must.right { position_embedding_type = "rotary" },
  { "n_head", "num_heads", { forward = whole_heads, backward = whole_heads } },
  fields.without(gptj.config, { "n_head" }),
  fields.used.left { "n_ctx" }, -- which Hugging Face's code does not read
}

---Hugging Face's code reads null as more rows than a head has.
local function prepare_left(from, given)
  if from.rotary_dim == cbk.null then fields.refuse("rotary_dim", from.rotary_dim, "a number") end
  return gptj.prepare(from, given)
end

local hf = {
  keys = now, config = config, defaults = { right = { rotary_dim = decoder.quarter_of_head } }, prepare = { left = prepare_left },
}
local hf_1_9 = variant(hf, { keys = then_, tool = "2.0.3" })

return { decoder.models {
  model = "codegen", name = "gptj", note = "%s <-> GPTJModel (configured as CodeGen)",
  classes = { with_head = classes.CodeGenForCausalLM, headless = classes.CodeGenModel, right = zoo.GPTJModel },
  place = "transformer", embedding = "wte",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.gptj_to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.0 .. cs-2.9", hf),
  between("hf", "cs-1.7", hf_1_9),
  between("hf", "cs-1.8, cs-1.9", hf_1_9),
} }
