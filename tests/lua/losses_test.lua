-- Nothing of a checkpoint is lost without being named: each tensor is written, the same tensor under another name, a buffer of its
-- class, or of a rule whose reason a warning gives. What no rule fits is an error, unless it is to be dropped: then a warning names it.
-- Checkpoints have all that their class knows, also what only some files hold.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local dry_run = require "converters.authoring.dry_run"
local harness = require "harness"
local tiny = require "tiny"

local catalogue, convert = converters.catalogue, converters.convert
local describe, it, is_true = harness.describe, harness.it, harness.is_true

---Tensors of a class by their keys; none where no class describes them.
local function known_of(class, config, release)
  local out = {}
  for _, one in ipairs(class and class:tensors(config, { release = release }) or {}) do out[one.key] = one end
  return out
end

---Adds what a class has besides, such as buffers; not all experts in one tensor, beside those of their own.
local function complete(root, known)
  local out = cbk.copy(root)
  for key, one in pairs(known) do
    if out[key] == nil and not (one.optional and key:find("fused_ffns", 1, true)) then
      out[key] = one.tied_to and out[one.tied_to] or conversion.counted(classes.shape(one), 1)
    end
  end
  return out
end

---What becomes of each key in a conversion, and what is warned of.
---@return table<string, KeyRecord[]> records, string said
local function watched(job, root)
  local watch = dry_run.watch(job)
  job.trace = watch.trace
  local said = conversion.warnings(function() convert.checkpoint(job, root) end)
  local records = {}
  for _, record in ipairs(watch.steps[1]) do
    records[record.source] = records[record.source] or {}
    table.insert(records[record.source], record)
  end
  return records, table.concat(said, "\n")
end

---Why a key is lost without a word; nil where it is not.
---@param records KeyRecord[]|nil
---@param one ClassTensor|nil   what its class knows of it
local function silent(records, one, said)
  if not records then return not (one and one.tied_to) and "no rule saw it" or nil end
  local passed
  for _, record in ipairs(records) do -- those of all parts, of which one knows it
    if record.what == "pass" then passed = record elseif record.what ~= "unmatched" then return nil end
  end
  if not passed then return not said:find(records[1].source, 1, true) and "it is dropped without a warning" or nil end
  local ending = passed.ending
  local is_known = ending.kind == "only" and (ending.copy_of or one and (one.buffer or one.tied_to))
  local is_named = ending.kind == "drop" and said:find(ending.why, 1, true)
  return not (is_known or is_named) and ("no warning says '%s'"):format(ending.why) or nil
end

---@param tensors Dict      of the source
---@param prefix string      of their names in the trace
---@param known table<string, ClassTensor>
local function check(job, records, said, tensors, prefix, known)
  for key in cbk.items(tensors) do
    local why = silent(records[prefix .. key], known[key], said)
    is_true(not why, ("%s, %s to %s: %s: %s"):format(job.model.model, job.path[1].src, job.path[1].tgt, key, tostring(why)))
  end
end

---A job with its config converted already.
local function prepared(name, src, tgt, config, root)
  local job = conversion.job(name, src, tgt, { drop_unmatched = true })
  job.keeps_fields, job.source = true, root
  conversion.warnings(function() convert.config(job, config) end)
  return job
end

---What the classes of a job know of its source: of each part, or of the whole.
---@param side Side
local function known_by_part(job, side)
  local out, configs, format = {}, job.configs[1], job.path[1].src
  for _, part in ipairs(configs.converter.components or { configs.converter }) do
    local class, release = catalogue.class_of(job.model, part, format)
    out[#out + 1] = { folder = part.left, known = known_of(class, part[side] and configs[side][part[side]] or configs[side], release) }
  end
  return out
end

local function from_hugging_face(way, config, root)
  local job = prepared(way.name, "hf", way.format, config, root)
  local parts, whole = known_by_part(job, "left"), cbk.copy(root)
  for _, part in ipairs(parts) do
    if part.folder then whole[part.folder] = complete(root[part.folder], part.known) else whole = complete(root, part.known) end
  end
  local records, said = watched(job, whole)
  for _, part in ipairs(parts) do
    check(job, records, said, part.folder and whole[part.folder] or whole, part.folder and part.folder .. "/" or "", part.known)
  end
end

local function to_hugging_face(way, config, root)
  local there
  conversion.warnings(function() there = { conversion.run(way.name, "hf", way.format, config, root) } end)
  local job, known = prepared(way.name, way.format, "hf", there[1], there[2]), {}
  for _, part in ipairs(known_by_part(job, "right")) do
    for key, one in pairs(part.known) do known[key] = one end
    there[2].model = complete(there[2].model, part.known)
  end
  local records, said = watched(job, there[2])
  check(job, records, said, there[2].model, "", known)
end

---The newest format of each table, with each layout.
local function ways()
  local out, places = {}, {}
  for _, way in ipairs(tiny.ways()) do
    local id = tostring(way.converter) .. way.name .. tostring(way.layout)
    places[id] = places[id] or #out + 1
    if not way.converter.wrap then out[places[id]] = way end
  end
  for _, name in ipairs { "llava", "mmsimple-llava", "dpr", "dragon" } do out[#out + 1] = tiny.composite(name) end
  return out
end

describe("Tensors that have no place on the other side", function()
  for _, way in ipairs(ways()) do
    it(("are named: %s, %s"):format(way.name, way.format), function()
      local config, root = tiny.model(way)
      from_hugging_face(way, config, root)
      to_hugging_face(way, config, root)
    end)
  end
end)
