-- One conversion: the config file and the checkpoint along the steps between two formats. It writes no files.

local cbk = require "cbk"
local dataloader_state = require "cbk.dataloader_state"
local errors = require "cbk.errors"
local quantised = require "cbk.quantised"
local rules = require "converters.engine.rules"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local keys = require "converters.engine.keys"
local fit = require "converters.engine.fit"
local fit_checks = require "converters.engine.fit_checks"
local fields = require "converters.engine.fields"
local pretrained = require "converters.engine.pretrained"
local sections = require "converters.engine.sections"
local mup = require "converters.modelzoo.mup"
local releases = require "converters.engine.releases"
local state_dict = require "converters.engine.state_dict"
local run_config = require "converters.modelzoo.run_config"
local history = require "converters.engine.history"
local trainer = require "converters.modelzoo.trainer"
local catalogue = require "converters.engine.catalogue"
local tensors = require "converters.conversion.tensors"
local unmatched_keys = require "converters.conversion.unmatched"
local wrap = require "converters.engine.wrap"
local checkpoint = require "converters.modelzoo.checkpoint"
local file = require "converters.modelzoo.file"
local hf_config = require "converters.modelzoo.hf_config"

local convert = {}

local function is_hf(format) return format == "hf" end

---@param step Step
local function keeps_model_only(step) return releases.keeps_model_only(step.src, step.tgt) end

-- --- configs

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

---@param assumed table<string, boolean>   fields of the right side that come from defaults, not from the file
local function both_configs(step, from, to, assumed)
  local read = sections.nested(step.converter, step.side, from)
  return { converter = step.converter, [step.side] = read, [rules.other[step.side]] = to, assumed = assumed }
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
local function fold_mup(model, converter, name)
  for section in cbk.items(model) do
    if kinds.is_dict(model, section) then mup.fold(model[section], nil, ("%s: %s"):format(name, tostring(section))) end
  end
  return mup.fold(model, converter.mup, name)
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
  local converted = file.precision_to_cs(to, config, release)
  local is_kept = job.keeps_fields and not keeps_model_only(job.path[#job.path])
  local lost = without(worth_reporting(dropped, from, is_kept), converted)
  note_dropped(lost, from, is_kept and "kept in the checkpoint, and restored on the way back" or nil)
  for _, name in ipairs(dropped) do unsaid[#unsaid + 1] = name end
  job.hf_config = hf_config.pick(section, from, without(unsaid, converted))
  remove_refused(job, step, to)
  file.set_name(to, release, job.zoo_name, step.converter.named_from)
  file.name_parts(to, release, job.zoo_name, step.converter.components)
  local whole = cbk.dict { model = to }
  sections.move(step.converter.beside, to, whole)
  whole.model = sections.for_file(step.converter, "right", to)
  return whole, both_configs(step, from, to, assumed)
end

local function warn_of_others(what, names)
  if #names == 0 then return end
  cbk.warn(("Hugging Face files describe the model only; left out of the %s: %s"):format(what, naming.all_folded(names)))
end

local function config_to_hf(job, step, config)
  local known, section = sections.known_fields(step.converter, step.side), cbk.copy(trainer.model(config))
  section = sections.of_file(step.converter, step.side, section)
  local others = cbk.copy(config)
  sections.move(step.converter.beside, others, section)
  sections.check(section, known)
  local folded, scale, untie = fold_mup(sections.plain(section, known), step.converter, job.model.model)
  local to, from, dropped, assumed = sections.convert(step.converter, step.side, folded, nil, nil,
    { hf_config = job.hf_config, source = job.source, file = config })
  note_dropped(dropped, from)
  file.precision_to_hf(to, config)
  warn_of_others("config", file.beside_model(others))
  if job.hf_config then hf_config.restore(to, job.hf_config, sections.known(step.converter, rules.other[step.side])) end
  local configs = both_configs(step, from, to, assumed)
  configs.scale, configs.untie = scale, untie
  return sections.for_file(step.converter, "left", to), configs
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
  warn_of_layout(src, tgt, config)
  trainer.set_model(config, to)
  local at_once_from = job.path.at_once and catalogue.release(job.path[1].src) or nil
  config = run_config.upgrade(config, src, tgt, moves, { at_once_from = at_once_from, keeps_lists = job.keeps_lists })
  if src ~= tgt and catalogue.since(tgt, src) then name_newer(job, step, trainer.model(config), tgt, at_once_from ~= nil) end
  local configs = both_configs(step, from, to, assumed)
  configs.moves = moves
  return config, configs
end

local function config_as_it_is(_, step, config)
  local section = trainer.model(config)
  return config, both_configs(step, section, section, {})
end

---@class Job
---@field model Model
---@field zoo_name string
---@field path Path
---@field drop_unmatched? boolean
---@field take_unmatched? fun(key: string)   gets the keys without a rule, which are an error only if weights are missing
---@field seed? integer
---@field deduplicated? boolean|table<string, boolean>   At.deduplicated of the source file, or of each part's file
---@field source? Dict          the tree of the source checkpoint; nil if only a config is converted
---@field whole? Dict           the whole checkpoint around that model, for commands in messages
---@field keeps_fields? boolean   the checkpoint is converted, too, so that no field of a Hugging Face config is lost (hf_config)
---@field hf_config? Dict        the Hugging Face config fields that the checkpoint keeps. For a source, the code that opens it
---                              sets them before the config is converted; otherwise converting the config sets them
---@field keeps_lists? boolean   states to load and tags may be lists in the trainer layout; the original converter drops these
---@field loader? LoaderOptions   for states of data loaders that are read from files
---@field warnings? Warnings     gets those of the steps; default: they go where all warnings go
---@field trace? fun(record: KeyRecord, step: integer)
---@field configs table[]   the model sections and the converter of each step, once the config is converted;
---                              between releases also `moves`: Moves, of the whole file
---@field files Dict[]      the config file before each step, and after the last
---@field plain? Dict        a source whose weights are known not to be quantised
---@field doubts? string[]   what the output lacks, or has without need; each was a warning
---@field is_unchecked? boolean   the warning that the model has no class has been printed
---@field is_config_only? boolean   no checkpoint is converted after it: `configs` and `files` are not kept
---@field copies string[]   the steps that change metadata and config only, no tensor

---Runs `body`. If there are several steps, its errors name the step.
---@param job Job
---@param i integer   the step
local function in_step(job, i, body, ...)
  local fine, result
  if job.warnings then fine, result = job.warnings:run(body, job, i, ...) else fine, result = pcall(body, job, i, ...) end
  if fine then return result end
  if #job.path > 1 then errors.put_in(result, ("%s -> %s"):format(job.path[i].src, job.path[i].tgt)) end
  error(result, 0)
end

---The tables of keys that a step runs, each with its configs. The parts of a composite have their own sections.
---@param configs table   of one step (Job)
---@return { converter: Converter, configs: table }[]
function convert.tables(configs)
  local out = {}
  for k, part in ipairs(configs.converter.components or {}) do
    local own = { left = configs.left[part.left], right = configs.right[part.right], assumed = configs.assumed[part.right] }
    out[k] = { converter = part, configs = own }
  end
  return #out > 0 and out or { { converter = configs.converter, configs = configs } }
end

local function config_step(job, i, config)
  local step = chosen(job.model, job.path[i], config)
  if step.converter.generic then job.copies[#job.copies + 1] = step.src .. " -> " .. step.tgt end
  local run = is_hf(step.src) and config_from_hf or is_hf(step.tgt) and config_to_hf
    or step.src == step.tgt and config_as_it_is or config_between_releases
  job.files[i] = config
  job.files[i + 1], job.configs[i] = run(job, step, config)
  for _, one in ipairs(convert.tables(job.configs[i])) do keys.check_counts(one.converter.keys or {}, one.configs) end
  return job.files[i + 1]
end

---Fails if the weights of the source are quantised.
---@param job Job
---@param root Dict
---@param config Dict   of the source, the whole file
local function refuse_quantised(job, root, config)
  quantised.refuse(root, is_hf(job.path[1].src) and config or nil, "cannot convert the checkpoint")
  job.plain = root
end

---A Hugging Face config without the fields about quantised weights: the output has none.
---@param job Job
---@param config Dict
---@return Dict
local function without_quantisation(job, config)
  local stated = is_hf(job.path[1].src) and quantised.stated(config)
  if not stated then return config end
  local out, left_out = quantised.without_fields(config)
  local what = job.source and "but none are: left out of the new config: " or "which the new config cannot say: left out of it: "
  cbk.warn(("the config says that the weights are quantised (%s), %s%s"):format(stated.method, what, naming.all_folded(left_out)))
  return out
end

---Converts the config by one step of the job's path.
---@param job Job
---@param i integer     the step
---@param config Dict   the whole file
---@return Dict         the whole new file
function convert.config_step(job, i, config) return in_step(job, i, config_step, config) end

---@param job Job
---@param config Dict   the whole file
---@return Dict         the whole new file
function convert.config(job, config)
  if config == cbk.null then cbk.fail("config", "the config is empty") end
  if not kinds.is_dict(config) then
    cbk.fail("config", ("the config should be a map of fields, found a %s"):format(tostring(cbk.kind(config))))
  end
  if cbk.count(config) == 0 then cbk.fail("config", "the config is empty: it has no model fields") end
  job.configs, job.files, job.copies = {}, {}, {}
  if job.source then refuse_quantised(job, job.source, config) end
  config = without_quantisation(job, config)
  for i in ipairs(job.path) do
    config = convert.config_step(job, i, config)
    if job.is_config_only then -- a large config would be kept several times; Lua does not count its native memory
      job.configs[i], job.files[i] = false, false
      collectgarbage()
    end
  end
  return config
end

-- --- checkpoints

---Reports keys without a rule: to the caller that asked for them (diff), as an error, or as a warning.
---@param one Unmatched
local function report_unmatched(job, one)
  if job.take_unmatched and one.lacking.count == 0 then
    for _, key in ipairs(one.keys) do job.take_unmatched(key) end
    return
  end
  one.is_dropped = job.drop_unmatched
  unmatched_keys.report(one)
end

local function view_for(job, i, step)
  local scale = job.configs[i].scale
  local sideband = is_hf(step.tgt) and file.is_sideband(job.files[i])
  if not scale and not sideband then return nil end
  return function(key, value)
    if not kinds.is_tensor(value) then return value end
    if sideband and (value.dtype:find "float") then value = value:replace_nan(0) end
    if scale then return scale(key, value) end
    return value, sideband and "NaN to 0" or nil
  end
end

---@class Part   The input of one table's rules: the model, one of several parts, or the model inside another one.
---@field converter Converter
---@field configs { left: Dict, right: Dict, assumed: table<string, boolean> }
---@field source Dict
---@field reads string      the prefix of its keys in the source checkpoint
---@field writes string[]   the prefixes of its keys in the target checkpoint; several if it is written several times
---@field folder? string    the folder for its tensors

---The parts whose tables are run. On the left each part of a composite has its own checkpoint; on the right they share one.
---@return Part[]
---@return string[] unmatched   keys that belong to no part
local function parts_of(job, i, source)
  local out, unmatched, is_left = convert.tables(job.configs[i]), {}, job.path[i].side == "left"
  for _, part in ipairs(out) do
    local wrapper, folder = part.converter.inside, part.converter.left
    part.source, part.reads, part.writes = source, "", { "" }
    if wrapper and is_left then
      part.writes = { wrapper.place .. ".", wrapper.copy .. "." }
    elseif wrapper then
      part.reads = wrapper.place .. "."
      part.source, unmatched = wrap.take_out(wrapper, source, job.trace and function(record) job.trace(record, i) end)
    elseif folder and is_left then
      part.source, part.reads = source[folder], folder .. "/"
    elseif folder then
      part.folder, part.writes = folder, { folder .. "/" }
    end
  end
  return out, unmatched
end

---Traces what happened to a key, with its names in the checkpoints. A key that is written several times is traced for each.
local function trace_record(job, i, part, record)
  for k, place in ipairs(record.target and part.writes or { "" }) do
    local out = rules.variant(record, { source = part.reads .. record.source, target = record.target and place .. record.target })
    if k > 1 and out.what == "write" then out.what = "beside" end
    job.trace(out, i)
  end
end

---How a part's tensors fit their class; nil if they have none.
---@param format string   the format of the tensors
---@param side Side
---@param has StateDict
---@param given? Dict      the fields in the user's file
---@return Fit|nil
local function fit_of(job, part, format, side, has, given)
  local class, release = catalogue.class_of(job.model, part.converter, format)
  if not class then return nil end
  return fit.of(class:tensors(part.configs[side], { release = release, given = given }), has.keys, has.shape_of)
end

---The fields of a part in the user's file, without defaults.
local function given_of(job, i, part, side)
  local section = is_hf(job.path[i].src) and job.files[i] or trainer.model(job.files[i])
  section = sections.of_file(job.configs[i].converter, side, section)
  local name = part.converter.left and part.converter[side]
  return name and section[name] or section
end

---@param text string   a warning about the output
local function doubt(job, text)
  job.doubts = job.doubts or {}
  table.insert(job.doubts, text)
  cbk.warn(text)
end

---Warns, once, that no class describes one of the sides.
---@param part Part
local function warn_of_no_class(job, i, part)
  local step = job.path[i]
  if job.is_unchecked or not (is_hf(step.src) or is_hf(step.tgt)) then return end
  for _, format in ipairs { step.src, step.tgt } do
    if not catalogue.class_of(job.model, part.converter, format) then
      job.is_unchecked = true
      return cbk.warn(("no class describes '%s' in %s: completeness and shapes of its checkpoint are not checked"):format(job.model.model,
        format))
    end
  end
end

---@param part Part
---@param is_refused boolean   keys without a rule are an error, so that missing weights need no report
---@return ConvertedTensors
local function convert_part(job, i, part, is_refused)
  local step = job.path[i]
  local deduplicated = i == 1 and job.deduplicated
  if type(deduplicated) == "table" then deduplicated = deduplicated[part.converter.left] end
  warn_of_no_class(job, i, part)
  return tensors.convert({
    converter = part.converter, configs = part.configs, side = step.side, src = step.src, tgt = step.tgt, source = part.source,
    reads = part.reads, writes = part.writes[1],
    fit_of = function(side, has)
      local is_read = side == step.side
      return fit_of(job, part, is_read and step.src or step.tgt, side, has, is_read and given_of(job, i, part, side) or nil)
    end,
  }, {
    seed = job.seed, deduplicated = deduplicated, is_refused = is_refused, view = view_for(job, i, step),
    trace = job.trace and function(record) trace_record(job, i, part, record) end,
    doubt = function(text) doubt(job, text) end,
  })
end

---@param out Dict
---@param made Dict   of the part
---@return Dict       `out` with it; for a whole model, `made` itself
local function put(out, part, made)
  if part.folder then
    out[part.folder] = made
    return out
  end
  if #part.writes == 1 and part.writes[1] == "" and cbk.count(out) == 0 then return made end
  for _, place in ipairs(part.writes) do
    for key, value in cbk.items(made) do
      if out[place .. key] ~= nil then cbk.fail("convert", ("two parts write '%s'"):format(key)) end
      out[place .. key] = value
    end
  end
  return out
end

---The tensors of a checkpoint, or those of its parts that are checkpoints of their own, as "part/key".
---@param parts Part[]
---@return Dict
local function in_one(parts, source)
  if not parts[1].reads:find "/$" then return source end
  local out = cbk.dict()
  for _, part in ipairs(parts) do
    for key, value in cbk.items(part.source) do
      if type(key) == "string" then out[part.reads .. key] = value end
    end
  end
  return out
end

---@return Dict out
---@return table<string, KeyMove> moves   if one table is run, as between releases
local function convert_model(job, i, source)
  local untie = job.configs[i].untie
  source = untie and untie(source) or source
  local parts, unmatched = parts_of(job, i, source)
  local readers = job.path[i].side == "left" and 1 or #parts -- that may read one key
  local is_refused = readers == 1 and not (job.drop_unmatched or job.take_unmatched)
  local out, missed, lacking, moves, invented, spare = cbk.dict(), {}, { count = 0, may_be_renamed = true }, {}, {}, nil
  for _, part in ipairs(parts) do
    local made = convert_part(job, i, part, is_refused)
    local strangers, lost = made.unmatched, made.lacking
    out, moves = put(out, part, made.out), made.moves
    for _, key in ipairs(made.invented) do invented[#invented + 1] = key end
    for _, key in ipairs(strangers) do
      local name = part.reads .. key
      missed[name] = (missed[name] or 0) + 1
      if missed[name] == readers then unmatched[#unmatched + 1] = name end
    end
    local place = part.converter.inside and part.reads or "" -- a part of a composite has a checkpoint of its own
    for _, key in ipairs(lost) do lacking[#lacking + 1] = place .. key end
    if lost.spare then spare = spare or {} end
    for _, key in ipairs(lost.spare or {}) do spare[part.reads .. key] = true end
    for _, key in ipairs(spare and strangers or {}) do
      if unmatched_keys.is_buffer(key, part.source[key]) then spare[part.reads .. key] = true end
    end
    lacking.count, lacking.assumed = lacking.count + lost.count, lacking.assumed or lost.assumed
    lacking.layer, lacking.layers = lacking.layer or lost.layer, lacking.layers or lost.layers
    lacking.may_be_renamed = lacking.may_be_renamed and (lost.count == 0 or lost.may_be_renamed)
  end
  if #unmatched > 0 then
    local has = state_dict.of(in_one(parts, source))
    report_unmatched(job, { keys = unmatched, all = has.keys, shapes = tensors.shapes_of(has, unmatched), lacking = lacking,
      invented = invented, spare = spare })
  end
  fit_checks.refuse_incomplete(lacking)
  return out, moves
end

---The dict `model` of a CS checkpoint.
function convert.model_of(root)
  kinds.check_root(root)
  if not kinds.is_dict(root, "model") then
    local shown, are_flat = {}, cbk.count(root) > 0
    for key in cbk.items(root) do
      shown[#shown + 1] = tostring(key)
      are_flat = are_flat and shown[#shown]:find "^model%." ~= nil
    end
    cbk.fail("checkpoint", ("expected a Cerebras checkpoint with a dict 'model', found %skeys %s%s"):format(are_flat and "flat " or "the ",
      naming.folded(shown), are_flat and "; a script that sets the same keys of cbk.create('NEW.mdl') writes the dict" or ""))
  end
  return root.model
end

---Traces tensors that a release moves into the model from elsewhere in the checkpoint. Such a step is not a plain copy.
local function trace_moved(job, i, converted, model)
  local text, copies = job.path[i].src .. " -> " .. job.path[i].tgt, job.copies or {}
  for k = cbk.count(model) > cbk.count(converted) and #copies or 0, 1, -1 do
    if copies[k] == text then table.remove(copies, k) end
  end
  for key, value in cbk.items(job.trace and model or cbk.dict()) do
    if converted[key] == nil then
      local note = "from the optimizer's state"
      job.trace({ what = "fill", source = key, key = key, target = key, value = value, rejected = {}, note = note }, i)
    end
  end
end

---The parts of a checkpoint besides its model and the list of its releases.
local function beside_model(root)
  local names = {}
  for name in cbk.items(root) do
    if name ~= "model" and name ~= "__metadata__" then names[#names + 1] = tostring(name) end
  end
  return names
end

---Runs the table of a step between releases on a tensor in the place of one of the model.
---@return Split
local function split_by(job, i)
  local step, configs = job.path[i], job.configs[i]
  return function(key, tensor)
    return (keys.convert(configs.converter.keys, step.side, cbk.dict { { key, tensor } }, { left = configs.left, right = configs.right,
      prefix = releases.reads_prefix(step.src, step.tgt) and "model." or nil, masks = true }))
  end
end

local function between_releases(job, i, root)
  local step = job.path[i]
  local model, moves = convert_model(job, i, convert.model_of(root))
  if keeps_model_only(step) then
    local names = beside_model(root)
    local left_out = #names > 0 and "; left out: " .. naming.all_folded(names) or ""
    cbk.warn(("%s -> %s keeps the model only%s"):format(step.src, step.tgt, left_out))
    return cbk.dict { model = model }
  end
  local converted = cbk.copy(model)
  local is_between = job.path.at_once and (i < #job.path or keeps_model_only(job.path[1]))
  local out = checkpoint.upgrade(root, model, catalogue.release(step.src), catalogue.release(step.tgt),
    { old = job.files[i], new = job.files[i + 1], loader = job.loader, is_between = is_between, moves = moves,
      split = split_by(job, i) })
  trace_moved(job, i, converted, out.model)
  return out
end

---Runs a step between equal formats only to trace its keys.
local function stay(job, i, root)
  convert_model(job, i, convert.model_of(root))
  return root
end

local function checkpoint_step(job, i, root)
  local step = job.path[i]
  if i == 1 and job.plain ~= root then refuse_quantised(job, root, job.files[1]) end
  if is_hf(step.src) then
    local model = convert_model(job, i, root)
    return checkpoint.from_hf(model, catalogue.release(step.tgt), job.files[i + 1], job.hf_config)
  end
  if is_hf(step.tgt) then
    local model = convert.model_of(root)
    warn_of_others("checkpoint", beside_model(root))
    return (convert_model(job, i, model))
  end
  return (step.src == step.tgt and stay or between_releases)(job, i, root)
end

---Converts the checkpoint by one step of the job's path. The step's config must be converted already.
---@param job Job
---@param i integer    the step
---@param root Dict    the tree of the checkpoint
---@return Dict
function convert.checkpoint_step(job, i, root)
  local configs = job.configs[i]
  for _, side in ipairs { "left", "right" } do -- a converter's functions get them, and must not change what is written
    if configs[side] then configs[side] = cbk.deep_copy(configs[side]) end
  end
  return in_step(job, i, checkpoint_step, root)
end

---Sets the dtype of the weights in each new config.
---@param parts? Component[]
local function set_dtypes(job, parts, root)
  local config, kept = job.files[#job.files], job.hf_config
  for _, part in ipairs(parts or {}) do
    if not (kinds.is_dict(config, part.left) and kinds.is_dict(root, part.left)) then
      cbk.fail("converter", ("the part '%s' has no config or no checkpoint any more: a converter's functions must not change its tables")
        :format(tostring(part.left)))
    end
    hf_config.set_dtype(config[part.left], root[part.left], kept and kinds.is_dict(kept, part.left) and kept[part.left] or nil)
  end
  if not parts then hf_config.set_dtype(config, root, kept) end
end

---@param job Job      its config is converted already
---@param root Dict    the tree of the checkpoint
---@return Dict        the tree to write
function convert.checkpoint(job, root)
  job.loader = job.loader or { step = dataloader_state.step_of(root) } -- before a step that drops it
  for i in ipairs(job.path) do root = convert.checkpoint_step(job, i, root) end
  local last = job.path[#job.path]
  if is_hf(last.tgt) then set_dtypes(job, last.converter.components, root) end
  return root
end

return convert
