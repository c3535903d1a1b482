-- Loads the converters from a folder beside the scripts, and has the code that their commands share.

local cbk = require "cbk"
local cli = require "cbk.cli"
local errors = require "cbk.errors"

local catalogue = require "converters.engine.catalogue"

local composite = require "cbk.converters.composite"
local jobs = require "cbk.converters.job"
local kinds = require "converters.engine.kinds"
local links = require "cbk.links"
local family_files = require "converters.engine.family_files"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"

local root = debug.getinfo(1, "S").source:match "^@(.*)scripts/lib/cbk/converters/[^/]*$" or ""

local converters = {
  catalogue = catalogue,
  convert = require "converters.conversion.convert",
  route = jobs.route,
  job = jobs.job,
  input = jobs.input,
}

---The folders of the user's own families: `converters` in each folder of CBK_PATH, and in cbk's folder of configuration. Relative folders
---are left out: the current folder may be anyone's.
---@return string[]
local function own_folders()
  local out = {}
  local function add(folder)
    if folder:find "^/" and cbk.fs.is_dir(folder) then out[#out + 1] = folder end
  end
  for path in (os.getenv "CBK_PATH" or ""):gmatch "[^:]+" do add(cbk.fs.join(path, "converters")) end
  local config = os.getenv "XDG_CONFIG_HOME"
  add(cbk.fs.join(config and config:find "^/" and config or cbk.fs.join(os.getenv "HOME" or "/", ".config"), "cbk/converters"))
  return out
end

---Loads the families in the user's folders. A file with an error is left out, with a warning.
local function load_own_families()
  for _, folder in ipairs(own_folders()) do
    for _, name in ipairs(cbk.fs.list(folder)) do
      local path = cbk.fs.join(folder, name)
      if name:find "%.lua$" then
        local fine, problem = pcall(function() catalogue.add(family_files.read(path), path, true) end)
        if not fine then cbk.warn(("the converter %s is left out: %s"):format(cbk.quote(path), errors.text(problem))) end
      end
    end
  end
end

---Loads the user's own file, the families in the user's folders, then every family of cbk. A sandboxed file is alone with cbk's.
---@param own? string
---@param is_sandboxed? boolean   the user's own file has no rights
---@return string|nil only   the model of the user's own file, if it has exactly one: the default of --model
function converters.load(own, is_sandboxed)
  local only
  if is_sandboxed and not own then cbk.fail("usage", "--sandbox needs --converter FILE: cbk's own converters are not sandboxed") end
  if own then
    local fine, models = pcall(family_files.read, own, is_sandboxed)
    if not fine then
      local says_place = type(models) == "table" and models.code == "converter" and models.file == own
      if says_place then error(models, 0) end
      cbk.fail("converter", errors.text(models), { context = { ("in the converter '%s'"):format(own) }, file = own })
    end
    catalogue.add(models, own, true)
    only = #models == 1 and models[1].model or nil
  end
  if not is_sandboxed then load_own_families() end
  catalogue.load_folder(root .. "converters", family_files.check)
  return only
end

local function names()
  converters.load()
  return catalogue.names()
end

---Adds --model for a command that knows the model without it, as a rule.
---@param parser table
---@param default? string   "that of the file"; default: "detected"
---@return table option   of argparse
function converters.model_option(parser, default)
  local option = parser:option("--model", ("the model, as `cbk list` names it (default: %s)"):format(default or "detected")):argname "NAME"
  return cli.candidates(option, names)
end

---Refuses a model of cbk's own for a conversion with a sandboxed file: the file could have found a way to change it.
---@param name string
---@param args table   of the command
function converters.refuse_foreign(name, args)
  if not args.sandbox or catalogue.is_own(name) then return end
  cbk.fail("usage", ("--sandbox: %s is cbk's own model, not one of '%s'; leave out --converter and --sandbox to convert it"):format(name,
    args.converter))
end

---The config file of a model. The user may name the folder that contains it.
---@param path string
---@return string
function converters.config_file(path)
  return cbk.fs.is_dir(path) and links.file(path, "config.json", "name the file itself, if you trust it") or path
end

---The config, where a relative folder of data loader states (releases 1.8 and 1.9) that is not below the current folder, but beside the
---config, is named by its path.
---@param config any
---@param path string   of the config
---@return any config
function converters.with_states_beside(config, path)
  local section = kinds.is_dict(config) and kinds.is_dict(config, "cerebras") and config.cerebras or cbk.dict()
  local folder = section.save_iter_state_path
  if type(folder) ~= "string" or folder == "" or folder:find "^/" or cbk.fs.is_dir(folder) then return config end
  local beside = cbk.fs.join(cbk.fs.dirname(path), folder)
  if not cbk.fs.is_dir(beside) then return config end
  local out, own = cbk.copy(config), cbk.copy(section)
  own.save_iter_state_path, out.cerebras = beside, own
  return out
end

---The values of `model_type` in a model's Hugging Face configs.
---@param model Model
---@return table<string, true>
function converters.hugging_face_types(model)
  local out = {}
  local function add(converter)
    local kind = sections.constants(converter, "left").model_type
    if kind then out[kind] = true end
    for _, variant in pairs(converter.variants or {}) do add(variant) end
  end
  for _, converter in ipairs(model) do add(converter) end
  return out
end

---The models that a config names, the shortest name first. Empty if it names none, or an unknown one.
---@param is_hf boolean
---@param section Dict|nil   a Hugging Face config, or the model section of a Model Zoo config
---@return string[] models
---@return string? field   the field that names it: "model_type='llama'"
function converters.stated_models(is_hf, section)
  local field = is_hf and "model_type" or "name"
  local stated = kinds.is_dict(section) and section[field]
  local function fits(name)
    local model, zoo_name = catalogue.find(name)
    return is_hf and converters.hugging_face_types(model)[stated] or not is_hf and (zoo_name == stated or model.model == stated)
  end
  local out = {}
  if type(stated) ~= "string" then return out end
  for _, name in ipairs(catalogue.names()) do
    if fits(name) then out[#out + 1] = name end
  end
  table.sort(out, function(a, b) return #a < #b or #a == #b and a < b end)
  return out, ("%s='%s'"):format(field, stated)
end

---The error for a model without a class for a format.
---@param name string
---@param format string
---@return string|nil   "the model mine in 'mine.lua' has no class for hf; …"
function converters.lacking_class(name, format)
  local model = catalogue.find(name)
  local _, side = catalogue.table_with(model or {}, catalogue.resolve(format, model))
  side = side or format == "hf" and "left" or "right"
  if not model or catalogue.class_of(model, {}, catalogue.resolve(format, model)) then return nil end
  local step = side == "left" and catalogue.newest_step(model, side)
  if step and step.converter.components then
    return ("%s is several models in hf, each with a config of its own; %s"):format(name, composite.config_advice(name, "FOLDER"))
  end
  return ("the model %s in '%s' has no class for %s, so its tensors are unknown; add `classes = { %s = … }` to it (see "
    .. "`cbk help converters`)"):format(name, catalogue.file_of(name), format, side)
end

---The error for a config of another model than the one in --model.
---@param stated string[]   of stated_models
---@param field string
---@param model_name string
function converters.other_model(stated, field, model_name)
  return ("this config is for %s (%s), not for %s; use --model %s"):format(stated[1], field, model_name, stated[1])
end

---The new config. If it cannot be converted and names another model, the error says so.
---@param model_name string   as the user named it
---@param job Job
---@param config Dict|nil
---@return Dict|nil
function converters.config(model_name, job, config)
  local fine, result = pcall(converters.convert.config, job, config)
  if fine then return result end
  if result.code ~= "config" or not kinds.is_dict(config) then error(result, 0) end
  local is_hf = job.src == "hf"
  local stated, field = converters.stated_models(is_hf, is_hf and config or cbk.find(config, trainer.place_of_model(config)))
  for _, name in ipairs(stated) do
    if catalogue.find(name) == job.model then error(result, 0) end
  end
  if #stated == 0 then error(result, 0) end
  local other = converters.other_model(stated, field, model_name)
  if result.field and ("%s=%s"):format(result.field, result.found) == field then cbk.fail("config", other) end
  error(errors.with(result, { advice = result.advice and ("%s; %s"):format(result.advice, other) or other }), 0)
end

---The steps that change tensors, if others change only metadata and config; nil if all change tensors.
---@param job Job
---@return string|nil
local function changes_text(job)
  if #job.copies == 0 then return nil end
  local is_copy, changed = {}, {}
  for _, step in ipairs(job.copies) do is_copy[step] = true end
  for _, step in ipairs(job.path) do
    local text = ("%s -> %s"):format(step.src, step.tgt)
    if not is_copy[text] then changed[#changed + 1] = text end
  end
  if #changed == 0 then return "Only metadata and config change; tensors are copied" end
  return "Tensors change at most in " .. table.concat(changed, ", ")
end

---Prints what was written, and which steps changed only metadata and config.
---@param args table
---@param job Job
---@param ... string   lines
function converters.say_saved(args, job, ...)
  for _, line in ipairs { ... } do cli.say(args, line) end
  if job.same then return cli.say(args, job.same) end
  local changes = changes_text(job)
  if changes then cli.say(args, changes) end
end

-- --- file names

---A file's name without its folder and without trailing extensions that consist of letters. In conversions that only releases
---up to 2.0 had, only the last extension is removed, as these releases did; of files in layouts of the user's own, too.
---@param job Job
function converters.stem(path, job)
  local name = cbk.fs.basename(path)
  if name == "." then name = cbk.fs.basename((cbk.fs.absolute(path):gsub("/%.?$", ""))) end
  if cbk.fs.is_dir(path) then return name end
  if catalogue.is_own_layout(job.src) or catalogue.is_own_layout(job.tgt) then return (name:gsub("%.%a%w*$", "")) end
  if job.path[1].converter.tool == "2.0.3" then return (name:gsub("(.)%.[^.]*$", "%1")) end
  if not name:find "%.%a+$" then return "" end
  while name:find "%.%a+$" do name = name:gsub("%.%a+$", "") end
  return name
end

---Fails if a file or folder exists and --overwrite is not given. With --dry-run it is a warning.
---@param path string
---@param args { overwrite: boolean|nil, dry_run: boolean|nil }
function converters.refuse_existing(path, args)
  if args.overwrite or cbk.has_job() or not cbk.fs.exists(path) then return end
  if not args.dry_run then cbk.fail("exists", ("'%s' exists already"):format(path)) end
  cbk.warn(("'%s' exists already: without --dry-run this is an error; remove it or add --overwrite"):format(path))
end

---The version of H5 checkpoints to write for a release: the requested one, or the newest that the release reads. Warns if the release
---cannot read it.
---@param release string
---@param asked? string
---@return string
function converters.h5_version(release, asked)
  local newest = catalogue.since(release, "2.5") and "0.5" or "0.4"
  if not catalogue.since(release, "2.0") then
    cbk.warn(("release %s cannot read H5 %s: it reads versions up to 0.3, and cbk writes 0.4 and 0.5"):format(release, asked or newest))
  elseif asked == "0.5" and newest == "0.4" then
    cbk.warn(("release %s cannot read H5 0.5, which came with 2.5; leave out --h5-version 0.5 to write 0.4"):format(release))
  end
  return asked or newest
end

converters.SHARD_SIZE = "10GB" -- of Hugging Face's files, if nothing else is asked for

---How Hugging Face's files are divided: options of cbk.create.
---@param args table   of `cbk convert`
---@return table
function converters.hf_shards(args)
  return args.single_file and { single_file = true } or { shard_size = args.hf_shard_size or converters.SHARD_SIZE }
end

---@class ConfigFile
---@field path string
---@field tree Dict
---@field format "yaml"|"json"
---@field style table   options of cbk.config.dump

---Fails if a folder of shards is a symbolic link out of the folder that the user named.
local function refuse_link(path)
  local real, folder = cbk.fs.real(path), cbk.fs.real(cbk.fs.dirname(path))
  if real:sub(1, #folder + 1) == folder .. "/" or folder == "/" then return end
  cbk.fail("external", ("cannot replace '%s': it is a symbolic link to '%s', outside its folder; remove the link"):format(path, real))
end

---Writes checkpoints that belong together into one folder, all of them or none. With --dry-run it only prints the plans.
---@param outputs { path: string, options: table }[]   options of cbk.create
---@param args table                                   of cli.output_options
---@return boolean written, table plan   of all of them
function converters.write_all(outputs, args)
  local made = {}
  for i, output in ipairs(outputs) do
    output.options.overwrite = args.overwrite or args.dry_run
    if output.options.shard_size or output.options.single_file then refuse_link(output.path) end
    made[i] = cbk.create(output.path, output.options)
  end
  return cli.commit(made, args)
end

---Writes a checkpoint with its config, both or none. With --dry-run it only prints the plan.
---@param target string
---@param options table      of cbk.create
---@param config ConfigFile
---@param args table         of cli.output_options
---@return boolean written, table plan
function converters.write(target, options, config, args)
  -- the folder of companions with plain names
  local folder = (options.shard_size or options.single_file) and target or cbk.fs.dirname(target)
  local name = cbk.fs.dirname(config.path) == folder and cbk.fs.basename(config.path) or cbk.fs.absolute(config.path)
  options.companions = { [name] = cbk.config.dump(config.tree, config.format, config.style) }
  return converters.write_all({ { path = target, options = options } }, args)
end

return converters
