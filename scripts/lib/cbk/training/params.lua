-- A params.yaml as plain values: both layouts, each field checked, and those that are not emulated named.

local cbk = require "cbk"
local errors = require "cbk.errors"
local fields = require "cbk.training.fields"
local keywords = require "cstorch.keywords"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local trainer = require "converters.modelzoo.trainer"

local params = {}

---@class TrainingParams
---@field file string
---@field config Dict          the file, in the trainer's layout
---@field given Dict           the file as it is
---@field init table           its sections as plain values; `model`, `optimizer` and `schedulers` as they are
---@field fit table
---@field validate table
---@field validate_all table
---@field model_name? string   of the command line
---@field ignored string[]     "trainer.init.precision.enabled=true (…)": fields without an effect, with what they would do
---@field private moves Moves

---@class ParamsReader         A file, and what is noted while its sections are read.
---@field file string          "" for options of a command
---@field moves Moves
---@field ignored string[]
---@field config? Dict         of a file that is read

---The path of a field in the user's file.
---@param moves Moves   of a file in the legacy layout, to that of the trainer
---@param place string
local function place_in_file(moves, place)
  for i = #moves, 1, -1 do
    local old, new = moves[i][1], moves[i][2]
    if place == new then return old end
    if place:sub(1, #new + 1) == new .. "." then return old .. place:sub(#new + 1) end
  end
  return place
end

---The line of a field: "'params.yaml', line 12".
---@param at { file: string, moves: Moves }
---@param place string    its path in the trainer's layout
---@return string, string own   its path in the file
function params.line(at, place)
  local own, keys = place_in_file(at.moves, place), {}
  for key in own:gsub("%[(%d+)%]", ".%1"):gmatch "[^.]+" do keys[#keys + 1] = key end
  local line = cbk.config.line(at.file, keys)
  return ("'%s'%s"):format(at.file, line and (", line %d"):format(line) or ""), own
end

---Where a field is: "'params.yaml', line 12: trainer.init.seed".
---@return string, string own
local function where_is(at, place)
  local line, own = params.line(at, place)
  return ("%s: %s"):format(line, own), own
end

---Fails because of a field.
---@param at { file: string, moves: Moves }
---@param place string    its path in the trainer's layout
---@param problem string
function params.refuse(at, place, problem)
  local where, own = where_is(at, place)
  cbk.fail("config", ("%s: %s"):format(where, problem), { file = at.file, field = own })
end

---A value as messages show it.
function params.shown(value)
  if type(value) == "number" then value = numbers.json_number(value) end
  if value == "nan" or value == "inf" or value == "-inf" then return value end
  return kinds.is_dict(value) and "{…}" or kinds.is_list(value) and "[…]" or cbk.json(value)
end

---Fails because of a field that nothing knows.
---@param at { file: string, moves: Moves }
---@param place string
---@param known string[]
---@param of? string   whose field it is
function params.refuse_unknown(at, place, known, of)
  local advice = naming.question(cbk.nearest(naming.last(place), known, 1)) or "known: " .. table.concat(known, ", ")
  params.refuse(at, place, ("unknown field%s; %s"):format(of and " of " .. of or "", advice))
end

---Notes a field that has no effect here.
---@param at ParamsReader|TrainingParams
---@param place string
---@param value any
---@param why string   what it would do
function params.ignore(at, place, value, why)
  table.insert(at.ignored, ("%s=%s (%s)"):format(place_in_file(at.moves, place), params.shown(value), why))
end

local read_section

---@param reader ParamsReader
---@param field TrainingField
---@param written? string   "int" or "float" of a number
local function read_field(reader, field, value, place, written)
  if kinds.absent(value) then return field.null end
  if field.ignored then
    params.ignore(reader, place, value, field.ignored)
    return nil
  end
  if field.section then
    if not kinds.is_dict(value) then params.refuse(reader, place, ("expected a map of fields, found %s"):format(params.shown(value))) end
    return read_section(reader, field.section, value, place)
  end
  if not field.kind.fits(value, written) then
    params.refuse(reader, place, ("expected %s, found %s"):format(field.kind.expected, params.shown(value)))
  end
  if field.kind.read then return field.kind.read(value, written) end
  return (kinds.is_dict(value) or kinds.is_list(value) and kinds.is_dict(value[1])) and value or keywords.plain(value)
end

---@param reader ParamsReader
---@param known table<string, TrainingField>
---@param section Dict
---@param place string
---@return table
function read_section(reader, known, section, place)
  local out = {}
  for name in cbk.items(section) do
    local at = place .. "." .. tostring(name)
    if not known[name] then params.refuse_unknown(reader, at, naming.sorted(known)) end
    out[name] = read_field(reader, known[name], section[name], at, cbk.kind(section, name))
  end
  return out
end

---The emulated entries of a list of one-key maps, by their names.
---@param reader ParamsReader
---@param known table<string, TrainingField>
---@param ignored table<string, TrainingField>
local function read_named(reader, known, ignored, entries, place)
  local out = {}
  for i = 1, entries and #entries or 0 do
    local entry, at = entries[i], ("%s.%d"):format(place, i - 1)
    if not kinds.is_dict(entry) then params.refuse(reader, at, ("expected a map with one name, found %s"):format(params.shown(entry))) end
    for name in cbk.items(entry) do
      local options, spot = entry[name], at .. "." .. tostring(name)
      local near = not (known[name] or ignored[name]) and cbk.nearest(tostring(name), naming.sorted(known), 1)[1]
      if near then params.refuse(reader, spot, "unknown name" .. naming.suggestion(near)) end
      local field = known[name] or ignored[name] or { ignored = "is not known here" }
      local value = kinds.absent(options) and field.ignored and "null" or options
      out[name] = read_field(reader, field, value, spot)
    end
  end
  return out
end

---Whether a callback that is a switch is on: absent is the default.
local function is_disabled(entries, name)
  for i = 1, entries and #entries or 0 do
    if kinds.is_dict(entries[i]) and entries[i][name] == cbk.null then return true end
  end
  return false
end

---Calls a function, and puts the field before what it says of its value.
---@param at { file: string, moves: Moves }
---@param place string
---@param make function
---@return any, any   its first two results
function params.at_field(at, place, make, ...)
  local fine, result, more = pcall(make, ...)
  if fine then return result, more end
  local is_placed = type(result) == "table" and result.code == "config" and result.file == at.file and result.field
  if is_placed then error(result, 0) end
  local said = type(result) == "table" and (result.message or result.code == "value" and errors.text(result))
  if said then params.refuse(at, place, said) end
  error(errors.put_in(result, (where_is(at, place))), 0)
end

---Reads a section of a data loader.
---@param at ParamsReader
---@param section Dict
---@param place string
---@param known? table<string, TrainingField>   default: those of token files
---@return table
function params.data(at, section, place, known) return read_section(at, known or fields.DATA, section, place) end

-- What else the Model Zoo's legacy files have.
local WITHOUT_PLACE = { cerebras = true, csconfig = true, description = true, inference_input = true, predict_input = true, tag = true }

---Refuses a section that no file has, as it may be a misspelt one.
---@param file string
---@param given Dict   a legacy file
---@param moves Moves
local function check_sections(file, given, moves)
  for name in cbk.items(given) do
    if not (trainer.LEGACY_SECTIONS[name] or WITHOUT_PLACE[name]) then
      params.refuse_unknown({ file = file, moves = moves }, tostring(name), naming.sorted(trainer.LEGACY_SECTIONS))
    end
  end
end

---The file in the trainer's layout.
---@param file string
---@param given Dict
---@param moves Moves   gets those of a legacy file's fields
local function in_new_layout(file, given, moves)
  if trainer.is(given) then return given end
  local known = { "mode", unpack(trainer.moved_fields "runconfig") }
  table.sort(known)
  for name in cbk.items(trainer.section(given, "runconfig") or cbk.dict()) do
    local is_known = false
    for _, one in ipairs(known) do is_known = is_known or one == name end
    if not is_known then params.refuse_unknown({ file = file, moves = moves }, "runconfig." .. tostring(name), known) end
  end
  check_sections(file, given, moves)
  local fine, result = pcall(trainer.from_legacy, given, moves)
  if fine then return result end
  local field = type(result) == "table" and result.code == "config" and result.field
  if not field then error(errors.put_in(result, ("'%s'"):format(file)), 0) end
  local at = { file = file, moves = {} } -- the field is one of the file
  if result.supported then params.refuse(at, field, ("expected %s, found %s"):format(result.supported, result.found)) end
  error(errors.put_in(result, (params.line(at, field))), 0)
end

local PRECISION = "trainer.init.precision"

---@param reader ParamsReader
---@param precision table   the section
---@param device string      as a run names it
local function check_precision(reader, precision, device)
  local least, most, factor = precision.min_loss_scale, precision.max_loss_scale, precision.loss_scaling_factor
  if least and most and least > most then
    params.refuse(reader, PRECISION .. ".min_loss_scale", ("%g is above max_loss_scale, %g"):format(least, most))
  end
  local half = precision.fp16_type or "bfloat16"
  if half == "cbfloat16" and device == "CSX" and factor ~= "dynamic" then
    params.refuse(reader, PRECISION .. ".fp16_type",
      "a cluster takes cbfloat16 with a dynamic loss scale alone; write `loss_scaling_factor: dynamic`, or `fp16_type: bfloat16`")
  end
  if half == "bfloat16" and factor and factor ~= 1 then
    params.ignore(reader, PRECISION .. ".loss_scaling_factor", factor, "scales the loss of float16 and cbfloat16; fp16_type is bfloat16")
  end
end

---@param file string
---@param model_name? string   as `cbk list` names it; default: that of the file
---@return TrainingParams
function params.load(file, model_name)
  local given, moves = cbk.config.load(file), {}
  if not (kinds.is_dict(given) and (kinds.present(given.trainer) or kinds.present(given.model))) then
    cbk.fail("config", ("'%s' is not a params.yaml of the Model Zoo: it has neither 'trainer' nor 'model'"):format(file), { file = file })
  end
  local config = in_new_layout(file, given, moves)
  local section = trainer.model(config) -- says what is wrong with a file that has no model
  if model_name and kinds.absent(section.name) then section.name = model_name end -- which the checkpoints keep
  local reader = { file = file, moves = moves, ignored = {} }
  for name in cbk.items(config) do
    if name ~= "trainer" then params.ignore(reader, tostring(name), config[name], "is beside 'trainer', and only that section is read") end
  end
  local read = read_section(reader, fields.TRAINER, config.trainer, "trainer")
  local init, callbacks = read.init, read.init.callbacks
  for _, name in ipairs { "backend", "precision", "loop", "checkpoint", "logging" } do init[name] = init[name] or {} end
  init.device = init.backend.backend_type or init.device or "CSX"
  check_precision(reader, init.precision, init.device)
  init.model_dir = init.model_dir or "model_dir"
  init.checks_loss = not is_disabled(callbacks, "CheckLoss")
  init.callbacks = read_named(reader, fields.CALLBACKS, fields.IGNORED_CALLBACKS, callbacks, "trainer.init.callbacks")
  init.loggers = read_named(reader, fields.LOGGERS, fields.IGNORED_LOGGERS, init.loggers, "trainer.init.loggers")
  return { file = file, given = given, config = config, init = init, fit = read.fit or {}, validate = read.validate or {},
    validate_all = read.validate_all or {}, ignored = reader.ignored, moves = moves, model_name = model_name }
end

return params
