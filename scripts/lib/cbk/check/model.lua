-- Checks a checkpoint against its config: missing layers and weights, shapes, ties. The facts about a model come from its class.

local cbk = require "cbk"
local adapters = require "cbk.recognise.adapters"
local architectures = require "cbk.recognise.architectures"
local catalogue = require "converters.engine.catalogue"
local classes = require "cbk.classes"
local contents = require "converters.conversion.contents"
local errors = require "cbk.errors"
local extents = require "cbk.extents"
local configs = require "cbk.recognise.configs"
local recognise = require "cbk.recognise"
local kinds = require "converters.engine.kinds"
local numbers = require "cbk.numbers"
local quantised = require "cbk.quantised"
local warnings = require "cbk.warnings"

local model = {}

---@class ModelOfFile
---@field name? string            "llama"
---@field format? string
---@field config? string          a path
---@field settings? Dict          the config's content
---@field known? ClassTensors
---@field prefix string           the prefix of the class's keys in the checkpoint
---@field path_of fun(key: string): string   of a key of the model in the checkpoint
---@field paths table<string, string>   of the tensors by the class's keys


---The model and format that a config names, if the tensors are not those of any known model.
local function by_config_alone(config)
  local fine, name, format = warnings.quietly(configs.model_of, config)
  if fine then return name, format end
end

---@param found Findings
---@param severity? string   default: "note"
---@param advice? string|false   false: that of the rule
local function add_unknown(of, file, found, reason, severity, advice)
  if advice == nil then
    advice = "Name the config with --config, or describe the model in a converter (see `cbk help converters`)"
  end
  local text = ("the tensors of %s are not checked against it: %s"):format(cbk.quote(cbk.fs.basename(file)), reason)
  found:add("config", of.config or file, nil, text, { severity = severity or "note", advice = advice or nil })
end

---Adds a config that cannot be used, with the advice of the error in place of the rule's.
---@param mistake any   as pcall gives it
local function add_mistake(of, file, found, mistake)
  local advice = type(mistake) == "table" and mistake.advice or ""
  local has_own = advice:find "^%l" ~= nil
  found:add("config", of.config or file, nil, errors.text(has_own and errors.with(mistake, { advice = "" }) or mistake),
    { advice = has_own and advice:gsub("^%l", string.upper) or nil })
end

---How many weights each layer has by its class, and how many of these are missing.
---@param missing string[]   by the class's keys
---@return { layer: string, count: Extent, total: integer, missing: integer }[]   of layers that lack some, in their order
local function layers_with(of, missing)
  local is_missing, by_layer, out = {}, {}, {}
  for _, key in ipairs(missing) do is_missing[key] = true end
  for _, tensor in ipairs(of.known) do
    local layer, count = of.known:layer_of(tensor.key)
    local one = layer and (by_layer[layer] or { layer = layer, count = count, total = 0, missing = 0 })
    if one and not (tensor.buffer or tensor.optional or tensor.tied_to) then
      by_layer[layer], one.total = one, one.total + 1
      if is_missing[tensor.key] then
        if one.missing == 0 then out[#out + 1] = one end
        one.missing = one.missing + 1
      end
    end
  end
  return out
end

---@param missing string[]   by the class's keys
local function check_missing(of, file, missing, found)
  local is_whole = {}
  for _, one in ipairs(#missing > 0 and layers_with(of, missing) or {}) do
    if one.total == one.missing then
      is_whole[one.layer] = true
      found:add("missing-layer", file, of.prefix .. one.layer:gsub("%.$", ""), ("the layer is missing: the config says %s"):format(
        table.concat(of.known:fields_of(one.count, {}), ", ")))
    end
  end
  for _, key in ipairs(missing) do
    local layer = of.known:layer_of(key)
    if not is_whole[layer] then
      local what = of.paths[key] and "the weight is null or another value, and no tensor" or "the weight is missing"
      found:add("missing-weight", file, of.prefix .. key, ("%s: %s with this config has it, %s"):format(what, of.known.class.name,
        extents.shape(model.shape(of.known.by_key[key]))))
    end
  end
end

---@param tensor ClassTensor
---@return integer[]
function model.shape(tensor) return classes.shape(tensor) end

---The missing keys without those that a truncated file has in part: these are damaged, not missing.
---@param lost string[]
local function without_lost(of, missing, lost)
  local is_lost, out = {}, {}
  for _, key in ipairs(lost) do is_lost[key] = true end
  for _, key in ipairs(missing) do
    if not is_lost[of.prefix .. key] then out[#out + 1] = key end
  end
  return out
end

---Advice about a tensor that the class does not have, if more is known about it; nil otherwise.
---@param foreign string|nil   the class of the config, if no model of cbk has it
local function advice_on_unknown(of, key, foreign)
  if quantised.is_part_name(key) then return "Keep it: by its name, it is a scale of quantised weights" end
  if adapters.matrix_in { key } then return (adapters.advice(of.format):gsub("^%l", string.upper)) end
  return foreign and "Keep it: " .. architectures.why_foreign(foreign, { (catalogue.find(of.name)) }) or nil
end

---@param unknown string[]   by the class's names
local function check_unknown(of, file, unknown, found)
  local counts, foreign = {}, not catalogue.release(of.format) and of.settings and architectures.foreign(of.settings) or nil
  for _, key in ipairs(unknown) do
    local _, layer = of.known:beyond(key)
    if layer then counts[layer] = (counts[layer] or 0) + 1 end
  end
  for _, key in ipairs(unknown) do
    local stated, layer = of.known:beyond(key)
    if not layer then
      found:add("unknown-weight", file, of.path_of(key), ("%s has no such tensor with this config"):format(of.known.class.name),
        { advice = advice_on_unknown(of, key, foreign) })
    elseif counts[layer] then
      found:add("unknown-weight", file, of.prefix .. layer:gsub("%.$", ""), ("the config says %s, but this layer has %s"):format(stated,
        numbers.counted(counts[layer], "tensor")))
      counts[layer] = nil
    end
  end
end

---@param lost string[]   keys that could not be read
---@param is_part boolean
local function check_fit(of, file, one, lost, found, is_part)
  for _, wrong in ipairs(one.wrong) do found:add("wrong-shape", file, of.path_of(wrong.key), wrong.why) end
  check_unknown(of, file, one.unknown, found)
  if is_part then return end
  check_missing(of, file, without_lost(of, one.missing, lost), found)
  for _, lack in ipairs(one.lacks) do
    found:add("missing-weight", file, nil, ("%s is missing (%s); some models have none"):format(lack.name,
      numbers.counted(#lack.keys, "tensor")), { severity = "note" })
  end
end

---The checkpoint's tensors of the class, by the class's names.
local function paths_of(of, keys)
  local out = {}
  for _, key in ipairs(keys) do
    local own = of.known:own_key(key)
    if own then out[own] = of.path_of(key) end
  end
  return out
end

local LONGEST_NAME = 1000 -- of a tensor of any model

---Whether there are names that no model has and that take long to compare.
local function has_odd_names(root)
  for key in cbk.items(kinds.is_dict(root, "model") and root.model or root) do
    if type(key) == "string" and #key > LONGEST_NAME then return true end
  end
  return false
end

---Identifies the model of a checkpoint, and checks its names and shapes. Values are not read.
---@param file string             as the user has named it
---@param checkpoint Checkpoint
---@param config_path string|nil
---@param found Findings
---@param folders table|nil       what is found out about folders, for further checkpoints in them
---@param is_part boolean          what is missing may be in the other parts
---@return ModelOfFile|nil
function model.check(file, checkpoint, config_path, found, folders, is_part)
  if not kinds.is_dict(checkpoint.root) or has_odd_names(checkpoint.root) then return nil end
  local fine, identity, config, kept = warnings.quietly(recognise.checkpoint, file, checkpoint, { config = config_path, folders = folders })
  if not fine then
    if config_path or identity.code == "interrupted" then error(identity, 0) end
    return nil -- the tree is not a dict of tensors
  end
  if identity.holds then
    if config_path then
      local text = ("%s has nothing that it describes: %s"):format(cbk.quote(cbk.fs.basename(file)), identity.reason)
      found:add("config", config_path, nil, text, { advice = (identity.advice:gsub("^%l", string.upper)) })
    end
    return nil
  end
  local of = { name = identity.model, format = identity.format, config = identity.config, paths = {},
    prefix = catalogue.release(identity.format) and "model." or "" }
  local inner = identity.contents
  function of.path_of(key) return inner.paths and inner.paths[key] or of.prefix .. key end
  for _, one in ipairs(is_part and {} or adapters.halves(identity.keys)) do
    found:add("missing-weight", file, of.path_of(one.partner), ("the weight is missing: LoRA matrices are pairs, and '%s' is there")
      :format(one.key))
  end
  if identity.problem then found:add("config", file, nil, identity.problem, { severity = not identity.is_broken and "note" or nil }) end
  local around = identity.contents and (#inner.taken > 0 or #inner.stacked > 0) and contents.text(inner, true)
  local alone = #inner.taken == 0 and { advice = "Nothing has to be done: cbk takes them apart. Programs that need single experts get them "
    .. "from `cbk convert` to the Model Zoo and back" } or nil
  if around then found:add("wrapped", file, nil, around, alone) end
  local adapter = identity.adapter
  if adapter then
    found:add("config", file, nil, adapter.reason, { severity = "note", advice = (adapter.advice:gsub("^%l", string.upper)) })
  end
  config = config or kept
  of.settings = config
  if not of.config and not config then return of end
  if not of.name and identity.advice then
    add_unknown(of, file, found, identity.reason, identity.lacks_head and "error" or "note", identity.advice)
    return of
  end
  if not of.name and identity.is_other_kind and config_path then
    found:add("config", of.config, nil, identity.reason)
    return of
  end
  if not of.name then of.name, of.format = by_config_alone(config) end
  if not of.name then
    add_unknown(of, file, found, identity.reason)
    return of
  end
  local known_fine, known = warnings.quietly(function()
    return identity.fit and identity.fit.known or classes.tensors(config, of.name, of.format)
  end)
  if not known_fine then
    add_unknown(of, file, found, errors.text(known), "warning", false) -- the model is known
    return of
  end
  local is_sound, mistake = warnings.quietly(known.class.check, known.class, known.config, known.config)
  if not is_sound then
    add_mistake(of, file, found, mistake) -- such a config says nothing about shapes
    return of
  end
  of.known = known
  local one = identity.fit or recognise.fit(identity, known)
  if one.matched == 0 and #one.wrong == 0 then
    local subject = of.config and "it" or "the config in __metadata__"
    found:add("config", of.config or file, nil, ("%s is for %s, but no tensor of %s is one of that model"):format(subject,
      known.class.name, cbk.quote(cbk.fs.basename(file))))
    of.known = nil
    return of
  end
  if identity.foreign then
    found:add("config", of.config or file, nil, ("%s; the tensors are those of %s"):format(architectures.why_foreign(identity.foreign, {}),
      known.class.name), { severity = "note", advice = "Make sure that both compute the same before you convert it" })
  end
  of.paths = paths_of(of, identity.keys)
  check_fit(of, file, one, checkpoint.lost, found, is_part)
  return of
end

---Whether the config ties two tensors.
---@param of ModelOfFile|nil
function model.ties(of, key_a, key_b)
  for _, tied in ipairs(of and of.known and of.known:tied_names() or {}) do
    local has = {}
    for _, name in ipairs(tied) do has[of.paths[name] or ""] = true end
    if has[key_a] and has[key_b] then return true end
  end
  return false
end

---The paths of weights that the config ties, if the checkpoint has them.
---@param of ModelOfFile|nil
---@return table<string, boolean>
function model.tied_paths(of)
  local out = {}
  for _, tied in ipairs(of and of.known and of.known:tied_names() or {}) do
    for _, name in ipairs(tied) do
      if of.paths[name] then out[of.paths[name]] = true end
    end
  end
  return out
end

---Reports tied weights with different values, as far as they were read.
---@param of ModelOfFile|nil
---@param by_path table<string, CheckedTensor>   of model.tied_paths
---@param found Findings
function model.check_ties(of, by_path, found)
  for _, tied in ipairs(of and of.known and of.known:tied_names() or {}) do
    local first
    for _, name in ipairs(tied) do
      local one = by_path[of.paths[name] or ""]
      first = first or one
      if one and one ~= first and one.scan.fingerprint ~= first.scan.fingerprint then
        found:add("tied-weights-differ", one.file, one.key, ("it differs from %s, but the config ties them"):format(first.key))
      end
    end
  end
end

return model
