-- Fields of a Hugging Face config without a place in the Model Zoo (token ids, names of labels, …). The Model Zoo checks its configs,
-- so the checkpoint keeps them: as `hf_config` in the last element of its `__metadata__` list.

local cbk = require "cbk"
local quantised = require "cbk.quantised"
local kinds = require "converters.engine.kinds"

local is_dict, is_list = kinds.is_dict, kinds.is_list

local hf_config = {}

---Copies a field by its dotted path ("attn_config.clip_qkv"), or by a name that has dots itself.
local function pick_one(from, name, to)
  if from[name] ~= nil then
    to[name] = cbk.raw(from, name)
    return
  end
  local section, rest = name:match "^(.-)%.(.*)$"
  if not section or not is_dict(from, section) then return end
  if to[section] == nil then to[section] = cbk.dict() end
  if is_dict(to, section) then pick_one(from[section], rest, to[section]) end
end

---The named fields of a config, in their sections.
---@param config Dict
---@param complete Dict   the config with its defaults: of names that the config lacks
---@param names string[]
---@return Dict
function hf_config.pick(config, complete, names)
  local out = cbk.dict()
  for _, name in ipairs(names) do pick_one(config[name] == nil and not name:find(".", 1, true) and complete or config, name, out) end
  return out
end

---The kept fields in a checkpoint of the Model Zoo, or nil.
---@param root any   the tree of the checkpoint
---@return Dict|nil
function hf_config.of(root)
  if not is_dict(root) or not is_list(root, "__metadata__") then return nil end
  local list = root.__metadata__
  local last = #list > 0 and list[#list]
  return is_dict(last) and is_dict(last, "hf_config") and last.hf_config or nil
end

---An architecture without a head for a task: GPT2Model, but not GPT2LMHeadModel.
local function is_headless(name) return type(name) == "string" and name:find "Model$" ~= nil and not name:find "HeadModel$" end

local TASKS = { SequenceClassification = true, TokenClassification = true, QuestionAnswering = true, MultipleChoice = true,
  MaskedImageModeling = true, ImageClassification = true }

---The task of a head that the body was given later; nil for the head of the first training, and for none.
local function task_of(name)
  local task = type(name) == "string" and name:match "For(%u%w*)$"
  return TASKS[task] and task or nil
end

---The family in a class's name: "GPT2" of GPT2LMHeadModel and GPT2Model, "llama" of LlamaForCausalLM.
local function family_of(name)
  return type(name) == "string" and name:gsub("For%u%w*$", ""):gsub("LMHead%w*$", ""):gsub("Model$", ""):lower() or nil
end

---Whether a kept class is of the family of the model's own, or one's own variant of it, with the same kind of head, or without one.
local function same_kind(kept, own)
  if not (is_list(kept) and is_list(own) and #kept > 0 and #own > 0) then return false end
  local family = family_of(own[1])
  if not family or (family_of(kept[1]) or ""):sub(1, #family) ~= family then return false end
  return is_headless(kept[1]) == is_headless(own[1]) and task_of(kept[1]) == task_of(own[1])
end

---Fields that let Transformers load code, maybe from a remote repository. Checkpoints are not trusted.
local NAMES_CODE = { auto_map = true, custom_pipelines = true, trust_remote_code = true }

---Puts kept fields back into a Hugging Face config. Fields with a rule of the converter stay as they are; fields that name code are
---left out, and so are those on quantised weights: the weights that are written are not.
---@param to Dict         changed in place
---@param kept Dict       not trusted
---@param is_known fun(name: string): boolean   whether the converter has a rule for the field
---@param place? string   the path of `to`, with a dot at its end
function hf_config.restore(to, kept, is_known, place)
  for name in cbk.items(kept) do
    local path = (place or "") .. tostring(name)
    local is_free = not is_known(path) and (path ~= "architectures" or to[name] == nil or same_kind(kept[name], to[name]))
    if NAMES_CODE[name] then
      local text = "'%s' in the Hugging Face config that the checkpoint keeps is left out: it names code that Transformers would load"
      cbk.warn(text:format(path))
    elseif quantised.is_field(name, kept[name]) then
      cbk.warn(("'%s' in the Hugging Face config that the checkpoint keeps is left out: the weights are not quantised"):format(path))
    elseif is_dict(kept, name) and (is_free or is_dict(to, name)) then
      local section = is_dict(to, name) and to[name] or cbk.dict()
      hf_config.restore(section, kept[name], is_known, path .. ".")
      to[name] = section
    elseif is_free then
      to[name] = cbk.raw(kept, name)
    end
  end
end

---The dtype of most elements of a model's floating tensors, or nil.
local function floating_dtype(model)
  local counts, best = {}, nil
  for _, tensor in cbk.tensors(model) do
    local dtype = tensor.dtype
    if cbk.dtype(dtype).floating then
      counts[dtype] = (counts[dtype] or 0) + tensor:numel()
      if not best or counts[dtype] > counts[best] then best = dtype end
    end
  end
  return best
end

---Sets the dtype of the weights in a Hugging Face config, unless the converter's table has set it.
---@param config Dict   changed in place
---@param model Dict    the new tensors
---@param kept? Dict
function hf_config.set_dtype(config, model, kept)
  local name = config.torch_dtype == nil and config.dtype ~= nil and "dtype" or "torch_dtype" -- Transformers 5 and 4
  if config[name] ~= nil and not (kept and kept[name] ~= nil) then return end
  local dtype = floating_dtype(model)
  if dtype then config[name] = dtype end
end

return hf_config
