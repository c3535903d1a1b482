-- Why a Hugging Face checkpoint fits no class that its config may mean, and what to do.

local architectures = require "cbk.recognise.architectures"
local naming = require "cbk.naming"
local wrapped = require "cbk.recognise.wrapped"

local unfit = {}

local OTHER_CHECKPOINT = "use a checkpoint of a supported class"

---The class with these weights under other names: among those that the config names, or among all if no model has that class.
---@param leaves Leaf[]
---@param list Candidate[]
---@param is_any boolean   also other classes than the config names
---@return Candidate|nil one, Wrapped|nil found   the one with the most weights; a complete one is preferred
local function nearest(leaves, list, is_any)
  local best, found = nil, nil
  for _, one in ipairs(list) do
    local own = (is_any or one.is_named) and wrapped.find(leaves, one.tensors()) or nil
    local is_whole, was_whole = own and #own.missing == 0, found and #found.missing == 0
    local is_better = own and (not found or is_whole and not was_whole)
    if own and found and is_whole == was_whole then
      local is_plainer = own.matched == found.matched and #one.model.model < #best.model.model
      is_better = own.matched > found.matched or is_plainer
    end
    if is_better then best, found = one, own end
  end
  return best, found
end

---How to convert the weights of a class without the head that the config names.
---@param one Candidate
---@param found Wrapped
local function without_head(one, found)
  local new = one.model.model:find "%-headless$" and " (its new head begins with random numbers)" or ""
  return ("without its own head it is %s: `%s`%s; then convert NEW with --config CONFIG --model %s%s"):format(one.class.name,
    wrapped.command(found), wrapped.losses(found), one.model.model, new)
end

---Why the body of a model is not the model.
---@param one Candidate   with a body
---@return string reason, string advice, true
local function explain_body(one)
  local body, head = one.body.tensors(), {}
  for _, tensor in ipairs(one.tensors()) do
    local is_needed = not (tensor.buffer or tensor.optional or tensor.part or tensor.tied_to)
    if is_needed and not (body.by_key[tensor.key] or body.by_key[(tensor.key:gsub("^[^.]+%.", ""))]) then head[#head + 1] = tensor.key end
  end
  return ("the config names %s, but the tensors are those of %s: %s is missing"):format(one.class.name, one.body.class.name,
    naming.folded(head)), ("use a complete checkpoint; --model %s begins a new head with random numbers"):format(one.body.model.model), true
end

---A class that no model of cbk has, whose tensors have the names of other classes.
---@param class string
---@param list Candidate[]   the best first
---@return string reason, string advice
function unfit.foreign(class, list)
  local best, models, alike = list[1], {}, {}
  for i, one in ipairs(list) do
    models[i] = one.model
    if one.mistakes == best.mistakes then alike[#alike + 1] = one end
  end
  local wrong = best.fit.wrong[1]
  return ("%s; its tensors have the names of %s%s"):format(architectures.why_foreign(class, models), architectures.classes_of(alike),
    wrong and (", but '%s' has another shape: %s"):format(wrong.key, wrong.why) or ""), OTHER_CHECKPOINT
end

---The class of which most tensors are: to tell what is missing.
---@param list Candidate[]
---@return Candidate
local function most_like(list)
  local best = list[1]
  for _, one in ipairs(list) do
    if one.fit and one.fit.matched > best.fit.matched then best = one end
  end
  return best
end

---The body of models with heads, if the config names no class.
---@param stated string        "model_type=bert"
---@param one Candidate
---@param found Wrapped
---@return string|nil reason, string|nil advice
local function explain_headless(stated, one, found)
  if #found.left_out > 0 or found.matched < 2 * #found.missing then return nil end
  return ("the config says %s without architectures, and the tensors are those of %s %s, without %s"):format(stated, one.class.name,
    wrapped.how(found), naming.folded(found.missing)), "use a complete checkpoint, with its head"
end

---The whole model under other names.
---@param one Candidate
---@param found Wrapped
---@return string reason, string advice
local function explain_wrapped(one, found)
  return ("the tensors are those of %s %s"):format(one.class.name, wrapped.how(found)),
    ("give them its names: `%s`%s; then convert NEW with --config CONFIG"):format(wrapped.command(found), wrapped.losses(found))
end

---@param root Dict
---@param config Dict       of Hugging Face
---@param list Candidate[]  the models of its model_type, the best first
---@return string|nil reason, string|nil advice   nil: nothing is known of it
---@return true|nil lacks_head
function unfit.explain(root, config, list)
  local leaves = wrapped.leaves(root)
  for _, one in ipairs(list) do
    local found = one.body and wrapped.find(leaves, one.tensors())
    if found and #found.missing == 0 then return explain_wrapped(one, found) end
    if one.body then return explain_body(one) end
  end
  local class, models = architectures.foreign(config), {}
  for i, one in ipairs(list) do models[i] = one.model end
  local renamed, found = nearest(leaves, list, class ~= nil or architectures.stated(config) == nil)
  if not class then
    if not found then return nil end
    if #found.missing > 0 then return explain_headless("model_type=" .. tostring(config.model_type), renamed, found) end
    return explain_wrapped(renamed, found)
  end
  local reason = architectures.why_foreign(class, models)
  if found and #found.missing == 0 then
    local foreign = #found.left_out > 0 and ("; not of that class: %s"):format(naming.folded(found.left_out)) or ""
    return reason .. foreign, without_head(renamed, found)
  elseif found and found.matched > renamed.fit.matched then
    return ("%s; %s its tensors are those of %s, but these are missing: %s"):format(reason, wrapped.how(found), renamed.class.name,
      naming.folded(found.missing)), OTHER_CHECKPOINT
  end
  if #list == 0 then return reason, OTHER_CHECKPOINT end
  local likest = most_like(list)
  local fit = likest.fit
  if fit.matched == 0 then
    return ("%s; none of its tensors is theirs: %s"):format(reason, naming.folded(fit.unknown)), OTHER_CHECKPOINT
  end
  local foreign = #fit.unknown > 0 and ("; not a weight of %s: %s"):format(likest.class.name, naming.folded(fit.unknown)) or ""
  local lacks = #fit.missing > 0 and ("; %s also has %s"):format(likest.class.name, naming.folded(fit.missing)) or ""
  return reason .. foreign .. lacks, OTHER_CHECKPOINT
end

return unfit
