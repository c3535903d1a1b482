-- Fields that a release does not have yet: refused, or reported, on every way into it; what goes without saying there is not.

local cbk = require "cbk"
local conversion = require "conversion"
local convert = require("cbk.converters").convert
local harness = require "harness"
local trainer = require "converters.modelzoo.trainer"

local describe, it = harness.describe, harness.it

local decoder = {
  vocab_size = 5, hidden_size = 16, num_heads = 4, num_hidden_layers = 1, filter_size = 8, max_position_embeddings = 8,
  rotary_dim = 4, norm_type = "rmsnorm", nonlinearity = "swiglu", position_embedding_type = "rotary",
}
local llama = {
  model_type = "llama", vocab_size = 5, hidden_size = 16, num_attention_heads = 4, num_hidden_layers = 1, intermediate_size = 8,
  max_position_embeddings = 8,
}
local neox = { model_type = "gpt_neox", hidden_size = 16, rotary_pct = 0.5, num_attention_heads = 4, num_hidden_layers = 1, vocab_size = 5 }

local function with(base, more)
  local out = cbk.dict()
  for _, one in ipairs { base, more } do
    for name, value in pairs(one) do out[name] = value end
  end
  return out
end

---The warnings and the model section of a config that goes from one format to another.
local function converted(model, src, tgt, section)
  local config = src == "hf" and section or cbk.dict { model = section }
  local out
  local reported = conversion.warnings(function() out = convert.config(conversion.job(model, src, tgt), config) end)
  return reported, tgt == "hf" and out or trainer.model(out)
end

describe("Fields newer than the release", function()
  local refused = {
    -- model, from, to, a config's field, what the message names
    { "llama", "cs-2.9", "cs-2.2", { attention_logits_alpha = 2 }, "attention_logits_alpha=2: only 1" },
    { "llama", "cs-2.1", "cs-2.0", { attention_sliding_window_length = 7 }, "attention_sliding_window_length=7: only null" },
    { "llama", "hf", "cs-1.9", { num_key_value_heads = 2 }, "num_key_value_heads=2: only as many as num_attention_heads" },
    { "llama", "hf", "cs-2.2", { head_dim = 8 },
      "head_dim=8: only a value that follows from hidden_size and the number of heads, before release 2.3, is" },
    { "gpt2", "cs-2.3", "cs-2.2", { mup_base_hidden_size = 8 }, "mup_base_hidden_size=8: only null" },
    { "gpt2", "cs-1.9", "cs-1.8", { position_embedding_type = "alibi" }, "position_embedding_type='alibi': only 'learned' or 'fixed'" },
    { "gpt-neox", "hf", "cs-2.0", { rope_scaling = { type = "linear", factor = 2 } },
      "only null or of type 'default', before release 2.1, is supported; to keep it, convert to cs-2.1" },
    { "llava", "cs-2.3", "cs-2.2", { text_model = { attention_logits_alpha = 2 } }, "attention_logits_alpha=2: only 1" },
    { "bert", "cs-2.3", "cs-2.2", { attention_logits_alpha = 2 }, "attention_logits_alpha=2: only 1" },
    { "t5", "cs-2.9", "cs-2.1", { mup_base_d_model = 8 }, "mup_base_d_model=8: only null" },
    { "dpo", "cs-2.3-dpo", "cs-2.2-dpo", { model_name = "llama", moe_params = { num_experts = 2 } }, "only one expert" },
  }
  for _, case in ipairs(refused) do
    local model, src, tgt, said, message = unpack(case)
    it(("%s, %s to %s: %s"):format(model, src, tgt, next(said)), function()
      local base = src ~= "hf" and decoder or model == "llama" and llama or neox
      conversion.fails(message, converted, model, src, tgt, with(base, said))
    end)
  end

  it("what the original converter lets through is reported once, and kept between releases", function()
    local grouped = { attention_module = "multiquery_attention", extra_attention_params = { num_kv_groups = 2 }, rope_theta = 500000 }
    local reported, out = converted("llama", "cs-2.3", "cs-1.9", with(decoder, grouped))
    local text = table.concat(reported, "\n")
    for _, field in ipairs { "rope_theta=500000 is kept", 'extra_attention_params={"num_kv_groups": 2} is kept' } do
      local _, count = text:gsub(field:gsub("%p", "%%%0"), "")
      harness.equal(count, 1, text)
    end
    harness.equal({ out.rope_theta, out.extra_attention_params.num_kv_groups }, { 500000, 2 })
  end)

  local longer, none = "before release 2.3 a window is one token longer", "before release 2.2 attention has no window"
  for _, case in ipairs {
    { "hf", "cs-2.1", none }, { "cs-2.1", "hf", none }, { "cs-2.1", "cs-2.2", none }, { "cs-2.2", "cs-2.1", none },
    { "hf", "cs-2.2", longer }, { "cs-2.2", "hf", longer }, { "cs-2.2", "cs-2.3", longer }, { "cs-2.3", "cs-2.2", longer },
    { "cs-2.2", "cs-2.9", longer }, { "hf", "cs-2.3" }, { "cs-2.3", "hf" }, { "cs-2.3", "cs-2.4" },
  } do
    it(("a window that means something else is kept and reported: %s to %s"):format(case[1], case[2]), function()
      local section = case[1] == "hf" and with(llama, { model_type = "mistral", sliding_window = 7, num_key_value_heads = 4 })
        or with(decoder, { attention_sliding_window_length = 7, use_ffn_bias = false, use_projection_bias_in_attention = false,
          use_ffn_bias_in_attention = false, use_bias_in_output = false, share_embedding_weights = false })
      local reported, out = converted("mistral", case[1], case[2], section)
      local text = table.concat(reported, "\n")
      harness.equal(out.sliding_window or out.attention_sliding_window_length, 7)
      local check = case[3] and harness.has or harness.lacks
      check(text, case[3] or "attention_sliding_window_length=7")
    end)
  end

  -- what the model computes with these fields, and the oldest release that knows them
  local theta, linear = { rope_theta = 500000 }, { type = "linear", factor = 2 }
  local yarn = { type = "yarn", factor = 4, original_max_position_embeddings = 8 }
  local llama3 = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8 }
  local longrope = { type = "longrope", factor = 1, short_factor = { 1, 1 }, long_factor = { 2, 2 } }
  local scalings = {
    { theta, "2.1", "2.0", "rope_theta=500000" }, { { rope_parameters = theta }, "2.1", "2.0", "rope_theta=500000" },
    { { rope_scaling = linear }, "2.1", "2.0", "rope_scaling=", "pos_scaling_factor=2" },
    { { rope_scaling = yarn }, "2.3", "2.2", "pos_scaling_type='yarn'" },
    { { rope_scaling = yarn }, "2.3", "1.9", "rope_scaling=", "pos_scaling_type='yarn'" },
    { { rope_scaling = llama3 }, "2.3", "2.1", "pos_scaling_type='llama3'" },
    { { rope_parameters = longrope }, "2.4", "2.3", "pos_scaling_type='longrope': only 'linear', 'yarn' or 'llama3'" },
    { { rope_scaling = longrope }, "2.4", "2.1", "pos_scaling_type='longrope': only 'linear', 'yarn' or 'llama3'" },
  }
  for _, case in ipairs(scalings) do
    local said, knows, older, refusal, stays = unpack(case)
    it(("positions that release %s does not know: %s"):format(older, refusal), function()
      conversion.fails(refusal, converted, "llama", "hf", "cs-" .. older, with(llama, said))
      local reported, out = converted("llama", "hf", "cs-" .. knows, with(llama, said))
      assert(not table.concat(reported):find "before release", table.concat(reported))
      reported = table.concat((converted("llama", "cs-" .. knows, "cs-" .. older, out)), "\n")
      assert(reported:find(stays or refusal:match "^[^:]*", 1, true) and reported:find "computes something else", reported)
    end)
  end

  it("positions are refused at the end of a chain that starts with Hugging Face, too", function()
    local chain = conversion.job("llama", "hf", "cs-2.3")
    chain.path[2] = conversion.job("llama", "cs-2.3", "cs-2.2").path[1]
    conversion.fails("cs-2.3 -> cs-2.2: cannot convert the config with pos_scaling_type='yarn'", convert.config, chain,
      with(llama, { rope_scaling = yarn }))
  end)

  it("1.9 has grouped keys in configs, but no way to Hugging Face for them", function()
    local config, hf = cbk.dict {
      model_type = "llama", hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, num_hidden_layers = 1, vocab_size = 5,
      intermediate_size = 8, max_position_embeddings = 8,
    }, conversion.checkpoint {
      { "model.embed_tokens.weight", 5, 16 }, { "lm_head.weight", 5, 16 }, { "model.norm.weight", 16 },
      { "model.layers.0.input_layernorm.weight", 16 }, { "model.layers.0.post_attention_layernorm.weight", 16 },
      { "model.layers.0.self_attn.q_proj.weight", 16, 16 }, { "model.layers.0.self_attn.k_proj.weight", 8, 16 },
      { "model.layers.0.self_attn.v_proj.weight", 8, 16 }, { "model.layers.0.self_attn.o_proj.weight", 16, 16 },
      { "model.layers.0.mlp.up_proj.weight", 8, 16 }, { "model.layers.0.mlp.gate_proj.weight", 8, 16 },
      { "model.layers.0.mlp.down_proj.weight", 16, 8 },
    }
    conversion.warnings(function()
      local cs_config, cs = conversion.run("llama", "hf", "cs-2.0", config, hf)
      conversion.equal_tensors(hf, select(2, conversion.run("llama", "cs-2.0", "hf", cs_config, cs)))
      local old_config, old = conversion.run("llama", "cs-2.0", "cs-1.9", cs_config, cs)
      conversion.fails("extra_attention_params={\"num_kv_groups\": 2}: only null", conversion.run, "llama", "cs-1.9", "hf", old_config, old)
    end)
  end)

  it("neither usual values nor those that the newer release knows are reported", function()
    local usual = {
      rope_theta = 10000, pos_scaling_factor = cbk.float(1), pos_scaling_type = "yarn", extra_attention_params = { num_kv_groups = 4 },
      attention_module = "aiayn_attention", mup_base_hidden_size = cbk.null, moe_params = { num_experts = 1 }, norm_first_sandwich = false,
    }
    for _, way in ipairs { { "cs-2.9", "cs-1.9" }, { "cs-1.9", "cs-2.9" } } do
      usual.use_rms_norm = way[1] == "cs-1.9" or nil
      local reported = table.concat((converted("llama", way[1], way[2], with(decoder, usual))), "\n")
      assert(not reported:find "came with", reported)
    end
    local old = with(decoder, { rope_theta = 5, use_rms_norm = true })
    assert(not table.concat((converted("llama", "cs-1.9", "cs-2.0", old))):find "came with")
    old.use_rms_norm = nil
    conversion.fails("'norm_type' and the field 'use_rms_norm' (by its default) both give 'norm_type'", converted, "llama", "cs-1.9",
      "cs-2.0", old)
    local reported = converted("llama", "hf", "cs-1.9", with(llama, { num_key_value_heads = 4, rope_scaling = cbk.null }))
    assert(not table.concat(reported):find "came with")
  end)
end)
