-- Errors and warnings about a checkpoint that does not fit its class (fit.lua).

local cbk = require "cbk"
local class_tensors = require "converters.engine.class_tensors"
local errors = require "cbk.errors"
local extents = require "cbk.extents"
local quantised = require "cbk.quantised"
local naming = require "cbk.naming"

local fit_checks = {}

local MOST_SHAPES = 2 -- in one message; more are hard to compare
local MOST_KEPT = 2000 -- names of missing weights

---For each set of config fields that contradicts a shape, the first such tensor. The smallest sets come first.
---@param wrong { key: string, why: string, fields: string[] }[]
---@return { key: string, why: string }[]
local function one_of_each(wrong)
  local out, seen = {}, {}
  for i, one in ipairs(wrong) do
    local cause = table.concat(one.fields, ", ")
    if not seen[cause] then out[#out + 1] = { key = one.key, why = one.why, fields = #one.fields, place = i } end
    seen[cause] = true
  end
  table.sort(out, function(a, b)
    if a.fields ~= b.fields then return a.fields < b.fields end
    return a.place < b.place
  end)
  return out
end

---Fails if tensors have other shapes than the config implies.
---@param found Fit|nil
---@param place string      what is before the keys in the checkpoint
---@param is_read boolean   the tensors are read, not made by rules
function fit_checks.shapes(found, place, is_read)
  local wrong = found and found.wrong or {}
  if #wrong == 0 then return end
  local shown = {}
  for i, one in ipairs(one_of_each(wrong)) do
    if i <= MOST_SHAPES then shown[i] = ("'%s%s': %s"):format(place, one.key, one.why) end
  end
  cbk.fail("shape", ("the config contradicts %d tensor%s of the %s%s %s; %s"):format(#wrong, #wrong == 1 and "" or "s",
    is_read and "checkpoint" or "converted checkpoint", #wrong > #shown and ", such as" or ":", table.concat(shown, ", and "),
    is_read and "use the config that belongs to the checkpoint" or "the config or the converter's rules are wrong"))
end

---Refuses weights of less than 16 bits, and of no floats: no class has such weights, but quantised ones that lost their scales look
---like this.
---@param found Fit|nil   nil: no class describes the tensors, and their names say which are weights
---@param place string    what is before the keys in the checkpoint
---@param has StateDict
function fit_checks.codes(found, place, has)
  local weights = {}
  for _, one in ipairs(found and has.codes or quantised.find(has.tensors).narrow) do
    local own = found and found.known:own_key(one.key)
    local is_weight = not found or own and not found.known.by_key[own].buffer
    if is_weight then weights[#weights + 1] = { key = found and place .. one.key or one.key, dtype = one.dtype } end
  end
  if #weights == 0 then return end
  cbk.fail("unsupported", quantised.narrow_problem(weights, found and found.known.class.name or "the model"),
    { context = { "cannot convert the checkpoint" } })
end

---Fails if the checkpoint has more or fewer layers or experts than the config says. For tables that copy unnamed keys, as between
---releases: they do not check single weights.
---@param found Fit
---@param place string   what is before the keys in the checkpoint
function fit_checks.layers(found, place)
  if #found.known:assumed_counts() > 0 then return end -- a count that the config leaves out cannot be contradicted
  local advice = "use the config that belongs to the checkpoint"
  for _, key in ipairs(found.unknown) do
    local said = found.known:beyond(key)
    if said then cbk.fail("convert", ("the config says %s, but the checkpoint has '%s%s'; %s"):format(said, place, key, advice)) end
  end
  local layer, count = found.known:absent_layer(found.missing)
  if layer then
    cbk.fail("convert", ("the checkpoint has nothing below '%s%s', but the config says %s; %s"):format(place, layer, count, advice))
  end
end

---Whether the original converters copy a key whatever the class has: a bias of a norm, or a weight of relatives of the class.
---@param known ClassTensors
function fit_checks.is_copied(known, key)
  local own = known.by_key[known:own_key(key) or ""]
  if own then return own.foreign == true end
  local weight = key:find "%.bias$" and known.by_key[known:own_key((key:gsub("bias$", "weight"))) or ""]
  return weight and #weight.extents == 1
end

---Fails if rules write tensors that the class does not have. For those that the original converters copy it only warns.
---@param found Fit
---@param place string   what is before the keys in the checkpoint
---@param moves table<string, KeyMove>
function fit_checks.strangers(found, place, moves)
  local others, copied = {}, {}
  for _, key in ipairs(found.unknown) do
    local list = fit_checks.is_copied(found.known, key) and copied or others
    if moves[key] and moves[key].is_written then list[#list + 1] = place .. key end
  end
  local function text(list)
    return ("the checkpoint has %d tensor%s that %s does not have with this config: %s"):format(#list, #list == 1 and "" or "s",
      found.known.class.name, naming.folded(list))
  end
  if #others > 0 then cbk.fail("convert", text(others) .. "; use the config that belongs to the checkpoint") end
  if #copied > 0 then cbk.warn(text(copied) .. "; they are copied, as the original converter does") end
end

---Whether each missing weight has an unknown tensor of its shape: then these may be the weights, under other names.
---@param found Fit
---@param missing string[]
---@param shapes integer[][]   of tensors that the class does not have
local function may_be(found, missing, shapes)
  local count = {}
  for _, shape in ipairs(shapes) do
    local text = extents.shape(shape)
    count[text] = (count[text] or 0) + 1
  end
  for _, key in ipairs(#missing <= #shapes and missing or {}) do
    local text = extents.shape(class_tensors.shape(found.known.by_key[key]))
    count[text] = (count[text] or 0) - 1
    if count[text] < 0 then return false end
  end
  return #missing <= #shapes
end

---The missing weights, a layer without any weight, and the number of layers if it is only a default.
---@param found Fit
---@param missing string[]
---@param shapes? integer[][]   of tensors that the class does not have
function fit_checks.lacking(found, missing, shapes)
  local layer, count = found.known:absent_layer(missing)
  return { count = #missing, assumed = #missing > 0 and found.known:assumed_counts()[1] or nil, layer = layer, layers = count,
    may_be_renamed = may_be(found, missing, shapes or {}), unpack(missing, 1, MOST_KEPT) }
end

local function count_text(lacking) return ("%d %s"):format(lacking.count, lacking.count == 1 and "weight is" or "weights are") end

---The message about a checkpoint that lacks weights.
---@param lacking table     of fit_checks.lacking
---@param advice? string    in place of the general one
---@return string
function fit_checks.incomplete_text(lacking, advice)
  local assumed = lacking.assumed and ("; %s is assumed, because the config does not set it"):format(lacking.assumed) or ""
  local layers = lacking.layer and not lacking.assumed
    and ("; the config says %s, and the checkpoint has nothing below '%s'"):format(lacking.layers, lacking.layer) or ""
  local is_told = assumed ~= "" or layers ~= ""
  local usual = is_told and "" or "; use a complete checkpoint, or check with `cbk identify` that the model is right"
  return ("the checkpoint is incomplete: %s missing: %s%s%s%s"):format(count_text(lacking),
    naming.folded(lacking, layers ~= "" and 3 or nil), assumed, layers, advice or usual)
end

---The message if weights are missing because the file is one of several; nil if its name is not that of a shard.
---@param lacking table     of fit_checks.lacking
---@param path string|nil   of the file
---@return string|nil problem, string|nil advice
function fit_checks.shard_text(lacking, path)
  local number, count = (path or ""):match "%-(%d+)%-of%-(%d+)%.[^./]+$"
  if not number or tonumber(count) < 2 then return nil end
  return ("%s missing: this is shard %d of %d"):format(count_text(lacking), number, count), "open its folder or index.json"
end

---Fails if weights are missing. Called once it is known that every key has a rule.
---@param lacking table     of fit_checks.lacking
function fit_checks.refuse_incomplete(lacking)
  if lacking.count > 0 then errors.fail_with("convert", fit_checks.incomplete_text(lacking), { lacking = lacking }) end
end

---Those of `keys` that the class computes from the config, or that are optional.
---@param found Fit
---@param keys string[]
---@return string[]
function fit_checks.spare(found, keys)
  local out = {}
  for _, key in ipairs(keys) do
    local one = found.known.by_key[found.known:own_key(key) or ""]
    if one and (one.buffer or one.optional) then out[#out + 1] = key end
  end
  return out
end

---Reports tensors of the output that its model does not have. For Hugging Face it is an error: its programs leave them out and compute
---something else.
---@param written Fit
---@param is_hf boolean
---@return string|nil   a warning, for other formats
function fit_checks.strange_output(written, is_hf)
  local list = {}
  for _, key in ipairs(written.unknown) do
    if not fit_checks.is_copied(written.known, key) then list[#list + 1] = key end
  end
  if #list == 0 then return nil end
  local text = ("the output has %d tensor%s that %s does not have: %s"):format(#list, #list == 1 and "" or "s", written.known.class.name,
    naming.folded(list))
  if is_hf then cbk.fail("convert", text .. "; the config or the converter's rules are wrong") end
  return text
end

---Warns about optional parts and biases that the checkpoint lacks.
---@param found Fit
function fit_checks.warn_of_lacks(found)
  for _, one in ipairs(found.lacks) do
    cbk.warn(("the checkpoint lacks %s, which some models do without: %s"):format(one.name, naming.folded(one.keys)))
  end
  if #found.unsaid == 0 then return end
  local names = {}
  for i, one in ipairs(found.unsaid) do names[i] = one.name end
  cbk.warn(("the config does not say %s, and the checkpoint has none of the biases that the default means: it is converted without them")
    :format(table.concat(names, ", ")))
end

return fit_checks
