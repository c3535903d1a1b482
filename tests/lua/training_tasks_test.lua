-- What BERT and T5 are trained for: losses, token files with their parts, and runs that continue.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local losses = require "cstorch.models.losses"
local token_files = require "cstorch.utils.data.token_files"
local training_data = require "training_data"

local describe, it, equal, has, near, raises = harness.describe, harness.it, harness.equal, harness.has, harness.near, harness.raises

local SAMPLES, LENGTH, CHOSEN, WORDS = 14, 6, 3, 30

---Whole numbers below a limit, the same each time.
local function numbers(shape, below, seed)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local values = cbk.rand({ count }, { seed = seed, dtype = "float64" }):tolist()
  for i, value in ipairs(values) do values[i] = math.floor(value * below) end
  return cbk.tensor(values, { dtype = "int32" }):reshape(shape)
end

---Masks of texts with 3 to LENGTH tokens.
local function masks(length, least)
  local rows = {}
  for i = 1, SAMPLES do
    rows[i] = {}
    for t = 1, length do rows[i][t] = t <= least + i % (length - least + 1) and 1 or 0 end
  end
  return cbk.tensor(rows, { dtype = "int32" })
end

local function parts_of_pretraining()
  return { input_ids = numbers({ SAMPLES, LENGTH }, WORDS, 1), attention_mask = masks(LENGTH, 3),
    token_type_ids = numbers({ SAMPLES, LENGTH }, 2, 2), labels = numbers({ SAMPLES, CHOSEN }, WORDS, 3),
    masked_lm_positions = numbers({ SAMPLES, CHOSEN }, 3, 4), masked_lm_mask = masks(CHOSEN, 1),
    next_sentence_label = numbers({ SAMPLES, 1 }, 2, 5) }
end

local function parts_of_classification()
  local parts = parts_of_pretraining()
  return { input_ids = parts.input_ids, attention_mask = parts.attention_mask, labels = numbers({ SAMPLES }, 2, 6) }
end

local function parts_of_generation()
  return { input_ids = numbers({ SAMPLES, LENGTH }, WORDS, 1), attention_mask = masks(LENGTH, 3),
    decoder_input_ids = numbers({ SAMPLES, 4 }, WORDS, 2), decoder_attention_mask = masks(4, 2),
    labels = numbers({ SAMPLES, 4 }, WORDS, 3) }
end

local function write(dir, tree, params)
  cbk.fs.mkdir(dir)
  cbk.create(cbk.fs.join(dir, "data.h5"), { h5_version = "flat", root = tree }):commit()
  if params then cbk.fs.write(cbk.fs.join(dir, "data_params.json"), params) end
end

---A run of ten steps with everything that has a state.
local function params_of(model, processor, dir)
  local text = training_data.TRAINER
  local first, last = text:find "    model:\n.-    optimizer:"
  text = text:sub(1, first - 1) .. "    model:\n" .. model .. "    optimizer:" .. text:sub(last + 1)
  text = text:gsub("GptHDF5MapDataProcessor", processor):gsub("max_steps: 12", "max_steps: 10"):gsub("log_steps: 3", "log_steps: 1")
  cbk.fs.write(dir .. "/params.yaml", text)
end

local BERT = [[
      vocab_size: 30
      hidden_size: 16
      num_hidden_layers: 2
      num_heads: 4
      filter_size: 24
      max_position_embeddings: 8
      pooler_nonlinearity: tanh
      dropout_rate: 0.1
      attention_dropout_rate: 0.2
]]
local PRETRAINING = "      name: bert\n      mlm_loss_weight: 0.25\n" .. BERT
local ALONE = PRETRAINING .. "      disable_nsp: true\n      label_smoothing: 0.1\n"
local CLASSIFICATION = "      name: bert/classifier\n      num_labels: 2\n      problem_type: single_label_classification\n"
  .. "      task_dropout: 0.1\n" .. BERT
local GENERATION = [[
      name: t5
      src_vocab_size: 28
      extra_ids: 2
      d_model: 16
      d_kv: 4
      d_ff: 24
      num_heads: 4
      encoder_num_hidden_layers: 2
      relative_attention_num_buckets: 8
      src_max_position_embeddings: 8
      tgt_max_position_embeddings: 8
      lm_loss_weight: 0.3
      dropout_rate: 0.1
]]

local function train(dir, ...)
  local status, out, err = harness.cbk(dir, "train", "params.yaml", ...)
  assert(status == 0, err)
  return out
end

local RUNS = {
  { "masked words and the next sentence", PRETRAINING, "HDF5IterableDataProcessor", parts_of_pretraining,
    { "eval/accuracy_cls", "eval/accuracy_masked_lm", "eval/mlm_perplexity" } },
  { "classes", CLASSIFICATION, "HDF5IterableDataProcessor", parts_of_classification, { "eval/accuracy", "eval/f1_score" } },
  { "texts from texts", GENERATION, "T5HDF5DataProcessor", parts_of_generation, { "eval/accuracy_lm", "eval/perplexity_lm" } },
}

describe("cbk train: BERT and T5", function()
  for _, case in ipairs(RUNS) do
    local name, model, processor, parts, metrics = unpack(case)
    it(("continues bit for bit, on CSX and CPU alike: %s"):format(name), function()
      local dir = harness.temp_dir()
      write(dir .. "/data", parts())
      params_of(model, processor, dir)
      local out = train(dir)
      for _, metric in ipairs(metrics) do has(out, "Metric: " .. metric .. " = ") end
      local last = cbk.fs.read(dir .. "/run/checkpoint_10.mdl")
      cbk.fs.remove(dir .. "/run/checkpoint_10.mdl")
      has(train(dir), "from run/checkpoint_8.mdl, step 8\nsteps 9 to 10")
      equal(cbk.fs.read(dir .. "/run/checkpoint_10.mdl") == last, true)
      local text = cbk.fs.read(dir .. "/params.yaml")
      cbk.fs.write(dir .. "/params.yaml", training_data.changed(text, "backend_type: CSX", "backend_type: CPU"), { overwrite = true })
      local other = train(dir, "--model-dir", "cpu")
      local step = "| Train Device=%s, Step=%d, Loss=([%%d.]+)"
      for _, at in ipairs { 1, 5, 8 } do
        near(tonumber(out:match(step:format("CSX", at))), tonumber(other:match(step:format("CPU", at))), 2e-5)
      end
      local status, evaluated, err = harness.cbk(dir, "eval", "params.yaml", "--json")
      equal(status, 0, err)
      local found = cbk.parse_json(evaluated)
      assert(found.loss > 0 and found.accuracy >= 0 and found.batches == 2, evaluated)
    end)
  end

  it("computes layers again with activation checkpointing", function()
    for _, case in ipairs(RUNS) do
      local _, model, processor, parts = unpack(case)
      local dir = harness.temp_dir()
      write(dir .. "/data", parts())
      params_of(model, processor, dir)
      local out, again = train(dir), train(dir, "--model-dir", "again", "--activation-checkpointing")
      for _, at in ipairs { 1, 5, 10 } do
        local step = ("Step=%d, Loss=([%%d.]+)"):format(at)
        near(tonumber(again:match(step)), tonumber(out:match(step)), 2e-5)
      end
    end
  end)

  it("says what a step costs", function()
    for _, case in ipairs(RUNS) do
      local _, model, processor, parts = unpack(case)
      local dir = harness.temp_dir()
      write(dir .. "/data", parts())
      params_of(model, processor, dir)
      local found = cbk.parse_json((train(dir, "--dry-run", "--json"):match "[^\n]+"))
      assert(found.flop > 1e5 and found.flop < 1e8 and found.tokens == 4 * LENGTH, found.flop)
    end
  end)

  it("reads the files of BertHDF5DataProcessor, with labels at chosen positions or at all tokens", function()
    local parts = parts_of_pretraining()
    local data = cbk.stack({ parts.input_ids, parts.attention_mask }, 1)
    local chosen = cbk.stack({ parts.labels, parts.masked_lm_positions, parts.masked_lm_mask }, 1)
    for _, labels in ipairs { chosen, numbers({ SAMPLES, 1, LENGTH }, WORDS, 3) } do
      local dir = harness.temp_dir()
      write(dir .. "/data", { data = data, labels = labels })
      params_of(ALONE, "BertHDF5DataProcessor", dir)
      local out = train(dir)
      has(out, "Metric: eval/mlm_perplexity = ")
      equal(out:find("eval/accuracy_cls", 1, true), nil)
    end
  end)

  it("names what it cannot train with", function()
    local function refused(model, processor, parts, message)
      local dir = harness.temp_dir()
      write(dir .. "/data", parts)
      params_of(model, processor, dir)
      local status, _, err = harness.cbk(dir, "train", "params.yaml")
      equal(status, 1)
      has(err:gsub("%s+", " "), message)
    end
    refused(PRETRAINING, "BertSumCSVDataProcessor", parts_of_pretraining(), "'BertSumCSVDataProcessor' is not emulated; "
      .. "known: BertHDF5DataProcessor, HDF5IterableDataProcessor, BertCSVDynamicMaskDataProcessor, BertCSVDataProcessor")
    refused(GENERATION, "TransformerDynamicDataProcessor", parts_of_generation(),
      "known: T5HDF5DataProcessor, HDF5IterableDataProcessor, T5DynamicDataProcessor")
    refused(CLASSIFICATION:gsub("single_label_classification", "regression"), "HDF5IterableDataProcessor", parts_of_classification(),
      "trainer.init.model.problem_type: expected single_label_classification, found regression")
    refused(GENERATION .. "      mlm_loss_scaling: tokens\n", "T5HDF5DataProcessor", parts_of_generation(),
      "mlm_loss_scaling: expected batch_size, num_masked or precomputed_num_masked, found tokens")
    local parts = parts_of_pretraining()
    parts.next_sentence_label = nil
    refused(PRETRAINING, "HDF5IterableDataProcessor", parts, "data.h5': expected 'input_ids', 'attention_mask', 'token_type_ids', 'labels' "
      .. "and 'next_sentence_label', found")
    parts = parts_of_pretraining()
    parts.masked_lm_positions = numbers({ SAMPLES, CHOSEN }, 60, 4)
    refused(PRETRAINING, "HDF5IterableDataProcessor", parts, "in masked_lm_positions, expected a number from 0 to 5")
    parts = parts_of_classification()
    parts.labels = numbers({ SAMPLES }, 4, 6)
    refused(CLASSIFICATION, "HDF5IterableDataProcessor", parts, "in labels, expected a number from 0 to 1")
  end)
end)

describe("Token files with other parts", function()
  local LAYOUT = {
    groups = { { "input_ids", "attention_mask" }, { "decoder_input_ids", "labels" }, { "class", is_single = true } },
    optional = { attention_mask = true },
  }
  local function batch(tree, params)
    local dir = harness.temp_dir()
    write(dir .. "/data", tree, params)
    return token_files.open({ data_dir = dir .. "/data", batch_size = 2, layout = LAYOUT }):iter()()
  end
  local ids, targets = numbers({ 4, 5 }, 9, 1), numbers({ 4, 3 }, 9, 2)
  local function rows(t, first) return t:slice(0, first, first + 2):tolist() end

  it("have a dataset for each part, or name the parts of theirs in data_params.json", function()
    local single = numbers({ 4 }, 3, 3)
    local one = batch { input_ids = ids, decoder_input_ids = targets, labels = targets, class = single }
    equal(one.input_ids:tolist(), rows(ids, 0))
    equal(one.class:tolist(), single:slice(0, 0, 2):tolist())
    equal(one.attention_mask, nil)
    local groups = { data_0 = cbk.stack({ ids, ids }, 1), data_1 = cbk.stack({ targets, targets }, 1), data_2 = single:reshape { 4, 1 } }
    local other = batch(groups, [[{"data_0_features": ["input_ids", "attention_mask"],
      "data_1_features": ["decoder_input_ids", "labels"], "data_2_features": ["class"]}]])
    equal(other.input_ids:tolist(), one.input_ids:tolist())
    equal(other.labels:tolist(), one.labels:tolist())
    equal(other.class:tolist(), one.class:tolist())
    equal(other.attention_mask:tolist(), one.input_ids:tolist())
  end)

  it("name what does not fit", function()
    local single = numbers({ 4 }, 3, 3)
    raises("expected 'input_ids', 'decoder_input_ids', 'labels' and 'class', found 'input_ids'", function() batch { input_ids = ids } end)
    raises("expected the shape [samples] of 'class', found [4, 5]",
      function() batch { input_ids = ids, decoder_input_ids = targets, labels = targets, class = ids } end)
    raises("'decoder_input_ids' is [4, 3], but 'labels' is [4, 5]",
      function() batch { input_ids = ids, decoder_input_ids = targets, labels = ids, class = single } end)
    raises("'input_ids' has 4 samples, but 'class' has 3",
      function() batch { input_ids = ids, decoder_input_ids = targets, labels = targets, class = numbers({ 3 }, 3, 3) } end)
    raises("cannot be cut to max_sequence_length, 4", function()
      local dir = harness.temp_dir()
      write(dir .. "/data", { input_ids = ids, decoder_input_ids = targets, labels = targets, class = single })
      token_files.open { data_dir = dir .. "/data", batch_size = 2, layout = LAYOUT, max_sequence_length = 4 }
    end)
  end)
end)

describe("The losses of BERT and T5", function()
  local logits = cstorch.tensor { { { 0, 0 }, { 0, 2 } }, { { 1, 0 }, { 0, 0 } } }
  local labels = cstorch.tensor({ { 0, 1 }, { 1, -100 } }, { dtype = "int64" })
  local function ones(rows) return cstorch.tensor(rows, { dtype = "int64" }) end
  local first, second, third = math.log(2), math.log(1 + math.exp(-2)), math.log(1 + math.exp(1))

  it("weigh masked words by the batch's size, and add the next sentence", function()
    local batch = { labels = labels, masked_lm_mask = ones { { 1, 0 }, { 1, 1 } }, masked_lm_positions = ones { { 0, 1 }, { 0, 1 } },
      next_sentence_label = ones { 1, 0 } }
    local loss, sum = losses.pretraining(logits, nil, batch, { weight = 0.5 })
    near(sum:item(), first + third, 1e-6)
    near(loss:item(), 0.5 * (first + third) / 2, 1e-6)
    local sentences = cstorch.tensor { { 0, 2 }, { 0, 0 } }
    near(losses.pretraining(logits, sentences, batch, { weight = 0.5 }):item(), 0.5 * (first + third) / 2 + (second + first) / 2, 1e-6)
    batch.masked_lm_positions = nil -- labels beside all tokens: the mask of the data does not count
    near(losses.pretraining(logits, nil, batch, { weight = 1 }):item(), (first + second + third) / 2, 1e-6)
  end)

  it("are smoothed towards all classes", function()
    local batch = { labels = labels:slice(0, 0, 1) }
    local smooth = losses.pretraining(logits:slice(0, 0, 1), nil, batch, { weight = 1, smoothing = 0.25 }):item()
    near(smooth, 0.75 * (first + second) + 0.25 * (first + (second + second + 2) / 2), 1e-6)
  end)

  it("of T5 go by the batch's size or by the tokens", function()
    local batch = { labels = labels, decoder_attention_mask = ones { { 1, 1 }, { 1, 0 } } }
    near(losses.generation(logits, batch, { by = "batch_size", weight = 0.5 }):item(), 0.5 * (first + second + third) / 2, 1e-6)
    near(losses.generation(logits, batch, { by = "num_masked", weight = 0.5 }):item(), (first + second + third) / 3, 1e-6)
  end)
end)
