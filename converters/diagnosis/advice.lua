-- Advice for checkpoints with keys that fit no rule, or with missing weights.

local cbk = require "cbk"
local adapters = require "converters.diagnosis.adapters"
local architectures = require "converters.diagnosis.architectures"
local catalogue = require "converters.engine.catalogue"
local convert = require "converters.conversion.convert"
local coverage = require "converters.diagnosis.coverage"
local naming = require "cbk.naming"
local kinds = require "converters.engine.kinds"
local patterns = require "converters.engine.patterns"
local tables = require "converters.diagnosis.tables"
local weight_names = require "converters.diagnosis.weight_names"
local wrapped = require "converters.diagnosis.wrapped"

local advice = {}

local MOST_KEYS = 2000 -- enough to recognize a model
local TENSORS = { tensor = true, parameter = true }

local function holds_tensors(tree)
  for _, value in cbk.items(tree) do
    if TENSORS[cbk.kind(value)] then return true end
  end
  return false
end

--- The key below which a training script keeps the model: { state_dict = { … } }.
local function wrapper(source)
  local found
  for key, value in cbk.items(source) do
    if TENSORS[cbk.kind(value)] then return nil end
    if kinds.is_dict(value) and type(key) == "string" and holds_tensors(value) then
      if found then return nil end
      found = key
    end
  end
  return found
end

---The first keys of the checkpoint.
local function keys_of(source)
  local out = {}
  for i, key in ipairs(coverage.keys_of(source)) do
    if i <= MOST_KEYS then out[i] = key end
  end
  return out
end

---Why another table of the model leaves these keys out; nil if none does.
---@param unmatched string[]
local function known_as_lost(job, unmatched)
  local whys = {}
  for _, one in ipairs(tables.of { job.model }) do
    local reads = catalogue.names_format(one.converter[job.path[1].side == "left" and 1 or 2], job.path[1].src)
    local tree = reads and patterns.compile(one.keys, job.path[1].side)
    for _, key in ipairs(tree and unmatched or {}) do
      local hit = patterns.match(tree, key)[1]
      if hit and hit.ending.kind == "drop" then whys[key] = hit.ending.why end
    end
  end
  for _, key in ipairs(unmatched) do
    if whys[key] ~= whys[unmatched[1]] then return nil end
  end
  return whys[unmatched[1]]
end

---Keys whose numbers are beyond a count in the config.
---@param job Job
---@param unmatched string[]
---@return string|nil text, integer|nil count
local function beyond_counts(job, unmatched)
  for i, configs in ipairs(job.configs or {}) do
    for _, one in ipairs(convert.tables(configs)) do
      local own, side = one.converter, job.path[i].side
      local at = { side = side, left = one.configs.left, right = one.configs.right, source = function() end }
      local step = job.path[i]
      local formats = side == "left" and { step.src, step.tgt } or { step.tgt, step.src }
      local read = { keys = own.keys, part = own.left and own, inside = own.inside, converter = formats }
      local text, count = coverage.beyond(coverage.of(read, side, unmatched, at))
      if text then return text, count end
    end
  end
end

---The prefix with which all keys fit, as when a model without its head was saved alone; and the weights that are missing even so.
---@return string|nil name, string[]|nil lacking
local function name_to_add(job, keys)
  for _, reading in ipairs(weight_names.tables_of(job.model, job.path[1].src)) do
    local tried, are_names = {}, #coverage.of(reading.table, reading.side, keys).unmatched == 0
    for _, rule in ipairs(are_names and {} or reading.table.keys) do
      local name = rule[reading.side] and rule[reading.side][1]:match "^([%w_]+)%."
      if name and not tried[name] then
        tried[name] = true
        local below = {}
        for i, key in ipairs(keys) do below[i] = name .. "." .. key end
        if #coverage.of(reading.table, reading.side, below).unmatched == 0 then
          return name, coverage.lacking(reading.table, reading.side, job.files[1], below)
        end
      end
    end
  end
end

---The models for which the checkpoint is complete, as the end of a message; nil if there are none.
---@param job Job
---@param source Dict   the checkpoint
---@return string|nil
function advice.lacking(job, source)
  local keys = keys_of(source)
  local names = weight_names.models_that_fit(keys, job.path[1].src, job.model, function(one, side)
    local lacking = coverage.lacking(one, side, job.files[1], keys)
    return lacking and #lacking == 0
  end)
  if #names > 0 then return "; the checkpoint is complete for --model " .. table.concat(names, " or ") end
end

---How the weights get the names of a model's class in Hugging Face's format, if they have others; nil if that is not known.
---@param model Model
---@param job Job
---@param leaves Leaf[]
---@return Wrapped|nil
local function whole_under_other_names(model, job, leaves)
  local class = catalogue.class_of(model, {}, "hf")
  local fine, known = pcall(function() return class:tensors(job.files[1]) end)
  local found = fine and wrapped.find(leaves, known) or nil
  return found and #found.missing == 0 and found or nil
end

---… of the model that the user asks for. A model without a head is not made of one that has it.
---@param job Job
---@param source Dict
---@return string|nil
local function under_other_names(job, source)
  if job.path[1].src ~= "hf" or #(job.path[1].converter.components or {}) > 0 then return nil end
  local leaves, name = wrapped.leaves(source), job.model.model
  local full = name:find "%-headless$" and catalogue.find((name:gsub("%-headless$", "")))
  local own = full and whole_under_other_names(full, job, leaves)
  local found = own or whole_under_other_names(job.model, job, leaves)
  if not found then return nil end
  return ("; %s %s: `%s`%s"):format(own and ("they are those of --model %s"):format(full.model) or "they fit", wrapped.how(found),
    wrapped.command(found), wrapped.losses(found))
end

---What else the keys may be, apart from numbers beyond a count.
local function of_names(job, source, unmatched)
  local own = catalogue.is_own(job.model.model) and catalogue.file_of(job.model.model)
  if own then return ("; add %s to '%s'"):format(#unmatched == 1 and "a rule for it" or "rules for them", own) end
  local renamed = under_other_names(job, source)
  if renamed then return renamed end
  local below = wrapper(source)
  if below and (below ~= "model" or job.path[1].src == "hf") then
    return ("; the tensors are below '%s': move them up with `cbk copy CHECKPOINT FLAT --include %s --rename '%s.*=*'`"):format(
      below, below, below)
  end
  local keys = keys_of(source)
  local names = weight_names.models_that_fit(keys, job.path[1].src, job.model)
  if #names > 0 then return "; all keys fit --model " .. table.concat(names, " or ") end
  local place = job.path[1].src == "hf" and "" or "model." -- `keys` are without it
  local extra = weight_names.name_to_remove(job.model, job.path[1].src, keys)
  if extra then
    return ("; they fit without the prefix '%s.': `cbk copy CHECKPOINT NEW --rename '%s%s.*=%s*'`"):format(extra, place, extra, place)
  end
  local name, lacking = name_to_add(job, keys)
  if name then
    local also = lacking and #lacking > 0 and (" (still missing: %s)"):format(naming.listed(lacking)) or ""
    return ("; all keys fit with the prefix '%s.': `cbk copy CHECKPOINT NEW --rename '%s*=%s%s.*'`%s"):format(name, place, place, name,
      also)
  end
  local why = not job.drop_unmatched and known_as_lost(job, unmatched)
  local text = "; other conversions from %s leave it out (%s): pass --drop-unmatched-keys to do so here"
  if why then return text:format(job.path[1].src, why) end
end

---The class of a Hugging Face config that no model has, as a part of a message.
---@param job Job
---@return string|nil
local function context_of(job)
  local class = job.path[1].src == "hf" and architectures.foreign(job.files[1])
  return class and "; " .. architectures.why_foreign(class, { job.model }) or nil
end

---The models of the class that the config names, where the model is another one, such as its body; without a name, those that have a
---head in its place.
---@param job Job
---@return Model[]
local function meant(job)
  local class, out = architectures.stated(job.files[1]), {}
  for _, name in ipairs(class and catalogue.names() or {}) do
    local model = catalogue.find(name)
    if architectures.is_of(model, class) and not architectures.is_of(job.model, class) then out[#out + 1] = model end
  end
  local name = job.model.model:match "^(.*)%-headless$"
  if not class and name then out[1] = catalogue.find(name) end
  return out
end

---What to say of a key that is a weight of the class that is meant, and not of the model.
---@param job Job
---@param unmatched string[]
---@return string|nil
local function of_meant_class(job, unmatched)
  for _, model in ipairs(job.path[1].src == "hf" and meant(job) or {}) do
    for _, reading in ipairs(weight_names.tables_of(model, "hf")) do
      for _, key in ipairs(unmatched) do
        if #coverage.of(reading.table, reading.side, { key }).unmatched == 0 then
          return ("; '%s' is a weight of %s, and the other keys lack its prefix: give them the names of that class with `cbk copy "
            .. "--rename`; for a model without that weight, leave it out with `cbk copy --exclude`"):format(key, model.classes.left.name)
        end
      end
    end
  end
end

---What else the keys may be, as the end of a message; nil if nothing is known. And what is known in any case.
---@param job Job
---@param source Dict   the checkpoint
---@param unmatched string[]
---@return string|nil advice, string|nil context
function advice.unmatched(job, source, unmatched)
  local matrix = adapters.matrix_in(unmatched)
  if matrix then
    local only = job.path[1].src ~= "hf" and ", which only the Model Zoo has" or ""
    return ("; these are LoRA weights%s: %s"):format(only, adapters.advice(job.path[1].src))
  end
  local beyond, count = beyond_counts(job, unmatched)
  local rest = count ~= #unmatched and of_names(job, source, unmatched) or ""
  local text = (beyond and "; " .. beyond or "") .. rest
  if text == "" then text = of_meant_class(job, unmatched) or "" end
  return text ~= "" and text or nil, context_of(job)
end

return advice
