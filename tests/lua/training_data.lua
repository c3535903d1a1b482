-- Data and params.yaml files for tests of training.

local cbk = require "cbk"

local training_data = {}

---A folder with one file of samples: texts of a small language, the same each time.
---@param path string
---@param count integer   samples
---@param length integer  tokens of each
---@param words integer   ids are below this
function training_data.write(path, count, length, words)
  cbk.fs.mkdir(path)
  local ids, x = {}, 1
  for i = 1, count * length + 1 do
    x = (x * 5 + (i % 7 == 0 and 3 or 1)) % words
    ids[i] = x
  end
  local rows = {}
  for i = 1, count do
    local input, mask, labels = {}, {}, {}
    for t = 1, length do
      local place = (i - 1) * length + t
      input[t], mask[t], labels[t] = ids[place], (i % 5 == 0 and t > length - 2) and 0 or 1, ids[place + 1]
    end
    rows[i] = { input, mask, labels }
  end
  cbk.create(cbk.fs.join(path, "data.h5"), { h5_version = "flat", root = { data = cbk.tensor(rows, { dtype = "int32" }) } }):commit()
end

training_data.WORDS, training_data.LENGTH = 40, 8

--- A run of twelve steps with everything that has a state: dropout, loss scale, schedules, shuffled data, evaluations.
training_data.TRAINER = [[
trainer:
  init:
    model_dir: run
    seed: 3
    backend:
      backend_type: CSX
    model:
      name: gpt2
      vocab_size: 40
      hidden_size: 16
      num_hidden_layers: 2
      num_heads: 4
      filter_size: 32
      max_position_embeddings: 8
      position_embedding_type: learned
      nonlinearity: gelu
      dropout_rate: 0.1
      attention_dropout_rate: 0.1
      share_embedding_weights: true
    optimizer:
      AdamW:
        betas: [0.9, 0.95]
        weight_decay: 0.1
        correct_bias: true
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR:
            initial_learning_rate: 0.0
            end_learning_rate: 0.02
            total_iters: 4
        - CosineDecayLR:
            initial_learning_rate: 0.02
            end_learning_rate: 0.002
            total_iters: 20
    precision:
      fp16_type: cbfloat16
      loss_scaling_factor: dynamic
      max_gradient_norm: 1.0
    loop:
      max_steps: 12
      eval_frequency: 5
      eval_steps: 2
    checkpoint:
      steps: 4
    logging:
      log_steps: 3
  fit:
    train_dataloader:
      data_processor: GptHDF5MapDataProcessor
      data_dir: data
      batch_size: 4
      shuffle: true
      shuffle_seed: 7
    val_dataloader:
      data_processor: GptHDF5MapDataProcessor
      data_dir: data
      batch_size: 4
]]

---The text with a part replaced, which must be in it.
---@param text string
---@param old string   plain
---@param new string
---@return string
function training_data.changed(text, old, new)
  local first, last = text:find(old, 1, true)
  assert(first, "the file has no '" .. old .. "'")
  return text:sub(1, first - 1) .. new .. text:sub(last + 1)
end

return training_data
