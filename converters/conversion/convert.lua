-- One conversion: the config file and the checkpoint along the steps between two formats. It writes no files.

local cbk = require "cbk"
local dataloader_state = require "cbk.dataloader_state"
local rules = require "converters.engine.rules"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local keys = require "converters.engine.keys"
local fit = require "converters.engine.fit"
local fit_checks = require "converters.engine.fit_checks"
local releases = require "converters.engine.releases"
local state_dict = require "converters.engine.state_dict"
local catalogue = require "converters.engine.catalogue"
local configs = require "converters.conversion.configs"
local steps = require "converters.conversion.steps"
local tensors = require "converters.conversion.tensors"
local unmatched_keys = require "converters.conversion.unmatched"
local wrap = require "converters.engine.wrap"
local checkpoint = require "converters.modelzoo.checkpoint"
local file = require "converters.modelzoo.file"
local hf_config = require "converters.modelzoo.hf_config"
local optimizer_check = require "converters.modelzoo.optimizer_check"
local sparsity = require "converters.modelzoo.sparsity"

local convert = { config = configs.convert, config_step = configs.step, tables = steps.tables }

local function is_hf(format) return format == "hf" end

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
  local is_from_zoo = catalogue.release(step.src) and not catalogue.release(step.tgt)
  local sideband = is_from_zoo and job.files[i] and file.is_sideband(job.files[i])
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
  local out, unmatched, is_left = steps.tables(job.configs[i]), {}, job.path[i].side == "left"
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

---The fields of a part in the user's file, without defaults; nil: there is no config.
local function given_of(job, i, part, side)
  local given, name = job.configs[i].given, part.converter.left and part.converter[side]
  return name and given[name] or given
end

---@param text string   a warning about the output
local function doubt(job, text)
  job.doubts = job.doubts or {}
  table.insert(job.doubts, text)
  cbk.warn(text)
end

---Warns, once, of the formats that no class describes.
---@param part Part
local function warn_of_no_class(job, i, part)
  local step, lacking = job.path[i], {}
  if job.is_unchecked or catalogue.release(step.src) and catalogue.release(step.tgt) then return end
  for _, format in ipairs { step.src, step.tgt } do
    if not catalogue.class_of(job.model, part.converter, format) then lacking[#lacking + 1] = format end
  end
  job.is_unchecked = #lacking > 0
  if #lacking == 0 then return end
  cbk.warn(("no class describes '%s' in %s: completeness and shapes of its checkpoint, and what its config says of them, are not checked")
    :format(job.model.model, table.concat(lacking, " and ")))
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
---@param root Dict
---@param path? string   of the checkpoint, for messages
---@return Dict
function convert.model_of(root, path)
  kinds.check_root(root)
  if not kinds.is_dict(root, "model") then
    local shown, are_flat, named = {}, cbk.count(root) > 0, path and cbk.quote(path) or "the checkpoint"
    for key in cbk.items(root) do
      shown[#shown + 1] = tostring(key)
      are_flat = are_flat and shown[#shown]:find "^model%." ~= nil
    end
    if are_flat then cbk.fail("checkpoint", checkpoint.flat_text(named)) end
    cbk.fail("checkpoint", ("expected a Cerebras checkpoint with a dict 'model'; %s has the keys %s"):format(named, naming.folded(shown)))
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
  local step, both = job.path[i], job.configs[i]
  return function(key, tensor)
    return (keys.convert(both.converter.keys, step.side, cbk.dict { { key, tensor } }, { left = both.left, right = both.right,
      prefix = releases.reads_prefix(step.src, step.tgt) and "model." or nil, masks = true }))
  end
end

local function between_releases(job, i, root)
  local step = job.path[i]
  local old = convert.model_of(root, job.input_path)
  if i == 1 and not steps.keeps_model_only(step) then optimizer_check.check(root) end
  local model, moves = convert_model(job, i, old)
  if steps.keeps_model_only(step) then
    local names = beside_model(root)
    local left_out = #names > 0 and "; left out: " .. naming.all_folded(names) or ""
    cbk.warn(("%s -> %s keeps the model only%s"):format(step.src, step.tgt, left_out))
    return cbk.dict { model = model }
  end
  local converted = cbk.copy(model)
  local is_between = job.path.at_once and (i < #job.path or steps.keeps_model_only(job.path[1]))
  local out = checkpoint.upgrade(root, model, catalogue.release(step.src), catalogue.release(step.tgt),
    { old = job.files[i], new = job.files[i + 1], loader = job.loader, is_between = is_between, moves = moves,
      split = split_by(job, i) })
  trace_moved(job, i, converted, out.model)
  return out
end

---Runs a step between equal formats only to trace its keys.
local function stay(job, i, root)
  convert_model(job, i, convert.model_of(root, job.input_path))
  return root
end

local function checkpoint_step(job, i, root)
  local step = job.path[i]
  if i == 1 and job.plain ~= root then steps.refuse_quantised(job, root, job.files[1]) end
  if is_hf(step.src) or steps.is_bare(step, job.files[i]) then
    local model, release = convert_model(job, i, root), catalogue.release(step.tgt)
    return release and checkpoint.from_hf(model, release, job.files[i + 1] or cbk.dict(), job.hf_config or cbk.dict()) or model
  end
  if is_hf(step.tgt) then
    convert.model_of(root, job.input_path)
    steps.warn_of_others(step, "checkpoint", beside_model(root))
    return (convert_model(job, i, sparsity.dense(root)))
  end
  return (step.src == step.tgt and stay or between_releases)(job, i, root)
end

---Converts the checkpoint by one step of the job's path. The step's config must be converted already.
---@param job Job
---@param i integer    the step
---@param root Dict    the tree of the checkpoint
---@return Dict
function convert.checkpoint_step(job, i, root)
  local both = job.configs[i]
  for _, side in ipairs { "left", "right" } do -- a converter's functions get them, and must not change what is written
    if both[side] then both[side] = cbk.deep_copy(both[side]) end
  end
  return steps.run(job, i, checkpoint_step, root)
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
  if is_hf(last.tgt) and job.files[#job.path + 1] then set_dtypes(job, last.converter.components, root) end
  return root
end

return convert
