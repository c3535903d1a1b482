-- The config file along the steps of a conversion.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local fields = require "converters.engine.fields"
local file = require "converters.modelzoo.file"
local hf_config = require "converters.modelzoo.hf_config"
local history = require "converters.engine.history"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local mup = require "converters.modelzoo.mup"
local naming = require "cbk.naming"
local own_config = require "converters.conversion.own_config"
local pretrained = require "converters.engine.pretrained"
local quantised = require "cbk.quantised"
local releases = require "converters.engine.releases"
local rules = require "converters.engine.rules"
local run_config = require "converters.modelzoo.run_config"
local sections = require "converters.engine.sections"
local steps = require "converters.conversion.steps"
local trainer = require "converters.modelzoo.trainer"

local configs = {}

local function is_hf(format) return format == "hf" end

---The value of a field, maybe of a section.
local function value_of(name, config)
  local value, section, inner = config[name], name:match "^(.-)%.(.*)$"
  if value == nil and kinds.is_dict(config, section) then value = config[section][inner] end
  return value
end

---A field with its value if that is short.
local function with_value(name, config)
  local value = value_of(name, config)
  if value == nil or type(value) == "table" then return name end
  local text = fields.shown(value)
  return #text <= 40 and name .. "=" .. text or name
end

local MOST_SHOWN = 120 -- fields, and characters of a field's name

---@param config Dict           the config with these fields
---@param what_happens? string
local function note_dropped(dropped, config, what_happens)
  local named = {}
  for _, name in ipairs(dropped) do
    local is_shown = #named < MOST_SHOWN
    -- model.name only says which class reads the config
    if name ~= "name" then
      named[#named + 1] = not is_shown and name or #name <= MOST_SHOWN and with_value(name, config) or name:sub(1, MOST_SHOWN) .. "…"
    end
  end
  if #named == 0 then return end
  cbk.warn(("config fields without a counterpart are %s: %s"):format(what_happens or "left out", naming.listed(named, MOST_SHOWN)))
end

---@param given Dict   the model's fields in the user's file
---@param assumed table<string, boolean>   StepConfigs.assumed
---@return StepConfigs
local function both_configs(step, given, from, to, assumed)
  local read = sections.nested(step.converter, step.side, from)
  return { converter = step.converter, given = given, [step.side] = read, [rules.other[step.side]] = to, assumed = assumed }
end

---The table that a step runs. The config chooses it if a model is inside another one, or if a family has several layouts.
---@param model Model
---@param step Step
---@param config Dict   the whole file
local function chosen(model, step, config)
  local section = is_hf(step.src) and config or trainer.model(config)
  if step.converter.wrap then step = catalogue.wrapped(step, section) end
  if not (is_hf(step.src) or is_hf(step.tgt)) then step = catalogue.step_of_class(model, step, section) end
  local converter = step.converter
  if not converter.choose then return step end
  local name = converter.choose(section, step.side)
  local variant = converter.variants[name]
  if not variant then
    cbk.fail("converter", ("%s -> %s: 'choose' returned %s; the variants are %s"):format(step.src, step.tgt, fields.shown(name),
      table.concat(naming.sorted(converter.variants), ", ")))
  end
  return { converter = variant, side = step.side, src = step.src, tgt = step.tgt }
end

---Folds muP multipliers into a model section; those in sections of their own, such as the parts of a composite, cannot be folded.
local function fold_mup(job, model, converter)
  local has_rule, name = {}, job.model.model
  for _, rule in ipairs(converter.config or {}) do has_rule[rule.right or ""] = true end
  for section in cbk.items(model) do
    if kinds.is_dict(model, section) then mup.fold(model[section], nil, ("%s: %s"):format(name, tostring(section)), has_rule) end
  end
  local folded, scale, untie = mup.fold(model, converter.mup, name, has_rule)
  if scale and job.is_config_only then
    cbk.warn("`cbk convert` folds the config's muP fields into the weights: this config is right for weights that were converted with it "
      .. "only")
  end
  return folded, scale, untie
end

---Fields of a Hugging Face config without a place in the Model Zoo that are worth a warning; the model's own come first.
---@param names string[]
---@param is_kept boolean|nil   the checkpoint keeps them: no warning for fields that every model has
local function worth_reporting(names, config, is_kept)
  local out, everywhere = {}, {}
  for _, name in ipairs(names) do
    local field = naming.last(name)
    if not pretrained.goes_without_saying(field, value_of(name, config)) then
      local list = pretrained.is_common(field) and everywhere or out
      list[#list + 1] = name
    end
  end
  for _, name in ipairs(is_kept and {} or everywhere) do out[#out + 1] = name end
  return out
end

local function without(names, one)
  local out = {}
  for _, name in ipairs(names) do
    if name ~= one then out[#out + 1] = name end
  end
  return out
end

---Removes the fields from a model section and its parts that the programs of its release refuse, or warns of them.
local function remove_refused(job, step, section)
  local release = catalogue.release(step.tgt)
  for _, part in ipairs(step.converter.components or {}) do
    if part.classes and part.classes.right then part.classes.right:remove_refused(section[part.right], release) end
  end
  local class = (step.converter.classes or job.model.classes or {}).right
  if class then class:remove_refused(section, release) end
end

---The same for a step to a newer release, which keeps the fields, as the original converter does.
local function check_newer(job, section, src, tgt)
  local newest, class = catalogue.newest_step(job.model, "left"), catalogue.zoo_class(job.model, section)
  for _, part in ipairs(newest and newest.converter.components or {}) do
    if part.classes.right and kinds.is_dict(section, part.right) then part.classes.right:check_newer(section[part.right], src, tgt) end
  end
  if class then class:check_newer(section, src, tgt) end
end

---Sets the names that a model section of a newer release needs. The original converter leaves out the model's own where one table leads
---to the release at once.
local function name_newer(job, step, section, tgt, at_once)
  if not at_once and tgt == (step.converter.named_from or "2.4") then file.set_name(section, tgt, job.zoo_name) end
  local newest = catalogue.newest_step(job.model, "left")
  file.name_parts(section, tgt, job.zoo_name, newest and newest.converter.components)
end

---@return History|nil
local function history_of_class(model, section)
  local class = catalogue.zoo_class(model, section)
  return class and class.history
end

local function config_from_hf(job, step, config)
  file.refuse(config)
  local section = sections.of_file(step.converter, step.side, config)
  local moves, named = {}, {}
  local to, from, dropped, assumed, unsaid = sections.convert(step.converter, step.side, section, moves, nil, { source = job.source })
  for _, move in ipairs(moves) do named[move[2]] = move[1] end
  local release = catalogue.release(step.tgt)
  local way = { to = release, starts_at_hf = true, named = named, given = from }
  history.check(job.model.history, from, way)
  history.check(history_of_class(job.model, to), to, way)
  history.warn_of_meanings(history_of_class(job.model, to), to, nil, release)
  local converted = file.precision_to_cs(to, config, release)
  local is_kept = job.keeps_fields and not steps.keeps_model_only(job.path[#job.path])
  local lost = without(worth_reporting(dropped, from, is_kept), converted)
  note_dropped(lost, from, is_kept and "kept in the checkpoint, and restored on the way back" or nil)
  for _, name in ipairs(dropped) do unsaid[#unsaid + 1] = name end
  job.hf_config = hf_config.pick(section, from, without(unsaid, converted))
  remove_refused(job, step, to)
  file.set_name(to, release, job.zoo_name, step.converter.named_from)
  file.name_parts(to, release, job.zoo_name, step.converter.components)
  return own_config.whole(step, to), both_configs(step, section, from, to, assumed)
end

local function config_to_hf(job, step, config)
  local known, section = sections.known_fields(step.converter, step.side), cbk.copy(trainer.model(config))
  section = sections.of_file(step.converter, step.side, section)
  local others, given = cbk.copy(config), cbk.copy(section)
  sections.move(step.converter.beside, others, section)
  sections.check(section, known)
  history.warn_of_meanings(history_of_class(job.model, section), section, catalogue.release(step.src), nil)
  local folded, scale, untie = fold_mup(job, sections.plain(section, known), step.converter)
  local to, from, dropped, assumed = sections.convert(step.converter, step.side, folded, nil, nil,
    { hf_config = job.hf_config, source = job.source, file = config })
  note_dropped(dropped, from)
  file.precision_to_hf(to, config)
  steps.warn_of_others(step, "config", file.beside_model(others))
  if job.hf_config then hf_config.restore(to, job.hf_config, sections.known(step.converter, rules.other[step.side])) end
  local both = both_configs(step, given, from, to, assumed)
  both.scale, both.untie = scale, untie
  return sections.for_file(step.converter, "left", to), both
end

---Warns if a step goes back to a release before 2.3, which introduced the trainer layout. The config keeps that layout.
---@param config Dict   the whole file
local function warn_of_layout(src, tgt, config)
  if not releases.since(src, "2.3") or releases.since(tgt, "2.3") or not trainer.is(config) then return end
  cbk.warn(("the config keeps its 'trainer' layout, which release %s does not read (it is new in 2.3): move its parts to model, "
    .. "optimizer, runconfig, train_input and eval_input"):format(tgt))
end

local function config_between_releases(job, step, config)
  file.check_precision(config, catalogue.release(step.src), catalogue.release(step.tgt))
  local given = sections.of_file(step.converter, step.side, trainer.model(config))
  config = cbk.deep_copy(config)
  local moves, at = {}, trainer.place_of_model(config) .. "."
  local section = trainer.model(config)
  local class = catalogue.zoo_class(job.model, section)
  local to, from, dropped, assumed = sections.convert(step.converter, step.side, section, moves, class)
  for _, one in ipairs(moves) do one[1], one[2] = at .. one[1], at .. one[2] end
  note_dropped(dropped, from)
  local src, tgt = catalogue.release(step.src), catalogue.release(step.tgt)
  if catalogue.since(tgt, src) then
    check_newer(job, to, src, tgt)
  else
    history.check(history_of_class(job.model, to), to, { to = tgt, from = src, starts_at_hf = is_hf(job.path[1].src) })
  end
  history.warn_of_meanings(history_of_class(job.model, to), to, src, tgt)
  warn_of_layout(src, tgt, config)
  trainer.set_model(config, to)
  local at_once_from = job.path.at_once and catalogue.release(job.path[1].src) or nil
  config = run_config.upgrade(config, src, tgt, moves, { at_once_from = at_once_from, keeps_lists = job.keeps_lists })
  if src ~= tgt and catalogue.since(tgt, src) then name_newer(job, step, trainer.model(config), tgt, at_once_from ~= nil) end
  local both = both_configs(step, given, from, to, assumed)
  both.moves = moves
  return config, both
end

local function config_as_it_is(_, step, config)
  local section = trainer.model(config)
  return config, both_configs(step, section, section, section, {})
end

---The config of a layout of the user's own, or of a table that needs none. Nothing keeps what the other side cannot express.
local function config_of_own(job, step, config)
  if not config then return nil, own_config.of_defaults(step) end
  local section, others = own_config.section(step, config)
  steps.warn_of_others(step, "config", others)
  own_config.refuse_other(step, section)
  local given, release, scale, untie = section, catalogue.release(step.tgt), nil, nil
  if catalogue.release(step.src) and not release then
    section, scale, untie = fold_mup(job, cbk.copy(section), step.converter)
  end
  local to, from, dropped, assumed = sections.convert(step.converter, step.side, section, nil, nil,
    { hf_config = job.hf_config, source = job.source, file = config })
  note_dropped(own_config.lost(step, dropped, section), from)
  own_config.warn_of_further_names(step, from)
  if release then
    history.check(history_of_class(job.model, to), to, { to = release, starts_at_hf = true })
    remove_refused(job, step, to)
    file.set_name(to, release, job.zoo_name, step.converter.named_from)
  end
  local both = both_configs(step, given, from, to, assumed)
  both.scale, both.untie = scale, untie
  return own_config.whole(step, to), both
end

local function config_step(job, i, config)
  local step, run = job.path[i], config_of_own
  if not steps.is_bare(step, config) then
    step = chosen(job.model, step, config)
    run = is_hf(step.src) and config_from_hf or is_hf(step.tgt) and config_to_hf
      or step.src == step.tgt and config_as_it_is or config_between_releases
  end
  if step.converter.generic then job.copies[#job.copies + 1] = step.src .. " -> " .. step.tgt end
  job.files[i] = config
  job.files[i + 1], job.configs[i] = run(job, step, config)
  for _, one in ipairs(steps.tables(job.configs[i])) do keys.check_counts(one.converter.keys or {}, one.configs) end
  return job.files[i + 1]
end

---A Hugging Face config without the fields about quantised weights: the output has none.
---@param job Job
---@param config Dict|nil
---@return Dict|nil
local function without_quantisation(job, config)
  local stated = config and is_hf(job.path[1].src) and quantised.stated(config)
  if not stated then return config end
  local out, left_out = quantised.without_fields(config)
  local what = job.source and "but none are: left out of the new config: " or "which the new config cannot say: left out of it: "
  cbk.warn(("the config says that the weights are quantised (%s), %s%s"):format(stated.method, what, naming.all_folded(left_out)))
  return out
end

---Converts the config by one step of the job's path.
---@param job Job
---@param i integer     the step
---@param config Dict|nil   the whole file
---@return Dict|nil         the whole new file
function configs.step(job, i, config) return steps.run(job, i, config_step, config) end

---Fails if what was read is no config.
local function check(config)
  if config == cbk.null then cbk.fail("config", "the config is empty") end
  if not kinds.is_dict(config) then
    cbk.fail("config", ("the config should be a map of fields, found a %s"):format(tostring(cbk.kind(config))))
  end
  if cbk.count(config) == 0 then cbk.fail("config", "the config is empty: it has no model fields") end
end

---Fails if a conversion needs a config.
---@param path Path
local function refuse_without_config(path)
  if #path == 1 and steps.is_bare(path[1], nil) then return end
  cbk.fail("config", "the conversion needs a config: name it with --config")
end

---@param job Job
---@param config Dict|nil   the whole file; nil: a table of the user's own has defaults, or needs none
---@return Dict|nil         the whole new file
function configs.convert(job, config)
  if config == nil then refuse_without_config(job.path) else check(config) end
  job.configs, job.files, job.copies = {}, {}, {}
  if job.source then steps.refuse_quantised(job, job.source, config) end
  config = without_quantisation(job, config)
  for i in ipairs(job.path) do
    config = configs.step(job, i, config)
    if job.is_config_only then -- a large config would be kept several times; Lua does not count its native memory
      job.configs[i], job.files[i] = false, false
      collectgarbage()
    end
  end
  return config
end

return configs
