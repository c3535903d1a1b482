-- Models of the Model Zoo that train: names and shapes, gradients, first values, dropout, and keys and values that are kept.

local causal_loss = require "cstorch.models.causal_loss"
local cbk = require "cbk"
local class_tensors = require "converters.engine.class_tensors"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local cstorch = require "cstorch"
local decoder = require "cstorch.models.decoder"
local harness = require "harness"
local models = require "cstorch.models"
local weights = require "cstorch.models.weights"

local describe, it, equal = harness.describe, harness.it, harness.equal

converters.load()

local BASE = { vocab_size = 40, hidden_size = 16, num_heads = 4, num_hidden_layers = 3, filter_size = 24, max_position_embeddings = 32,
  dropout_rate = 0.0, attention_dropout_rate = 0.0 }
local function groups(count) return cbk.dict { num_kv_groups = count } end

--- Sections that differ in what is computed: their model, and the fields over BASE.
local SECTIONS = {
  { "gpt2", { share_embedding_weights = true, nonlinearity = "gelu" } },
  { "gpt2", { share_embedding_weights = false, scale_qk_dot_by_layer_idx = true, use_bias_in_output = true } },
  { "llama", { position_embedding_type = "rotary", rotary_dim = 4, norm_type = "rmsnorm", nonlinearity = "swiglu", use_ffn_bias = false,
    use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, share_embedding_weights = false,
    attention_module = "multiquery_attention", extra_attention_params = groups(2) } },
  { "gptj", { rotary_dim = 2, use_bias_in_output = true, share_embedding_weights = false } },
  { "gpt-neox", { rotary_dim = 2, use_untied_layer_norm = true, share_embedding_weights = false } },
  { "falcon", { rotary_dim = 4, use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, use_ffn_bias = false,
    attention_module = "multiquery_attention", extra_attention_params = groups(1) } },
  { "bloom", { position_embedding_type = "alibi", embedding_layer_norm = true } },
  { "mpt", { position_embedding_type = "alibi", norm_type = "biasless-layernorm", use_ffn_bias = false,
    use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false } },
  { "gemma2", { position_embedding_type = "rotary", rotary_dim = 4, norm_type = "rmsnorm", nonlinearity = "geglu", use_ffn_bias = false,
    use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, norm_first_sandwich = true, embeddings_scale = 4.0,
    attention_logit_softcapping = 50.0, final_logit_softcapping = 30.0, attention_sliding_window_length = 3,
    sliding_window_every_other_decoder_layer = true } },
  { "mixtral", { position_embedding_type = "rotary", rotary_dim = 4, norm_type = "rmsnorm", nonlinearity = "swiglu", use_ffn_bias = false,
    use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, share_embedding_weights = false,
    attention_sliding_window_length = 4, moe_params = cbk.dict { num_experts = 4, top_k = 2 } } },
}

local function section_of(own)
  local section = cbk.dict(BASE)
  for name, value in pairs(own) do section[name] = value end
  return section
end

local function tensors_of(name, own) return classes.tensors(section_of(own), name, "cs-2.5") end

local function random_ids(rows, length)
  cstorch.manual_seed(5)
  return cstorch.randint(0, BASE.vocab_size, { rows, length })
end

describe("Models that train", function()
  for _, case in ipairs(SECTIONS) do
    local name, own = unpack(case)
    it(("have the state dict of the class, and a gradient for each parameter: %s"):format(name), function()
      local list = tensors_of(name, own)
      local model = models.trainable(list, 1)
      local names, wanted = {}, {}
      for key, tensor in cstorch.items(model:state_dict()) do names[key] = tensor:shape() end
      for _, one in ipairs(list) do
        if not (one.optional or one.foreign) then wanted[one.key] = class_tensors.shape(one) end
      end
      equal(names, wanted)
      local ids = random_ids(2, 7)
      model(ids):sum():backward()
      for key, p in model:named_parameters() do assert(p.grad and p.grad:abs():amax():item() > 0, key .. " has no gradient") end
    end)

    it(("compute a text in parts as they compute it at once: %s"):format(name), function()
      local list = tensors_of(name, own)
      local model, ids = models.trainable(list, 1), random_ids(2, 9)
      local whole, cache, parts = model:eval()(ids), { length = 0 }, {}
      cstorch.no_grad(function()
        for _, bounds in ipairs { { 0, 4 }, { 4, 5 }, { 5, 9 } } do
          parts[#parts + 1] = decoder.forward(model.description, weights.new(model.values), ids:slice(1, unpack(bounds)), { cache = cache })
        end
      end)
      equal(cache.length, 9)
      assert((cstorch.cat(parts, 1) - whole):abs():amax():item() < 1e-5)
    end)
  end

  it("train alike in steps that are recorded and in steps that are not", function()
    for _, case in ipairs(SECTIONS) do
      local list, losses = tensors_of(unpack(case)), {}
      for _, backend in ipairs { "CSX", "CPU" } do
        cstorch.testing.reset()
        local model, ids = models.trainable(list, 1), random_ids(2, 7)
        local compiled = cstorch.compile(model, { backend = backend })
        local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.01 })
        local batch = { input_ids = ids, labels = ids, attention_mask = cstorch.ones({ 2, 7 }) }
        local loader = cstorch.utils.data.DataLoader(function() return { batch } end, { num_steps = 4 })
        local step = cstorch.compile_step(function(one)
          local loss = causal_loss.of(compiled, one, { by = "num_tokens", weight = 1, balance = 0.01 })
          cstorch.amp.optimizer_step(loss, optimizer)
          return loss
        end)
        local own = {}
        local note = cstorch.step_closure(function(loss) own[#own + 1] = loss:item() end)
        for _, one in loader:iter() do note(step(one)) end
        losses[backend] = own
      end
      cstorch.testing.reset()
      for i = 1, 4 do harness.near(losses.CSX[i], losses.CPU[i], 1e-5) end
      assert(losses.CPU[4] < losses.CPU[1] - 0.1, case[1])
    end
  end)

  it("have norms that do not decay, and tied weights once", function()
    local model = models.trainable(tensors_of("gpt2", { share_embedding_weights = true }), 1)
    local decaying = {}
    for _, group in ipairs(cstorch.optim.configure_param_groups(model, { weight_decay = 0.1 })) do
      for _, name in ipairs(group.param_names) do decaying[name] = group.weight_decay > 0 end
    end
    equal(decaying["transformer_decoder.layers.0.norm1.weight"], false)
    equal(decaying["ln_f.weight"], false)
    equal(decaying["transformer_decoder.layers.0.self_attn.proj_q_dense_layer.bias"], false)
    equal(decaying["transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight"], true)
    equal(decaying["embedding_layer.word_embeddings.weight"], true)
    equal(decaying["lm_head.weight"], nil)
    equal(model.values["lm_head.weight"], model.values["embedding_layer.word_embeddings.weight"])
  end)
end)

---The standard deviation and the largest element of a tensor.
local function spread(t) return math.sqrt((t * t):mean():item() - t:mean():item() ^ 2), t:abs():amax():item() end
local function near(a, b, share) assert(math.abs(a - b) < (share or 0.03) * b, ("%g is not near %g"):format(a, b)) end

describe("First values", function()
  local BIG = { hidden_size = 64, filter_size = 256, vocab_size = 300, share_embedding_weights = false }
  local TRUNCATED = 0.8796 -- the standard deviation of a normal distribution within ±2 of its own
  local function values(own)
    local fields = { initializer_range = 0.05 }
    for _, more in ipairs { BIG, own or {} } do
      for name, value in pairs(more) do fields[name] = value end
    end
    return models.trainable(tensors_of("gpt2", fields), 3).values
  end
  local function layer(name) return "transformer_decoder.layers.1." .. name end
  local Q, OUT = layer "self_attn.proj_q_dense_layer.weight", layer "self_attn.proj_output_dense_layer.weight"
  local UP, DOWN = layer "ffn.ffn.0.linear_layer.weight", layer "ffn.ffn.1.linear_layer.weight"

  it("are normal within two standard deviations, those of outputs smaller by depth", function()
    local own = values()
    for _, key in ipairs { "embedding_layer.word_embeddings.weight", Q, UP } do
      local std, largest = spread(own[key])
      near(std, 0.05 * TRUNCATED)
      assert(largest <= 0.1 and largest > 0.095, largest)
    end
    near(spread(own[OUT]), 0.05 * TRUNCATED / math.sqrt(2 * 3))
    near(spread(own[DOWN]), 0.05 * TRUNCATED / math.sqrt(2 * 3))
    near(spread(own["lm_head.weight"]), 0.05)
    equal(own["ln_f.weight"]:tolist()[1], 1)
    equal(own[layer "self_attn.proj_q_dense_layer.bias"]:abs():amax():item(), 0)
  end)

  it("are those of the config's initializers", function()
    local own = values { initializer = cbk.dict { name = "normal", std = 0.3 },
      embedding_initializer = cbk.dict { name = "uniform", a = -1.0, b = 3.0 },
      output_layer_initializer = "xavier_uniform", ffn_initializer = cbk.dict { name = "truncated_normal", std = 0.2, a = -0.1, b = 0.1 } }
    near(spread(own[Q]), 0.3)
    near(spread(own[OUT]), math.sqrt(6 / 128) / math.sqrt(3))
    near(spread(own[DOWN]), math.sqrt(6 / 320) / math.sqrt(3))
    local std, largest = spread(own[UP])
    near(std, 0.2 * 0.2835) -- within half a standard deviation
    assert(largest <= 0.1)
    local embedding = own["embedding_layer.word_embeddings.weight"]
    near(embedding:mean():item(), 1)
    near(spread(embedding), 4 / math.sqrt(12))
    near(spread(values({ initializer = "normal" })[Q]), 0.05)
    near(spread(values({ initializer = "uniform" })[Q]), 0.05 / math.sqrt(3))
    near(spread(values({ initializer = "truncated_normal" })[Q]), 0.05 * TRUNCATED)
    for value, message in pairs {
      [cbk.dict { name = "normal", men = 0 }] = "unknown field of normal; did you mean 'mean'?",
      [cbk.dict { name = "normal", std = -0.02 }] = "expected a number above 0, found -0.02",
      [cbk.dict { name = "truncated_normal", std = 0 }] = "expected a number above 0, found 0",
      [cbk.dict { name = "normal", std = "wide" }] = "expected a number, found 'wide'",
      [cbk.dict { name = "uniform", a = 1, b = 0 }] = "1 is above b, 0",
      [cbk.dict { std = 0.02 }] = "it has no 'name', such as truncated_normal",
      [cbk.dict { name = "constant" }] = "constant needs 'val'",
      [5] = "expected the name of an initializer, or a map with it, found 5",
      orthogonal = "the initializer 'orthogonal' is not emulated; known: constant, ",
      norml = "the initializer 'norml' is not emulated; did you mean 'normal'?",
    } do harness.raises(message, function() values { embedding_initializer = value } end) end
    harness.raises("expected a number above 0, found -1", function() values { initializer_range = -1 } end)
    harness.raises("muP scales initializers of the kinds normal and truncated_normal, not zeros",
      function() values { initializer = "zeros", mup_base_hidden_size = 16, mup_base_filter_size = 64 } end)
  end)

  it("are those of GPTJModel, whose outputs are as large as other matrices", function()
    local function of_gptj(own)
      local fields = { rotary_dim = 4, initializer_range = 0.05 }
      for _, more in ipairs { BIG, own or {} } do
        for name, value in pairs(more) do fields[name] = value end
      end
      return models.trainable(tensors_of("gptj", fields), 3).values
    end
    local own = of_gptj()
    for _, key in ipairs { Q, OUT, UP, DOWN } do near(spread(own[key]), 0.05 * TRUNCATED) end
    own = of_gptj { attention_initializer = cbk.dict { name = "normal", std = 0.3 },
      output_layer_initializer = cbk.dict { name = "normal", std = 0.2 } }
    near(spread(own[Q]), 0.3)
    for _, key in ipairs { OUT, UP, DOWN } do near(spread(own[key]), 0.2) end
    own = of_gptj { mup_base_hidden_size = 16, mup_base_filter_size = 64 }
    for _, key in ipairs { Q, UP } do near(spread(own[key]), 0.05 * TRUNCATED / 2) end
    for _, key in ipairs { OUT, DOWN } do near(spread(own[key]), 0.05 * TRUNCATED / 2 / math.sqrt(6)) end
  end)

  it("of a router are those of the mixture, if there is no initializer of all", function()
    local moe = cbk.dict { num_experts = 64, top_k = 1, gate_initializer = cbk.dict { name = "normal", std = 0.5 } }
    near(spread(values({ moe_params = moe })[layer "ffn.gate.weight"]), 0.5)
    local all = cbk.dict { name = "normal", std = 0.3 }
    near(spread(values({ moe_params = moe, initializer = all })[layer "ffn.gate.weight"]), 0.3)
  end)

  it("are scaled by width with muP", function()
    local own = values { mup_base_hidden_size = 16, mup_base_filter_size = 64 }
    near(spread(own[Q]), 0.05 * TRUNCATED / 2)
    near(spread(own[OUT]), 0.05 * TRUNCATED / 2 / math.sqrt(6))
    near(spread(own[DOWN]), 0.05 * TRUNCATED / 2 / math.sqrt(6))
    near(spread(own["embedding_layer.word_embeddings.weight"]), 0.05 * TRUNCATED)
  end)

  it("are the same for the same seed, and for a layer of a deeper model", function()
    local one, other, deeper = values(), values(), values { num_hidden_layers = 5, output_layer_initializer = "zeros" }
    equal(one[Q]:tolist(), other[Q]:tolist())
    equal(one[Q]:tolist(), deeper[Q]:tolist())
    local list = tensors_of("gpt2", BIG)
    assert(models.trainable(list, 4).values[Q]:tolist()[1][1] ~= models.trainable(list, 5).values[Q]:tolist()[1][1])
  end)
end)

describe("Dropout", function()
  local function apart(own)
    local list = tensors_of("gpt2", own)
    local model, ids = models.trainable(list, 1), random_ids(2, 7)
    local plain = model:eval()(ids)
    model:train()
    return (model(ids) - plain):abs():amax():item() > 0
  end
  it("has the rates of the config, while training only", function()
    equal(apart {}, false)
    equal(apart { dropout_rate = 0.2 }, true)
    equal(apart { attention_dropout_rate = 0.2 }, true)
    equal(apart { embedding_dropout_rate = 0.2 }, true)
    equal(apart { dropout_rate = 0.2, attention_dropout_rate = cbk.null }, true)
    local list = tensors_of("gpt2", { dropout_rate = 0.25, attention_dropout_rate = cbk.null })
    equal(models.trainable(list, 1).description.dropout, { embedding = 0.25, attention = 0.25, residual = 0.25 })
    list = tensors_of("gpt2", { dropout_rate = 0.25, embedding_dropout_rate = 0.5 })
    equal(models.trainable(list, 1).description.dropout, { embedding = 0.5, attention = 0, residual = 0.25 })
  end)

  it("has the rates of the class where the config has none", function()
    local function rates_of(name, own)
      local section = cbk.dict(BASE)
      section.dropout_rate, section.attention_dropout_rate = 0.25, nil
      for field, value in pairs(own) do section[field] = value end
      return models.trainable(classes.tensors(section, name, "cs-2.5"), 1).description.dropout
    end
    for _, name in ipairs { "gpt2", "llama" } do
      equal(rates_of(name, { rotary_dim = 4 }), { embedding = 0.25, attention = 0.1, residual = 0.25 }, name)
    end
    for _, name in ipairs { "gptj", "gpt-neox", "falcon" } do
      equal(rates_of(name, { rotary_dim = 4 }), { embedding = 0.1, attention = 0.1, residual = 0.25 }, name)
      equal(rates_of(name, { rotary_dim = 4, embd_pdrop = 0.5, attention_dropout_rate = cbk.null }),
        { embedding = 0.5, attention = 0.25, residual = 0.25 }, name)
    end
  end)
end)

describe("The loss of decoders", function()
  local logits = cstorch.tensor { { { 0, 0 }, { 0, 2 }, { 5, 0 } }, { { 0, 0 }, { 1, 0 }, { 0, 0 } } }
  local batch = { labels = cstorch.tensor({ { 0, 1, 0 }, { 1, 0, 1 } }, { dtype = "int64" }),
    attention_mask = cstorch.tensor({ { 1, 1, 0 }, { 1, 1, 0 } }, { dtype = "int64" }) }
  local sum = 2 * math.log(2) + math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))

  it("counts the labels that the mask has, by tokens or by samples", function()
    local function loss(by, weight)
      local value, all = causal_loss.cross_entropy(logits, batch, { by = by, weight = weight, balance = 0 })
      harness.near(all:item(), sum, 1e-6)
      return value:item()
    end
    harness.near(loss("num_tokens", 1), sum / 4, 1e-6)
    harness.near(loss("batch_size", 0.25), sum / 2 * 0.25, 1e-6)
  end)

  it("has a term for experts with unequal shares", function()
    local function route(chosen, all) return { all = cstorch.tensor { all }, is_chosen = cstorch.tensor { chosen } } end
    local mask = cstorch.tensor({ { 1, 1, 0 } }, { dtype = "int64" })
    local equal_shares = route({ { 1, 0 }, { 0, 1 }, { 1, 0 } }, { { 0.5, 0.5 }, { 0.5, 0.5 }, { 0, 1 } })
    local one_alone = route({ { 1, 0 }, { 1, 0 }, { 0, 1 } }, { { 1, 0 }, { 1, 0 }, { 0, 1 } })
    harness.near(causal_loss.imbalance({ equal_shares }, mask):item(), 4 * 0.25, 1e-6)
    harness.near(causal_loss.imbalance({ one_alone }, mask):item(), 4 * 0.5, 1e-6)
    harness.near(causal_loss.imbalance({ equal_shares, one_alone }, mask):item(), 4 * (0.75 * 0.75 + 0.25 * 0.25) / 2, 1e-6)
  end)
end)
