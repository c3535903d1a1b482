-- T5 and its aliases on small models that are made here: there and back, early releases, embeddings of one tensor, muP, errors.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"

local describe, it = harness.describe, harness.it
local same, fails, run, counted = conversion.same, conversion.fails, conversion.run, conversion.counted

local HEAD = "lm_head.weight"
local DECODER, ENCODER = "decoder_embeddings.word_embeddings.weight", "encoder_embeddings.word_embeddings.weight"

local function hf_config(options)
  local config = cbk.dict {
    model_type = "t5", d_model = 4, d_kv = 2, d_ff = 6, num_heads = 2, num_layers = 1, num_decoder_layers = 2, vocab_size = 5,
    feed_forward_proj = "relu", relative_attention_num_buckets = 3, is_encoder_decoder = true, tie_word_embeddings = true,
    dropout_rate = 0.5, layer_norm_epsilon = 1e-6,
  }
  for name, value in pairs(options or {}) do config[name] = value end
  return config
end

local function hf_checkpoint(gated)
  local out, made = cbk.dict(), 0
  local function add(key, ...)
    out[key] = counted({ ... }, made)
    made = made + 1000
  end
  local function attention(place)
    for _, name in ipairs { "q", "k", "v", "o" } do add(place .. name .. ".weight", 4, 4) end
  end
  add("shared.weight", 5, 4)
  for stack, depth in pairs { encoder = 1, decoder = 2 } do
    out[stack .. ".embed_tokens.weight"] = out["shared.weight"]
    add(stack .. ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", 3, 2)
    for i = 0, depth - 1 do
      local block = ("%s.block.%d.layer."):format(stack, i)
      attention(block .. "0.SelfAttention.")
      add(block .. "0.layer_norm.weight", 4)
      add(block .. "1.layer_norm.weight", 4)
      if stack == "decoder" then
        attention(block .. "1.EncDecAttention.")
        add(block .. "2.layer_norm.weight", 4)
      end
      local dense = block .. (stack == "decoder" and "2" or "1") .. ".DenseReluDense."
      for _, name in ipairs(gated and { "wi_0", "wi_1" } or { "wi" }) do add(dense .. name .. ".weight", 6, 4) end
      add(dense .. "wo.weight", 4, 6)
    end
    add(stack .. ".final_layer_norm.weight", 4)
  end
  add(HEAD, 5, 4)
  return out
end

local function there_and_back(model, release, options)
  local gated = options and options.feed_forward_proj ~= nil
  local hf = hf_checkpoint(gated)
  local config, cs = run(model, "hf", release, hf_config(options), hf)
  local again_config, again = run(model, release, "hf", config, cs)
  same(cbk.count(again), cbk.count(hf), release)
  conversion.equal_tensors(hf, again)
  for name, value in pairs(options or {}) do same(again_config[name], value, name) end
  return config.model, cs.model
end

---A config and a checkpoint of a CS release.
local function of_release(release)
  local from = release == "cs-1.6" and "cs-1.7" or release
  local config, root = run("t5", "hf", from, hf_config(), hf_checkpoint())
  config.model.use_pre_encoder_decoder_layer_norm = from ~= "cs-1.7"
  if release ~= from then config, root = run("t5", from, release, config, root) end
  return config, root
end

---What `f` returns, and the warnings that it gave.
local function told_by(f, ...)
  local result
  local function keep(...) result = f(...) end
  local reported = conversion.warnings(keep, ...)
  return result, reported
end

describe("Converters: T5", function()
  it("there and back, under every name", function()
    for name, zoo_name in pairs { t5 = "t5", ul2 = "t5", ["flan-ul2"] = "t5", transformer = "transformer" } do
      local config, weights = there_and_back(name, "cs-2.4")
      same(config.name, zoo_name)
      assert(weights["encoder_embeddings.position_embed_helper.relative_attention_bias.weight"] ~= nil)
      assert(config.decoder_nonlinearity == "relu" and config.src_max_position_embeddings == 512)
    end
  end)

  it("gated feed-forward parts keep gate and value apart", function()
    local config, weights = there_and_back("t5", "cs-2.9", { feed_forward_proj = "gated-silu", tie_word_embeddings = false })
    assert(config.encoder_nonlinearity == "swiglu" and config.decoder_nonlinearity == "swiglu")
    local gate = "decoder.block.1.layer.2.DenseReluDense.wi_0.weight"
    local function told_without(...)
      local _, reported = told_by(run, "t5", "hf", "cs-2.9", hf_config { feed_forward_proj = "gated-silu", tie_word_embeddings = false },
        conversion.with(hf_checkpoint(true), {}, { ... }))
      return reported
    end
    same(#told_without(), 0)
    fails("1 weight is missing: ", told_without, gate)
    fails("3 weights are missing: ", told_without, gate, "decoder.block.0.layer.2.DenseReluDense.wi_0.weight",
      "encoder.block.0.layer.1.DenseReluDense.wi_0.weight")
    local ffn = "decoder.layers.1.ffn.ffn.0."
    same(weights[ffn .. "linear_layer_for_glu.weight"]:tolist(),
      hf_checkpoint(true)["decoder.block.1.layer.2.DenseReluDense.wi_0.weight"]:tolist())
  end)

  it("early releases, as far as they go", function()
    for _, release in ipairs { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.1" } do there_and_back("t5", release) end
    local config = run("t5", "hf", "cs-1.9", hf_config { feed_forward_proj = "gelu", is_gated_act = true }, hf_checkpoint(true))
    same(config.model.encoder_nonlinearity, "geglu")
  end)

  it("a gate that is said to be none by 0", function()
    local config = run("t5", "hf", "cs-2.9", hf_config { feed_forward_proj = "relu", is_gated_act = 0 }, hf_checkpoint(false))
    same(config.model.encoder_nonlinearity, "relu")
  end)

  it("1.6 has the positions in every block, and nothing but the model", function()
    local config, root = of_release "cs-1.8"
    config.model.encoder_num_hidden_layers, root.global_step = 2, 7
    for _, key in ipairs(cbk.keys(root.model)) do -- a second layer
      if key:find "^encoder%.layers%.0%." then root.model[key:gsub("%.0%.", ".1.", 1)] = root.model[key] end
    end
    local old_config, old = run("t5", "cs-1.8", "cs-1.6", config, root)
    same(old_config.model.use_pre_encoder_decoder_layer_norm, false)
    same(old.model["decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"]:tolist(),
      root.model["relative_position_decoder.relative_attention_bias.weight"]:tolist())
    assert(old.global_step == nil and old.__metadata__ == nil)
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(root.model) do prefixed["model." .. key] = tensor end
    local _, from_prefixed = run("t5", "cs-1.8", "cs-1.6", config, cbk.dict { model = prefixed })
    conversion.equal_tensors(old.model, from_prefixed.model)
    local _, again = run("t5", "cs-1.6", "cs-1.8", old_config, old)
    conversion.equal_tensors(root.model, again.model)
  end)

  it("1.6 needs its feed-forward inputs, and their gates if the activation has any", function()
    local classes = require "cbk.classes"
    for kind, gate in pairs { relu = false, ["gated-gelu"] = true } do
      local config = hf_config { feed_forward_proj = kind }
      local old = run("t5", "cs-1.7", "cs-1.6", run("t5", "hf", "cs-1.7", config, hf_checkpoint(gate)))
      local root, wanted = classes.new(old, "t5", "cs-1.6"), classes.new(config, "t5", "hf")
      local inputs = 0
      for key in cbk.items(root.model) do inputs = inputs + (key:find "DenseReluDense%.wi" and 1 or 0) end
      same(inputs, gate and 6 or 3)
      same(root.model["decoder_token_embedding.weight"]:same(root.model["encoder_token_embedding.weight"]), true)
      local _, back = run("t5", "cs-1.6", "hf", old, root)
      for key, tensor in cbk.items(wanted) do same(back[key]:shape(), tensor:shape(), key) end
    end
  end)

  it("each stack has the layers that its own field counts", function()
    local config, root = of_release "cs-2.0"
    root.model["decoder.layers.1.norm2.weight"] = nil
    fails("1 weight is missing: decoder.layers.1.norm2.weight", run, "t5", "cs-2.0", "hf", config, root)
    config.model.decoder_num_hidden_layers = 1
    fails("decoder_num_hidden_layers=1, but the checkpoint has 'decoder.layers.1.", run, "t5", "cs-2.0", "hf", config, root)
  end)

  it("a decoder is as deep as the encoder where the config does not say", function()
    local hf = hf_config()
    hf.num_decoder_layers = nil
    fails("weights are missing: encoder.block.{1,2}.", run, "t5", "hf", "cs-2.4", conversion.with(hf, { num_layers = 3 }), hf_checkpoint())
    hf.num_decoder_layers = cbk.null
    local shallow = hf_checkpoint()
    for _, key in ipairs(cbk.keys(shallow)) do
      if key:find "^decoder%.block%.1%." then shallow[key] = nil end
    end
    for _, release in ipairs { "cs-1.7", "cs-1.9", "cs-2.9" } do
      local config, root = run("t5", "hf", release, hf, shallow)
      same(config.model.decoder_num_hidden_layers, 1)
      config.model.decoder_num_hidden_layers = nil
      local again, back = run("t5", release, "hf", config, root)
      same(again.num_decoder_layers, 1)
      conversion.equal_tensors(shallow, back)
      root.model["decoder.layers.0.norm1.weight"] = nil
      fails("1 weight is missing: decoder.layers.0.norm1.weight", run, "t5", release, "hf", config, root)
    end
  end)

  it("1.8 may begin keys with model., 1.7 may not", function()
    local config, root = of_release "cs-1.8"
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(root.model) do prefixed["model." .. key] = tensor end
    local old_config, old = run("t5", "cs-1.8", "cs-1.7", config, cbk.dict { model = prefixed })
    conversion.equal_tensors(root.model, old.model)
    fails("position_embedding_type", run, "t5", "cs-1.7", "hf", old_config, cbk.dict { model = prefixed })
  end)
end)

describe("Converters: T5's embeddings, one tensor under three names", function()
  local function upgrade(weights, options)
    local model = cbk.dict { use_t5_layer_norm = true, src_vocab_size = 2, d_model = 1 }
    for name, value in pairs(options or {}) do model[name] = value end
    local config, root = run("t5", "cs-1.9", "cs-2.0", cbk.dict { model = model }, cbk.dict { model = cbk.dict(weights) })
    same(config.model.norm_type, "rmsnorm")
    return root.model
  end
  local a, b = counted({ 2, 1 }, 0), counted({ 2, 1 }, 5)

  it("all take the first one that is there", function()
    for _, prefix in ipairs { "", "model." } do
      local out = upgrade { [prefix .. HEAD] = cbk.null, [prefix .. DECODER] = a, [prefix .. ENCODER] = cbk.null }
      for _, key in ipairs { HEAD, DECODER, ENCODER } do same(out[prefix .. key]:tolist(), { { 1 }, { 2 } }, key) end
    end
    same(upgrade({ [DECODER] = a })[HEAD]:tolist(), { { 1 }, { 2 } })
  end)

  it("a difference is reported", function()
    local out, reported = told_by(upgrade, { [HEAD] = b, [DECODER] = a, [ENCODER] = b })
    same(out[DECODER]:tolist(), { { 6 }, { 7 } })
    assert(#reported == 1 and reported[1]:find(DECODER, 1, true), table.concat(reported, "\n"))
  end)

  it("what the config does not tie stays apart", function()
    local weights = { [HEAD] = cbk.null, [DECODER] = a, [ENCODER] = b }
    local apart = upgrade(weights, { share_embedding_weights = false, share_encoder_decoder_embedding = false })
    assert(apart[HEAD] == cbk.null and apart[DECODER] == a and apart[ENCODER] == b)
    local head = upgrade(weights, { share_encoder_decoder_embedding = false })
    assert(head[HEAD] == a and head[ENCODER] == b)
  end)

  it("a null is read from another name on the way to hugging face", function()
    local config, root = of_release "cs-1.8"
    local embedding = root.model[DECODER]
    root.model[HEAD], root.model[ENCODER] = cbk.null, cbk.null
    local _, hf = run("t5", "cs-1.8", "hf", config, root)
    for _, key in ipairs { HEAD, "shared.weight", "encoder.embed_tokens.weight" } do same(hf[key]:tolist(), embedding:tolist(), key) end
    config.model.share_embedding_weights = false
    fails("'lm_head.weight' is null", run, "t5", "cs-1.8", "hf", config, root)
  end)

  it("the decoder's is always there", function()
    fails("unable to find '" .. DECODER, upgrade, { [HEAD] = a, [ENCODER] = a })
  end)
end)

describe("Converters: T5's muP and errors", function()
  it("mup is folded by T5's own rule", function()
    local mup = { mup_base_d_model = 1, embeddings_alpha = 3, output_logits_alpha = 5, encoder_attention_logits_alpha = 7 }
    local config, root = run("t5", "hf", "cs-2.5", hf_config(), hf_checkpoint())
    for name, value in pairs(mup) do config.model[name] = value end
    local hf = hf_checkpoint()
    local folded_config, folded = run("t5", "cs-2.5", "hf", config, root)
    same(folded_config.tie_word_embeddings, false)
    local q, k = "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.block.0.layer.0.SelfAttention.k.weight"
    local v, o = "decoder.block.1.layer.1.EncDecAttention.v.weight", "decoder.block.1.layer.1.EncDecAttention.o.weight"
    local root_of_kv = 2 ^ 0.5
    local wanted = { -- a width of 4 times the base
      [q] = 0.5 / root_of_kv, [k] = 7 * 0.5 / root_of_kv, [v] = 0.5, [o] = 2, [HEAD] = 5 / 2, ["shared.weight"] = 3 * 2,
      ["decoder.embed_tokens.weight"] = 3 * 2, ["encoder.final_layer_norm.weight"] = 1,
    }
    for key, factor in pairs(wanted) do
      assert(folded[key]:compare(hf[key] * factor, { rtol = 1e-6, atol = 0 }).max_rel < 1e-6, key)
    end
  end)

  it("what one side cannot say is named", function()
    local function convert(release, change, ...)
      local config, root = of_release(release)
      for name, value in pairs(change) do config.model[name] = value end
      fails(..., run, "t5", release, "hf", config, root)
    end
    convert("cs-2.5", { tgt_vocab_size = 6 }, "tgt_vocab_size=6: only the value of src_vocab_size (5)")
    convert("cs-2.5", { relu_dropout_rate = 0.25 }, "relu_dropout_rate=0.25")
    convert("cs-2.5", { decoder_nonlinearity = "gelu" }, "decoder_nonlinearity='gelu'")
    convert("cs-2.5", { position_embedding_type = "learned_absolute" }, "position_embedding_type='learned_absolute'")
    convert("cs-2.2", { mup_base_d_model = 2 }, "muP")
    convert("cs-1.8", { use_t5_layer_norm = false }, "use_t5_layer_norm=false")
    convert("cs-1.7", { use_pre_encoder_decoder_layer_norm = true }, "use_pre_encoder_decoder_layer_norm=true")
    fails("feed_forward_proj='gated-tanh'", run, "t5", "hf", "cs-2.3", hf_config { feed_forward_proj = "gated-tanh" }, hf_checkpoint())
  end)

  it("keys without a place are named", function()
    local hf = hf_checkpoint()
    hf["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = counted({ 3, 2 }, 0)
    fails("EncDecAttention.relative_attention_bias", run, "t5", "hf", "cs-1.9", hf_config(), hf)
    assert(run("t5", "hf", "cs-2.3", hf_config(), hf) ~= nil)
  end)

  it("copies that differ from their originals are reported", function()
    local function told_of(hf)
      local _, reported = told_by(run, "t5", "hf", "cs-2.3", hf_config { num_layers = 1 }, hf)
      return table.concat(reported, "\n")
    end
    local hf = hf_checkpoint()
    local other = "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
    hf[other] = counted({ 3, 2 }, 0)
    hf["shared.weight"] = counted({ 5, 4 }, 0)
    local text = told_of(hf)
    assert(text:find(other .. " (it differs from 'decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight'", 1, true), text)
    hf["shared.weight"] = counted({ 5, 4 }, 1)
    text = told_of(hf)
    assert(text:find("shared.weight (it differs from 'encoder.embed_tokens.weight', which is kept)", 1, true), text)
    hf[other], hf["shared.weight"] = nil, hf["encoder.embed_tokens.weight"]:affine(1, 0) -- equal, and not one
    text = told_of(hf)
    assert(not text:find("differs from 'encoder", 1, true), text)
    local config, root = run("t5", "hf", "cs-2.4", hf_config(), hf)
    root.model[DECODER] = counted({ 5, 4 }, 7)
    local _, reported = told_by(run, "t5", "cs-2.4", "hf", config, root)
    text = table.concat(reported, "\n")
    assert(text:find("two source tensors for 'shared.weight' have different values", 1, true), text)
  end)

  it("a file that has each tensor once has the embeddings under the shared name alone", function()
    local full = hf_checkpoint()
    full[HEAD] = full["shared.weight"]
    local hf = conversion.with(full, {}, { "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD })
    for _, release in ipairs { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.2", "cs-2.9" } do
      local _, want = run("t5", "hf", release, hf_config(), full)
      local got
      same(#conversion.warnings(function() _, got = run("t5", "hf", release, hf_config(), hf, { deduplicated = true }) end), 0, release)
      same(cbk.count(got.model), cbk.count(want.model), release)
      conversion.equal_tensors(want.model, got.model, release)
    end
    local untied = hf_config { tie_word_embeddings = false }
    fails("1 weight is missing: lm_head.weight", run, "t5", "hf", "cs-2.4", untied, hf, { deduplicated = true })
    hf[HEAD], hf["decoder.embed_tokens.weight"] = counted({ 5, 4 }, 70), full["shared.weight"]
    local _, part = run("t5", "hf", "cs-2.4", untied, hf, { deduplicated = true })
    same(part.model[HEAD]:tolist(), hf[HEAD]:tolist())
    same(part.model[ENCODER]:tolist(), full["shared.weight"]:tolist())
  end)

  it("embeddings under the shared name alone are reported as lost if every name could exist", function()
    local hf = hf_checkpoint()
    hf["encoder.embed_tokens.weight"], hf["decoder.embed_tokens.weight"] = nil, nil
    local _, reported = told_by(run, "t5", "hf", "cs-2.3", hf_config(), hf)
    same(#reported, 3)
    assert(reported[1]:find("'shared.weight' differs from 'lm_head.weight', though the config ties them", 1, true), reported[1])
    assert(reported[3]:find("shared.weight (it is known only as a copy of 'decoder.embed_tokens.weight'", 1, true), reported[3])
  end)

  it("embeddings under the shared name alone are all there in a copy as safetensors", function()
    local dir, hf = harness.temp_dir(), hf_checkpoint()
    hf["encoder.embed_tokens.weight"], hf["decoder.embed_tokens.weight"] = nil, nil
    cbk.create(dir .. "/a.bin", { root = hf }):commit()
    cbk.config.save(hf_config { tie_word_embeddings = false }, dir .. "/config.json")
    local function converted(name)
      local status, _, err = harness.cbk(dir, "convert", name, "--model", "t5", "--src-fmt", "hf", "--tgt-fmt", "cs-2.3", "--config",
        "config.json", "-o", name .. "_out")
      same(status, 0)
      return err
    end
    harness.has(converted "a.bin", "'shared.weight' is there without the other names of its tensor: make a copy with `cbk copy CHECKPOINT "
      .. "COPY.safetensors`, where one name is enough, and convert that")
    same((harness.cbk(dir, "copy", "a.bin", "b.safetensors")), 0)
    harness.lacks(converted "b.safetensors", "warning: the output lacks")
    local model = cbk.open(dir .. "/b.safetensors_out/b_to_cs-2.3.mdl").root.model
    same(model[ENCODER]:tolist(), hf["shared.weight"]:tolist())
    same(model[DECODER]:tolist(), hf["shared.weight"]:tolist())
  end)

  it("a factor of one stack's attention without muP is folded into its keys", function()
    local config, root = run("t5", "hf", "cs-2.4", hf_config(), hf_checkpoint())
    local _, before = run("t5", "cs-2.4", "hf", config, root)
    config.model.decoder_attention_logits_alpha = 2
    local _, hf = run("t5", "cs-2.4", "hf", config, root)
    local count = 0
    for key, tensor in cbk.items(before) do
      local is_scaled = key:find "^decoder.*%.k%.weight$" ~= nil
      same(hf[key]:tolist(), tensor:affine(is_scaled and 2 or 1, 0):tolist(), key)
      count = count + (is_scaled and 1 or 0)
    end
    assert(count > 0)
  end)
end)
