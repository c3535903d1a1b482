-- BERT and T5 of the Model Zoo that train: names and shapes, gradients, first values, dropout, masks.

local cbk = require "cbk"
local class_tensors = require "converters.engine.class_tensors"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local cstorch = require "cstorch"
local harness = require "harness"
local models = require "cstorch.models"

local describe, it, equal, near = harness.describe, harness.it, harness.equal, harness.near

converters.load()

local BERT = { vocab_size = 40, hidden_size = 16, num_heads = 4, num_hidden_layers = 2, filter_size = 24, max_position_embeddings = 12,
  dropout_rate = 0.0, attention_dropout_rate = 0.0, pooler_nonlinearity = "tanh" }
local T5 = { src_vocab_size = 40, d_model = 16, d_kv = 6, d_ff = 24, num_heads = 4, encoder_num_hidden_layers = 2,
  decoder_num_hidden_layers = 3, dropout_rate = 0.0, relative_attention_num_buckets = 8 }
local BASES = { bert = BERT, ["bert-sequence-classifier"] = BERT, t5 = T5 }
local CLASSIFIER = { num_labels = 3, problem_type = "single_label_classification", task_dropout = 0.0 }

--- Models and the fields over their base that change what is computed.
local SECTIONS = {
  { "bert", {} },
  { "bert", { disable_nsp = true, share_embedding_weights = false, use_ffn_bias_in_mlm = false, norm_first = true,
    use_final_layer_norm = true, embedding_layer_norm = false } },
  { "bert", { mup_base_hidden_size = 4, mup_base_filter_size = 6, embeddings_scale = 3.0, encoder_nonlinearity = "swiglu",
    mlm_nonlinearity = "gelu", use_output_bias_in_mlm = false } },
  { "bert", { mask_padding_in_positional_embed = true, pad_token_id = 1 } },
  { "bert-sequence-classifier", CLASSIFIER },
  { "t5", {} },
  { "t5", { share_embedding_weights = false, encoder_nonlinearity = "geglu", norm_type = "layernorm", extra_ids = 2,
    use_projection_bias_in_attention = true, use_pre_encoder_decoder_layer_norm = false } },
  { "t5", { mup_base_d_model = 4, mup_base_d_ff = 6, share_encoder_decoder_embedding = false } },
}

local function tensors_of(name, own)
  local section = cbk.dict(BASES[name])
  for field, value in pairs(own or {}) do section[field] = value end
  return classes.tensors(section, name, "cs-2.9")
end

local LENGTH, TARGETS = 7, 5

local function batch_of(name)
  cstorch.manual_seed(5)
  local mask = cstorch.tensor({ { 1, 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 0, 0, 0 } }, { dtype = "int64" })
  local out = { input_ids = cstorch.randint(2, 40, { 2, LENGTH }), attention_mask = mask }
  if name == "t5" then
    out.decoder_input_ids = cstorch.randint(0, 40, { 2, TARGETS })
  else
    out.token_type_ids = cstorch.randint(0, 2, { 2, LENGTH })
  end
  return out
end

local function changed(batch, name, column, value)
  local out = {}
  for key, tensor in pairs(batch) do out[key] = tensor end
  out[name] = batch[name]:clone()
  out[name]:select(1, column):fill_(value)
  return out
end

---The sum of all that a model gives.
local function sum_of(...)
  local out
  for _, one in ipairs { ... } do out = out and out + one:square():sum() or one:square():sum() end
  return out
end

local function apart(a, b) return (a - b):abs():amax():item() end

describe("BERT and T5 that train", function()
  for i, case in ipairs(SECTIONS) do
    local name, own = unpack(case)
    it(("have the state dict of the class, and a gradient for each parameter: %s (%d)"):format(name, i), function()
      local list = tensors_of(name, own)
      local model = models.trainable(list, 1)
      local names, wanted = {}, {}
      for key, tensor in cstorch.items(model:state_dict()) do names[key] = tensor:shape() end
      for _, one in ipairs(list) do
        if not (one.buffer or one.optional or one.foreign) then wanted[one.key] = class_tensors.shape(one) end
      end
      equal(names, wanted)
      sum_of(model(batch_of(name))):backward()
      for key, p in model:named_parameters() do assert(p.grad and p.grad:abs():amax():item() > 0, key .. " has no gradient") end
    end)

    it(("train alike in steps that are recorded and in steps that are not: %s (%d)"):format(name, i), function()
      local losses = {}
      for _, backend in ipairs { "CSX", "CPU" } do
        cstorch.testing.reset()
        local model, batch = models.trainable(tensors_of(name, own), 1), batch_of(name)
        local compiled = cstorch.compile(model, { backend = backend })
        local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.01 })
        local loader = cstorch.utils.data.DataLoader(function() return { batch } end, { num_steps = 4 })
        local step = cstorch.compile_step(function(one)
          local loss = sum_of(compiled(one)) * 0.01
          cstorch.amp.optimizer_step(loss, optimizer)
          return loss
        end)
        local found = {}
        local note = cstorch.step_closure(function(loss) found[#found + 1] = loss:item() end)
        for _, one in loader:iter() do note(step(one)) end
        losses[backend] = found
      end
      cstorch.testing.reset()
      for k = 1, 4 do near(losses.CSX[k], losses.CPU[k], 1e-4 * losses.CPU[1]) end
      assert(losses.CPU[4] ~= losses.CPU[1])
    end)
  end

  it("do not see padding, nor a decoder the tokens that follow", function()
    for _, name in ipairs { "bert", "bert-sequence-classifier", "t5" } do
      local model, batch = models.trainable(tensors_of(name, name:find "^bert%-" and CLASSIFIER or {}), 1), batch_of(name)
      local first = model(batch)
      local padded = apart(model(changed(batch, "input_ids", 5, 3)):select(0, 1):slice(0, 0, 3), first:select(0, 1):slice(0, 0, 3))
      equal(padded, 0)
      assert(apart(model(changed(batch, "input_ids", 5, 3)):select(0, 0), first:select(0, 0)) > 0)
      if name == "t5" then
        local later = model(changed(batch, "decoder_input_ids", 3, 1))
        equal(apart(later:slice(1, 0, 3), first:slice(1, 0, 3)), 0)
        assert(apart(later:slice(1, 3, 4), first:slice(1, 3, 4)) > 0)
      end
    end
  end)

  it("give the logits of chosen positions alone", function()
    local model, batch = models.trainable(tensors_of("bert"), 1), batch_of "bert"
    local all = model(batch)
    batch.masked_lm_positions = cstorch.tensor({ { 2, 0, 6 }, { 1, 1, 3 } }, { dtype = "int64" })
    local some = model(batch)
    equal(some:shape(), { 2, 3, 40 })
    near(apart(some:select(0, 0):select(0, 2), all:select(0, 0):select(0, 6)), 0, 1e-6)
    near(apart(some:select(0, 1):select(0, 0), all:select(0, 1):select(0, 1)), 0, 1e-6)
  end)

  it("leave the embedding of padding alone where it is read", function()
    local model, batch = models.trainable(tensors_of("bert", { share_embedding_weights = false }), 1), batch_of "bert"
    sum_of(model(changed(batch, "input_ids", 6, 0))):backward()
    local words = model.values["bert_encoder.embedding_layer.word_embeddings.weight"]
    equal(words.grad:select(0, 0):abs():amax():item(), 0)
  end)

  it("drop elements at the rates of the config, while training only", function()
    local function moves(name, own)
      local list = tensors_of(name, own)
      local model, batch = models.trainable(list, 1), batch_of(name)
      local plain = model:eval()(batch)
      model:train()
      return apart(model(batch), plain) > 0
    end
    for _, name in ipairs { "bert", "t5" } do
      equal(moves(name, {}), false)
      equal(moves(name, { dropout_rate = 0.2 }), true)
    end
    equal(moves("bert", { attention_dropout_rate = 0.2 }), true)
    equal(moves("t5", { relu_dropout_rate = 0.2 }), true)
    equal(moves("bert-sequence-classifier", { num_labels = 3, problem_type = "single_label_classification", task_dropout = 0.5 }), true)
    local function rates(name, own) return models.trainable(tensors_of(name, own), 1).description end
    equal(rates("bert", { dropout_rate = 0.25, attention_dropout_rate = cbk.null }).dropout,
      { embedding = 0.25, attention = 0.25, residual = 0.25, inner = 0.25 })
    equal(rates("t5", { dropout_rate = 0.25, relu_dropout_rate = 0.5 }).encoder.dropout.inner, 0.5)
    equal(rates("t5", { dropout_rate = 0.25, relu_dropout_rate = 0.5 }).decoder.dropout.inner, 0.25)
  end)

  it("name what is not emulated", function()
    harness.raises("position_embedding_type=alibi is not emulated for BERT",
      function() models.trainable(tensors_of("bert", { position_embedding_type = "alibi" }), 1) end)
    harness.raises("position_embedding_type=rotary is not emulated for T5",
      function() models.trainable(tensors_of("t5", { position_embedding_type = "rotary" }), 1) end)
    harness.raises("decoder_nonlinearity=gelu differs from encoder_nonlinearity",
      function() models.trainable(tensors_of("t5", { decoder_nonlinearity = "gelu" }), 1) end)
  end)
end)

describe("First values of BERT and T5", function()
  local TRUNCATED = 0.8796 -- the standard deviation of a normal distribution within ±2 of its own
  local function values(name, own) return models.trainable(tensors_of(name, own), 3).values end
  local function close(t, wanted)
    local std = math.sqrt((t * t):mean():item() - t:mean():item() ^ 2)
    assert(math.abs(std - wanted) < 0.06 * wanted, ("%g is not near %g"):format(std, wanted))
  end
  local BIG = { hidden_size = 64, filter_size = 128, vocab_size = 300, initializer_range = 0.05, share_embedding_weights = false }
  local Q = "bert_encoder.transformer_encoder.layers.1.self_attn.proj_q_dense_layer.weight"
  local WORDS = "bert_encoder.embedding_layer.word_embeddings.weight"
  local PLACES = "bert_encoder.embedding_layer.position_embeddings.embed.weight"

  it("are the same normal distribution for all of BERT, with muP, too", function()
    for _, base in ipairs { false, 16 } do
      local section = { mup_base_hidden_size = base or nil, mup_base_filter_size = base and 32 or nil }
      for field, value in pairs(BIG) do section[field] = value end
      local own = values("bert", section)
      for _, key in ipairs { Q, WORDS, PLACES, "bert_encoder.transformer_encoder.layers.0.ffn.ffn.1.linear_layer.weight",
        "bert_mlm_head.classifier.ffn.0.linear_layer.weight", "bert_encoder.pooler.pooler.ffn.0.linear_layer.weight" } do
        close(own[key], 0.05 * TRUNCATED)
      end
      equal(own["bert_mlm_head.classifier.ffn.0.linear_layer.bias"]:abs():amax():item(), 0)
    end
  end)

  it("are those of the config's initializers, and 0 for padding", function()
    local own = {}
    for field, value in pairs(BIG) do own[field] = value end
    own.default_initializer, own.embeddings_initializer = cbk.dict { name = "normal", std = 0.3 }, cbk.dict { name = "normal", std = 0.7 }
    local found = values("bert", own)
    close(found[Q], 0.3)
    close(found[WORDS], 0.7)
    own.pad_token_id = 1
    found = values("bert", own)
    equal(found[WORDS]:select(0, 1):abs():amax():item(), 0)
    close(found[WORDS], 0.7)
    equal(found[PLACES]:abs():amax():item(), 0)
  end)

  it("of T5 go by the width, and with muP by the depth", function()
    local own = { d_model = 64, d_kv = 16, d_ff = 256, share_embedding_weights = false, src_vocab_size = 300 }
    local plain = values("t5", own)
    own.mup_base_d_model, own.mup_base_d_ff = 16, 64
    local wide = values("t5", own)
    local function both(key, one, other)
      close(plain[key], one)
      close(wide[key], other)
    end
    both("encoder_embeddings.word_embeddings.weight", 1, 1 / 8)
    both("lm_head.weight", 1, 1 / 8)
    both("decoder.layers.1.multihead_attn.proj_q_dense_layer.weight", (64 * 16) ^ -0.5, (64 * 16) ^ -0.5)
    both("decoder.layers.1.self_attn.proj_k_dense_layer.weight", 1 / 8, 1 / 8)
    both("decoder.layers.1.self_attn.proj_output_dense_layer.weight", 1 / 8, 6 / 8)
    both("encoder.layers.1.self_attn.proj_output_dense_layer.weight", 1 / 8, 4 / 8)
    both("encoder.layers.1.ffn.ffn.0.linear_layer.weight", 1 / 8, 1 / 8)
    both("decoder.layers.1.ffn.ffn.1.linear_layer.weight", 1 / 16, 6 / 16)
    close(plain["encoder_embeddings.position_embed_helper.relative_attention_bias.weight"], math.sqrt(2 / (8 + 4)))
  end)
end)
