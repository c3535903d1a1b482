-- The class that a Hugging Face config names, and the classes of cbk's models.

local catalogue = require "converters.engine.catalogue"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"

local architectures = {}

-- earlier names of classes
local old_names = { RWForCausalLM = "FalconForCausalLM", RWModel = "FalconModel" }

---The class that a config names.
---@param config Dict|nil
---@return string|nil
function architectures.stated(config)
  local first = config and kinds.is_list(config, "architectures") and config.architectures[1]
  return type(first) == "string" and first or nil
end

---Whether a model is of a Hugging Face class. MPT's class has two spellings.
---@param model Model
---@param class string|nil
---@return boolean
function architectures.is_of(model, class)
  for _, own in ipairs(class and catalogue.classes_at_top(model) or {}) do
    if own.name:lower() == (old_names[class] or class):lower() then return true end
  end
  return false
end

---The class that a config names, if no model of cbk is of that class.
---@param config Dict|nil
---@return string|nil
function architectures.foreign(config)
  local class = architectures.stated(config)
  for _, name in ipairs(class and catalogue.names() or {}) do
    if architectures.is_of(catalogue.find(name), class) then return nil end
  end
  return class
end

---@param models Model[]
---@return string[]   their classes of Hugging Face, each once
local function classes_of(models)
  local own = {}
  for _, model in ipairs(models) do
    for _, class in ipairs(catalogue.classes_at_top(model)) do own[class.name] = true end
  end
  return naming.sorted(own)
end

---The classes of candidates, for messages.
---@param list Candidate[]
---@return string   "BertForPreTraining or BertForQuestionAnswering"
function architectures.classes_of(list)
  local models = {}
  for i, one in ipairs(list) do models[i] = one.model end
  return table.concat(classes_of(models), " or ")
end

---A message about a config with a class that no model of cbk has.
---@param class string        of architectures.foreign
---@param models Model[]      the models that its model_type may mean
---@return string
function architectures.why_foreign(class, models)
  local names = classes_of(models)
  return ("the config says architectures=%s, which is not supported%s"):format(class,
    #names > 0 and (" (%s %s)"):format(table.concat(names, ", "), #names == 1 and "is" or "are") or "")
end

return architectures
