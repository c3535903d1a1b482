-- Jobs: one conversion each, with all the data that it needs. A job is created once and passed on.

local cbk = require "cbk"
local naming = require "cbk.naming"
local converter_list = require "cbk.converters.list"
local catalogue = require "converters.engine.catalogue"
local hf_config = require "converters.modelzoo.hf_config"
local dry_run = require "converters.authoring.dry_run"
local inexpressible = require "converters.shared.inexpressible"

local jobs = {}

---The message for a format that a model does not have.
---@param other string   the other side's
local function unknown_format(name, model, asked, other, option)
  local formats = converter_list.formats_of(model)
  if not catalogue.release(formats[#formats]) and formats[1] ~= "hf" then -- layouts of the user's own
    local choice = {}
    for _, format in ipairs(formats) do choice[#choice + 1] = format ~= other and format or nil end
    return ("%s converts between %s; use %s %s"):format(name, table.concat(formats, " and "), option, table.concat(choice, " or "))
  end
  local question = naming.question(converter_list.nearest_formats(asked, formats))
  return ("'%s' is not a format of %s; %s%s has %s"):format(asked, name, question and question .. " " or "", name,
    converter_list.formats_text(model))
end

---Why no converters lead from one format to the other, with suggestions.
---@param what string   that is converted
local function why_no_path(name, model, asked, resolved, what)
  local known, formats = {}, converter_list.formats_of(model)
  for _, format in ipairs(formats) do known[format] = true end
  for i = 2, 1, -1 do -- the source format may have been detected
    local format = resolved[i]
    if not known[format] then
      return unknown_format(name, model, asked[i], resolved[3 - i], i == 2 and "--to" or "--src-fmt")
    end
  end
  if resolved[1] == resolved[2] then
    return ("the %s is in %s already; choose --to %s"):format(what, resolved[1],
      converter_list.formats_text(model, function(format) return format ~= resolved[1] end))
  end
  return ("no converters lead there; 'cbk list %s --all' lists what does"):format(name)
end

---@class Route     The converters from one format of a model to another.
---@field model Model
---@field zoo_name string
---@field path Path
---@field src string
---@field tgt string
---@field same? string   why nothing changes

---@param model_name string
---@param src string
---@param tgt string
---@param what? string   that is converted, for messages (default: "checkpoint")
---@return Route
function jobs.route(model_name, src, tgt, what)
  local model, zoo_name = catalogue.find(model_name)
  local function cannot(why) cbk.fail("unsupported", ("cannot convert %s from %s to %s: %s"):format(model_name, src, tgt, why)) end
  if not model then
    local why = inexpressible.why(model_name)
    if why then cannot(why) end
    cannot(("there is no model '%s'; %s"):format(model_name, converter_list.advice(model_name, catalogue.names())))
  end
  local from, to = catalogue.resolve(src, model), catalogue.resolve(tgt, model)
  for asked, used in pairs { [src] = from, [tgt] = to } do
    if asked ~= used and not asked:find "^cs%-current" then cbk.warn(("%s is the same as %s for all models"):format(asked, used)) end
  end
  local is_copy = from == to and src ~= tgt
  local path = is_copy and catalogue.stay(model, from) or catalogue.path(model, from, to)
  if not path then cannot(why_no_path(model_name, model, { src, tgt }, { from, to }, what or "checkpoint")) end
  for i, step in ipairs(#path > 1 and path or {}) do
    if catalogue.is_own_layout(step.src) or catalogue.is_own_layout(step.tgt) then
      local first = path[math.max(1, i - 1)].tgt
      cannot(("a layout of your own is a conversion by itself: first convert to %s, and the result to %s"):format(first, tgt))
    end
  end
  local same = is_copy and ("%s and %s are the same: nothing changes"):format(src, tgt) or nil
  return { model = model, zoo_name = zoo_name, path = path, src = from, tgt = to, same = same }
end

---@class JobInput    The checkpoint that a job reads (cbk.converters.input).
---@field source Dict
---@field whole? Dict      the whole checkpoint, including what is around the model
---@field deduplicated boolean|table<string, boolean>
---@field input_path? string   of the checkpoint, for messages

---The part of a checkpoint that a job reads. A safetensors file has each tensor under one name; other names are ties of the tree.
---@param checkpoint Checkpoint
---@return JobInput
function jobs.input(checkpoint)
  return { source = checkpoint.root, deduplicated = checkpoint.format:find "^safetensors" ~= nil, input_path = checkpoint.path }
end

---@class JobOptions
---@field seed? integer             for weights that the source lacks
---@field drop_unmatched? boolean
---@field take_unmatched? fun(key: string)
---@field is_watched? boolean       records what happens to each key, in `watch`
---@field is_stepwise? boolean      applies the changes of each release one by one, even if the original converter does not
---@field keeps_lists? boolean
---@field loader? LoaderOptions
---@field without_state? boolean
---@field accept_missing? boolean
---@field warnings? Warnings        receives the steps' warnings

---@param route Route
---@param input? JobInput       nil if only a config is converted
---@param options? JobOptions
---@return Job
function jobs.job(route, input, options)
  local job = { keeps_fields = input ~= nil }
  for _, part in ipairs { route, input or {}, options or {} } do
    for name, value in pairs(part) do job[name] = value end
  end
  if input and route.tgt == "hf" then job.hf_config = hf_config.of(input.source) end
  if job.is_stepwise then job.path.at_once = false end
  if job.is_watched then
    job.watch = dry_run.watch(job)
    job.trace = job.watch.trace
  end
  job.configs, job.files, job.copies = {}, {}, {}
  return job
end

return jobs
