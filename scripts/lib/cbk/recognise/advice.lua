-- Advice for checkpoints with keys that no rule of a conversion matches, or with missing weights. The facts about a model come from its
-- class.

local cbk = require "cbk"
local adapters = require "cbk.recognise.adapters"
local architectures = require "cbk.recognise.architectures"
local candidates = require "cbk.recognise.candidates"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.authoring.coverage"
local errors = require "cbk.errors"
local fit = require "converters.engine.fit"
local fit_checks = require "converters.engine.fit_checks"
local names = require "cbk.recognise.names"
local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local release_facts = require "cbk.recognise.release"
local releases = require "converters.engine.releases"
local rules = require "converters.engine.rules"
local steps = require "converters.conversion.steps"
local tables = require "converters.authoring.tables"
local trainer = require "converters.modelzoo.trainer"
local unmatched = require "converters.conversion.unmatched"
local wrapped = require "cbk.recognise.wrapped"

local advice = {}

local MOST_KEYS = 2000 -- enough to recognise a model

---The first keys of the checkpoint that have a value.
local function keys_of(source)
  local out = {}
  for i, key in ipairs(names.keys_of(source)) do
    if i <= MOST_KEYS and source[key] ~= cbk.null then out[#out + 1] = key end
  end
  return out
end

local function source_format(job) return job.path[1].src end

---The tensors of a model by its class and the source's config; nil if no class describes the model with this config.
---@param model Model
---@param job Job
---@return ClassTensors|nil
local function tensors_of(model, job)
  local format, config = source_format(job), job.files[1] or cbk.dict()
  local converter = model == job.model and job.configs[1] and job.configs[1].converter or {}
  local class, release = catalogue.class_of(model, converter, format)
  local fine, known = pcall(function()
    return class:tensors(catalogue.release(format) and trainer.model(config) or config, { release = release })
  end)
  return fine and known or nil
end

---Why another table of the model leaves these keys out; nil if none does.
---@param strangers string[]
local function known_as_lost(job, strangers)
  local whys = {}
  for _, one in ipairs(tables.of { job.model }) do
    local reads = catalogue.names_format(one.converter[job.path[1].side == "left" and 1 or 2], source_format(job))
    local compiled = reads and patterns.compile(one.keys, job.path[1].side)
    for _, key in ipairs(compiled and strangers or {}) do
      local hit = patterns.match(compiled, key)[1]
      if hit and hit.ending.kind == "drop" then whys[key] = hit.ending.why end
    end
  end
  for _, key in ipairs(strangers) do
    if whys[key] ~= whys[strangers[1]] then return nil end
  end
  return whys[strangers[1]]
end

---Keys with numbers that exceed a count in the config, by the rules of the user's own table: its model has no class.
---@param job Job
---@param strangers string[]
---@return string|nil text, integer|nil count
local function beyond_rules(job, strangers)
  for i, configs in ipairs(job.configs) do
    for _, one in ipairs(steps.tables(configs)) do
      local own, side, step = one.converter, job.path[i].side, job.path[i]
      local at = { side = side, left = one.configs.left, right = one.configs.right, source = function() end }
      local formats = side == "left" and { step.src, step.tgt } or { step.tgt, step.src }
      local read = { keys = own.keys, part = own.left and own, inside = own.inside, converter = formats }
      local text, count = coverage.beyond(coverage.of(read, side, strangers, at))
      if text then return text, count end
    end
  end
end

---Keys with numbers that exceed a count in the config.
---@param job Job
---@param strangers string[]
---@return string|nil text, integer|nil count
local function beyond_counts(job, strangers)
  local known, counts, order, total = tensors_of(job.model, job), {}, {}, 0
  if not known then return beyond_rules(job, strangers) end
  for _, key in ipairs(known and strangers or {}) do
    local said = known:beyond(key)
    if said and not counts[said] then counts[said], order[#order + 1] = 0, said end
    if said then counts[said], total = counts[said] + 1, total + 1 end
  end
  for i, said in ipairs(order) do
    order[i] = ("%d of them %s beyond %s of the config"):format(counts[said], counts[said] == 1 and "has a number" or "have numbers", said)
  end
  if total > 0 then return table.concat(order, ", "), total end
end

---The models with a class that has all of these names with the source's config.
---@param job Job
---@param keys string[]
---@param is_whole boolean   the class needs no other names
---@return string[]   three at most
local function models_with(job, keys, is_whole)
  local out, format = {}, source_format(job)
  for _, one in ipairs(candidates.described(format == "hf" and "left" or "right")) do
    local known = one.model ~= job.model and tensors_of(one.model, job)
    local found = known and known:own_key(keys[1] or "") and fit.of(known, keys, function() end)
    if found and #found.unknown == 0 and not (is_whole and #found.missing > 0) then
      out[#out + 1] = { name = one.model.model, missing = #found.missing }
    end
  end
  table.sort(out, function(a, b)
    if a.missing ~= b.missing then return a.missing < b.missing end
    return #a.name < #b.name or #a.name == #b.name and a.name < b.name
  end)
  for i, one in ipairs(out) do out[i] = one.name end
  return { unpack(out, 1, 3) }
end

---The models for which the checkpoint is complete, as the end of a message; nil if there are none.
---@param job Job
---@param source Dict   the checkpoint
---@return string|nil
function advice.lacking(job, source)
  local found = models_with(job, keys_of(source), true)
  return #found > 0 and "; the checkpoint is complete for --model " .. table.concat(found, " or ") or nil
end

---@param found Wrapped
---@param place string
local function renaming(found, place)
  local missing = #found.missing > 0 and (" (still missing: %s)"):format(naming.folded(found.missing)) or ""
  return ("%s: `%s`%s%s"):format(wrapped.how(found), wrapped.command(found, place), wrapped.losses(found), missing)
end

---Whether a job's table has a layout of the user's own, or needs no config.
local function is_bare(job) return steps.is_bare(job.path[1], job.files[1]) end

---The models with the class that the config names, if the model is another one, such as its body. Of a model without a head, also the one
---with it.
---@param job Job
---@return Model[]
local function meant(job)
  local class, out = architectures.stated(job.files[1]), {}
  for _, name in ipairs(class and catalogue.names() or {}) do
    local model = catalogue.find(name)
    if architectures.is_of(model, class) and not architectures.is_of(job.model, class) then out[#out + 1] = model end
  end
  local full = catalogue.find(job.model.model:match "^(.*)%-headless$" or "")
  if full then table.insert(out, 1, full) end
  return out
end

---How to rename weights to the names of the class. A model without a head is not made from one that has it.
---@param job Job
---@param source Dict
---@return string|nil
local function under_other_names(job, source)
  if #(job.path[1].converter.components or {}) > 0 then return nil end
  local is_hf, own = source_format(job) == "hf", tensors_of(job.model, job)
  local others = is_hf and not is_bare(job) and meant(job) or {}
  for _, other in ipairs(others) do
    local known = tensors_of(other, job)
    if known and fit.mistakes(fit.of(known, keys_of(source), function() end)) == 0 then
      return ("; they are those of --model %s"):format(other.model)
    end
  end
  if job.whole and job.whole ~= source and not (own and wrapped.find(wrapped.leaves(is_hf and source or source.model), own)) then
    return nil -- the wrappers around the model were removed already
  end
  local whole = job.whole or source
  local place = is_hf and "" or "model."
  local leaves = wrapped.leaves(not is_hf and whole.model or whole)
  for _, other in ipairs(others) do
    local known = tensors_of(other, job)
    local found = known and wrapped.find(leaves, known)
    if found and #found.missing == 0 then return ("; they are those of --model %s %s"):format(other.model, renaming(found, place)) end
  end
  local found = own and wrapped.find(leaves, own)
  local fits = found and (#found.missing == 0 or found.matched == #leaves - #found.left_out)
  return fits and "; they fit " .. renaming(found, place) or nil
end

---Advice if all keys are those of the layout that would be written.
---@param job Job
---@param source Dict
---@return string|nil
local function in_the_other_layout(job, source)
  local step = job.path[1]
  local one = { keys = step.converter.keys, converter = step.converter }
  if #coverage.of(one, rules.other[step.side], names.keys_of(source)).unmatched > 0 then return nil end
  return ("; all keys are those of %s: the checkpoint has this layout already, and --to %s makes the other one of it"):format(step.tgt,
    step.src)
end

---Whether the class of a model in another release has all of these keys.
---@param job Job
---@param format string
---@param strangers string[]
local function has_all(job, format, strangers)
  local class, of = catalogue.class_of(job.model, {}, format)
  local fine, known = pcall(function() return class:tensors(trainer.model(job.files[1]), { release = of }) end)
  for _, key in ipairs(fine and strangers or {}) do
    if not known:own_key(key) then return false end
  end
  return fine
end

---Advice if the keys are those of other releases of the model.
---@param job Job
---@param strangers string[]
---@return string|nil
local function of_other_release(job, strangers)
  local own, found = catalogue.release(source_format(job)), {}
  for _, one in ipairs(own and job.files[1] and releases.known or {}) do
    local format = one ~= own and catalogue.format_at(job.model, one)
    if format and has_all(job, format, strangers) then found[#found + 1] = one end
  end
  if #found == 0 then return nil end
  local stated = select(2, release_facts.of_metadata(job.whole or job.source))
  local is_among = stated and releases.since(stated, found[1]) and releases.since(found[#found], stated)
  return ("; %s of release %s; use --src-fmt %s"):format(#strangers == 1 and "this name is" or "these names are",
    release_facts.range { from = found[1], to = found[#found] }, is_among and "cs-" .. stated or "cs-auto")
end

---Other explanations of the keys, besides numbers that exceed a count.
local function of_names(job, source, strangers)
  if is_bare(job) then return in_the_other_layout(job, source) end
  local own = catalogue.is_own(job.model.model) and catalogue.file_of(job.model.model)
  if own then return ("; add %s to '%s'"):format(#strangers == 1 and "a rule for it" or "rules for them", own) end
  local released = of_other_release(job, strangers)
  if released then return released end
  local renamed = under_other_names(job, source)
  if renamed then return renamed end
  local found = models_with(job, keys_of(source), false)
  if #found > 0 then return "; all keys fit --model " .. table.concat(found, " or ") end
  local why = not job.drop_unmatched and known_as_lost(job, strangers)
  local text = "; other conversions from %s leave it out (%s): pass --drop-unmatched-keys to do so here"
  if why then return text:format(source_format(job), why) end
end

---The class that a Hugging Face config names, if no model has it, as a part of a message.
---@param job Job
---@return string|nil
local function context_of(job)
  local class = source_format(job) == "hf" and not is_bare(job) and architectures.foreign(job.files[1])
  return class and "; " .. architectures.why_foreign(class, { job.model }) or nil
end

---What else the keys may be, as the end of a message; nil if nothing is known. And the facts that always apply.
---@param job Job
---@param source Dict   the checkpoint
---@param strangers string[]   keys without a rule
---@return string|nil advice, string|nil context
function advice.unmatched(job, source, strangers)
  local matrices = adapters.text(strangers, source_format(job))
  if matrices then return "; " .. matrices end
  local beyond, count = beyond_counts(job, strangers)
  local rest = count ~= #strangers and of_names(job, source, strangers) or ""
  local text = (beyond and "; " .. beyond or "") .. rest
  return text ~= "" and text or nil, context_of(job)
end

---An error of a conversion, with the known facts about the checkpoint added.
---@param job Job
---@param problem any   as returned by pcall
---@return any
function advice.explained(job, problem)
  local found = type(problem) == "table" and problem or {}
  if found.unmatched then
    local own, context = advice.unmatched(job, job.source, found.unmatched.keys)
    local check = is_bare(job) and ("cbk rules %s CHECKPOINT"):format(catalogue.file_of(job.model.model)) or nil
    return unmatched.explained(found, { advice = own, context = context, check = check })
  end
  local shard, what_to_do = nil, nil
  if found.lacking then shard, what_to_do = fit_checks.shard_text(found.lacking, job.input_path) end
  if shard then return errors.with(found, { problem = shard, advice = what_to_do }) end
  if found.lacking and not is_bare(job) then
    return errors.with(found, { problem = fit_checks.incomplete_text(found.lacking, advice.lacking(job, job.source)) })
  end
  return problem
end

return advice
