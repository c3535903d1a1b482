-- Makes a muP config (of release 2.2) from a GPT-2/3 config in the standard parametrization, with hyperparameters that were tuned on
-- a small base model.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local mup = require "converters.modelzoo.mup"

local present, is_dict = kinds.present, kinds.is_dict

local mup_config = {}

---The values of the Cerebras-GPT paper.
mup_config.defaults = { base_layer_width = 256, base_lr = 6e-3, base_init_std = 0.08, m_embed = 10 }

local function refuse(message, ...) cbk.fail("config", message:format(...)) end

local function positive(model, name)
  local number = model[name]
  if type(number) ~= "number" or not (number > 0 and number < math.huge) then
    refuse("model.%s=%s: it must be a positive number", name, tostring(number))
  end
  return number
end

local function model_of(config)
  for _, name in ipairs { "hidden_size", "num_hidden_layers" } do
    if not is_dict(config, "model") or config.model[name] == nil then
      refuse("expected a GPT-2/3 config, found no model.%s%s", name, config.trainer ~= nil
        and " (the 'trainer' layout of release 2.3 and later is not supported here)" or "")
    end
  end
  local model = config.model
  if mup.style(model) then refuse "the config uses muP already" end
  if present(model.name) and tostring(model.name):find "bert" then
    refuse("model.name=%s: muP of release 2.2 is for decoders, such as gpt2 and gptj", tostring(model.name))
  end
  return model
end

local function truncated_normal(std)
  return cbk.dict {
    { "mean", cbk.float(0) }, { "name", "truncated_normal" }, { "std", cbk.float(std) }, { "a", cbk.float(-2 * std) },
    { "b", cbk.float(2 * std) },
  }
end

-- --- the learning rate

local schedules = { Linear = true, CosineDecay = true }

local function is_zero(value) return value == 0 or value == false end

local function retune(schedule, base_lr)
  local name, initial, last = schedule.scheduler, schedule.initial_learning_rate, schedule.end_learning_rate
  if not schedules[name or ""] then
    refuse("optimizer.learning_rate: expected Linear or CosineDecay, found %s",
      present(name) and "the scheduler " .. tostring(name) or "an entry without a scheduler")
  end
  if is_zero(initial) then -- the warm-up, up to the base
    schedule.end_learning_rate = cbk.float(base_lr)
    return
  end
  if not present(last) then refuse("optimizer.learning_rate: `end_learning_rate` needs to be provided for %s", name) end
  schedule.initial_learning_rate = cbk.float(base_lr)
  if is_zero(last) then return end
  if type(last) ~= "number" or type(initial) ~= "number" then
    refuse("optimizer.learning_rate: %s from `initial_learning_rate` %s to `end_learning_rate` %s: both must be numbers", name,
      tostring(initial), tostring(last))
  end
  schedule.end_learning_rate = cbk.float(base_lr * (last / initial))
end

local function set_learning_rate(optimizer, base_lr)
  local rate = optimizer.learning_rate
  local kind = rate ~= nil and cbk.kind(optimizer, "learning_rate")
  local is_empty = not present(rate) or is_zero(rate) or rate == "" or type(rate) == "userdata" and cbk.count(rate) == 0
  if is_empty then
    optimizer.learning_rate = cbk.float(base_lr)
    return
  elseif kind ~= "list" then
    refuse("optimizer.learning_rate: expected a list of a Linear warm-up and a Linear or CosineDecay decay, found %s",
      type(rate) == "userdata" and cbk.json(rate) or tostring(rate))
  end
  for i, schedule in cbk.items(rate) do
    if not is_dict(schedule) then
      refuse("optimizer.learning_rate[%d] must be a scheduler with settings", i - 1)
    end
    retune(schedule, base_lr)
  end
end

-- --- all of it

---@param config Dict   a legacy config; it is not changed
---@param base { base_layer_width: number, base_lr: number, base_init_std: number, m_embed: number }
---@return Dict
function mup_config.generate(config, base)
  config = cbk.deep_copy(config)
  local model = model_of(config)
  local width, layers = positive(model, "hidden_size") / base.base_layer_width, positive(model, "num_hidden_layers")
  if not is_dict(config, "optimizer") then refuse "the config has no section 'optimizer'" end
  model.embedding_initializer = truncated_normal(base.base_init_std)
  model.initializer = truncated_normal(base.base_init_std / math.sqrt(width))
  model.output_layer_initializer = truncated_normal(base.base_init_std / math.sqrt(2 * width * layers))
  model.output_logits_scale = cbk.float(1 / width)
  model.embeddings_scale = cbk.float(base.m_embed)
  model.scale_qk_dot_by_d = true
  set_learning_rate(config.optimizer, base.base_lr)
  config.optimizer.adjust_learning_rate = cbk.dict { decoder_kernel = cbk.float(1 / width) }
  return config
end

return mup_config
