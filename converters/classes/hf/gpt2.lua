-- Hugging Face's GPT-2 and its relatives: modeling_gpt2.py and modeling_gpt_bigcode.py of transformers 4.48, and the code beside the
-- checkpoints of BTLM (modeling_btlm.py), JAIS (modeling_jais.py) and SantaCoder (modeling_gpt2_mq.py).

local class = require "converters.engine.class"

local below, each, conv1d, norm = class.below, class.each, class.conv1d, class.norm
local size, depth, number, positive, rate, boolean, text, any, free =
  class.makers "size depth number positive rate boolean text any free"

local gpt2 = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(50257), n_positions = size(1024, "max_position_embeddings"), n_ctx = free(), n_embd = size(768, "hidden_size"),
  n_layer = depth(12, "num_hidden_layers"), n_head = size(12, "num_attention_heads"), n_inner = size(),
  activation_function = text "gelu_new", resid_pdrop = rate(0.1), embd_pdrop = rate(0.1), attn_pdrop = rate(0.1),
  layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02), scale_attn_weights = boolean(true),
  scale_attn_by_inverse_layer_idx = boolean(false), reorder_and_upcast_attn = boolean(false), use_cache = free(true),
  tie_word_embeddings = boolean(true), add_cross_attention = boolean(false), summary_type = free "cls_index",
  summary_use_proj = free(true), summary_activation = free(), summary_first_dropout = free(0.1),
  summary_proj_to_labels = free(true),
}

local function derived(c) return { inner = c.n_inner and "n_inner" or "4 * n_embd", head_dim = "n_embd / n_head" } end

local learned_positions = { "wpe.weight", { "n_positions", "n_embd" } }
local own_queries = conv1d("attn.c_attn", "n_embd", "3 * n_embd")

---The tensors without a head.
---@param positions TensorNode
---@param attention TensorNode   of queries, keys and values
---@param matrix? fun(name: string, inputs: string, outputs: string): TensorNode   default: conv1d
---@param gate? boolean
local function body(positions, attention, matrix, gate)
  matrix = matrix or conv1d
  return {
    { "wte.weight", { "vocab_size", "n_embd" } },
    positions,
    each("h", "n_layer", {
      norm("ln_1", "n_embd"),
      { "attn.bias", { 1, 1, "n_positions", "n_positions" }, buffer = true },
      { "attn.masked_bias", {}, buffer = true },
      attention,
      matrix("attn.c_proj", "n_embd", "n_embd"),
      norm("ln_2", "n_embd"),
      matrix("mlp.c_fc", "n_embd", "inner"),
      gate and matrix("mlp.c_fc2", "n_embd", "inner"),
      matrix("mlp.c_proj", "inner", "n_embd"),
    }),
    norm("ln_f", "n_embd"),
  }
end

---A class without a head, and one with it.
---@param names { headless: string, with_head: string }
---@param own table<string, ClassField>
---@param tensors fun(c: table): TensorNode   without the head
local function add(names, own, tensors)
  gpt2[names.headless] = class.new(names.headless) { fields = own, derived = derived, tensors = tensors }
  gpt2[names.with_head] = class.new(names.with_head) {
    fields = own, derived = derived,
    tensors = function(c)
      return {
        below("transformer", tensors(c)),
        { "lm_head.weight", { "vocab_size", "n_embd" }, tied = c.tie_word_embeddings and "transformer.wte.weight" },
      }
    end,
  }
end

add({ headless = "GPT2Model", with_head = "GPT2LMHeadModel" }, fields, function() return body(learned_positions, own_queries) end)

-- --- BTLM, JAIS: muP, positions by ALiBi, a gate

local mup = class.extend(fields, {
  activation_function = class.deciding(text "gelu_new", "swiglu"),
  position_embedding_type = class.deciding(text "learned", "alibi"), alibi_scaling = any(), mup_width_scale = positive(1),
  mup_embeddings_scale = number(1),
  mup_output_alpha = number(1), mup_scale_qk_dot_by_d = boolean(false),
})

local function mup_body(c)
  local positions = c.position_embedding_type == "alibi" and { "relative_pe.slopes", { "n_head", 1 }, buffer = true } or learned_positions
  return body(positions, own_queries, conv1d, c.activation_function == "swiglu")
end

add({ headless = "BTLMModel", with_head = "BTLMLMHeadModel" }, mup, mup_body)
add({ headless = "JAISModel", with_head = "JAISLMHeadModel" }, mup, mup_body)

-- --- SantaCoder, StarCoder: one key head for all queries

add({ headless = "GPT2CustomModel", with_head = "GPT2LMHeadCustomModel" },
  class.extend(fields, { attention_head_type = text "multiquery", scale_attn_weight = free(true) }),
  function()
    return body(learned_positions, { conv1d("attn.q_attn", "n_embd", "n_embd"), conv1d("attn.kv_attn", "n_embd", "2 * head_dim") })
  end)

local function linear(name, inputs, outputs) return class.linear(name, inputs, outputs, true) end

add({ headless = "GPTBigCodeModel", with_head = "GPTBigCodeForCausalLM" },
  class.extend(fields, {
    activation_function = text "gelu_pytorch_tanh", multi_query = boolean(true), attention_softmax_in_fp32 = free(true),
    scale_attention_softmax_in_fp32 = free(true),
  }),
  function(c)
    return body(learned_positions, linear("attn.c_attn", "n_embd", c.multi_query and "n_embd + 2 * head_dim" or "3 * n_embd"), linear)
  end)

return class.module(gpt2)
