-- StarCoder (OctoCoder, WizardCoder, SQLCoder): GPT-2 with Linear layers and one key head for all queries, or one for each,
-- against the Model Zoo's GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local heads = require "converters.vocabulary.heads"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local gpt2 = require "converters.shared.gpt2"
local classes = require "converters.classes.hf.gpt2"
local zoo = require "converters.classes.zoo.decoder"

local fixed, written = fields.fixed, fields.written
local between, variant = rules.between, rules.variant
local absent = values.absent

-- --- keys

local head_by_head = actions.qkv.grouped(actions.qkv.heads, { rotary = false })

---With one key head for all, its rows are below those of the queries; else each head has all three.
local function layout(config) return heads.keys(config) == 1 and actions.qkv.stacked or head_by_head end

local qkv = actions.pair("qkv by the number of key heads", function(t, at) return layout(at.right).forward(t, at) end,
  function(parts, at) return layout(at.right).backward(parts, at) end, { parts = 3 })

local layer = gpt2.layer(rules.keys {
  { "attn.c_attn.weight", actions.qkv.keys "self_attn.proj_%s_dense_layer.weight", qkv },
  { "attn.c_attn.bias",   actions.qkv.keys "self_attn.proj_%s_dense_layer.bias",   qkv },
  rules.only.left("attn.{masked_bias,bias}", "made from the config"),
})

-- --- config

local key_heads = {
  forward = function(is_one, at)
    if is_one then at:set("extra_attention_params", cbk.dict { num_kv_groups = 1 }) end
    return is_one and "multiquery_attention" or "aiayn_attention"
  end,
  backward = function(module, at)
    local groups, count = heads.keys(at.from), heads.queries(at.from)
    if groups ~= 1 and groups ~= count then
      fields.refuse("extra_attention_params.num_kv_groups", groups, ("1, or num_heads (%d),"):format(count))
    end
    return module == "multiquery_attention" and groups == 1
  end,
}

local extra = { backward = function(params, at)
  if absent(params) then return nil end
  at:leave_out_others(params, { num_kv_groups = true })
  if at.from.attention_module == "aiayn_attention" and not absent(params.num_kv_groups) then
    fields.refuse("extra_attention_params.num_kv_groups", params.num_kv_groups, "attention_module=multiquery_attention")
  end
end }

---The Model Zoo's class has one group if it is not given.
local function name_groups(from)
  if from.attention_module == "multiquery_attention" and absent(from.extra_attention_params) then
    from.extra_attention_params = cbk.dict { num_kv_groups = 1 }
  end
end

local config = fields.config {
  fixed.left { model_type = "gpt_bigcode" },
  written.left {
    architectures = { "GPTBigCodeForCausalLM" }, bos_token_id = 0, eos_token_id = 0, inference_runner = 0, max_batch_size = cbk.null,
    max_sequence_length = cbk.null, summary_type = "cls_index", summary_use_proj = true, transformers_version = "4.28.1",
    use_cache = true, validate_runner_input = true,
  },
  fixed.right {
    position_embedding_type = "learned", use_projection_bias_in_attention = true, use_ffn_bias_in_attention = true, use_ffn_bias = true,
  },
  written.right { loss_scaling = "num_tokens" },
  { "multi_query", "attention_module", key_heads },
  { false,         "extra_attention_params", extra },
  gpt2.config,
}

local one_rate = fields.same_as "dropout_rate"
local softmax = { "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "attention_softmax_fp32" }

---@param name string   the left's field for the type of the softmax
---@param more? table   config rules
local function hf(name, is_2_0, more)
  local other = name == softmax[1] and softmax[2] or softmax[1]
  return {
    keys = gpt2.body(layer, is_2_0), mup = "gpt", config = fields.config {
      { name, "attention_softmax_fp32" }, more or false, config, fields.drop.left { [other] = true },
    },
    defaults = {
      left = { [softmax[1]] = fields.none, [softmax[2]] = fields.none },
      right = { [softmax[3]] = fields.none, embedding_dropout_rate = one_rate, attention_dropout_rate = one_rate },
    },
    prepare = { left = decoder.inner_size, right = name_groups },
  }
end

return { decoder.models {
  model = "starcoder", note = "%s <-> GPT2LMHeadModel (configured as StarCoder)",
  classes = { with_head = classes.GPTBigCodeForCausalLM, headless = classes.GPTBigCodeModel, right = zoo.GPT2LMHeadModel },
  aliases = { octocoder = "starcoder", wizardcoder = "gpt2", sqlcoder = "starcoder" },
  place = "transformer", embedding = "wte",
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf(softmax[1])),
  between("hf", "cs-2.0", variant(hf(softmax[2], true, fixed.right { use_position_embedding = true }), { tool = "2.0.3" })),
} }
