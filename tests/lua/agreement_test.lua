-- All commands say the same of a checkpoint: which model it is, which weights are missing, and which tensors the model does not have.
-- For every family, in Hugging Face's files and those of a release, whole and with each kind of damage.

local cbk = require "cbk"
local check = require "cbk.check"
local conversion = require "conversion"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local findings = require "cbk.check.findings"
local harness = require "harness"
local recognise = require "cbk.recognise"
local ways = require "cbk.recognise.ways"
local tiny = require "tiny"

local catalogue = converters.catalogue
local describe, it, equal = harness.describe, harness.it, harness.equal

---@class Said   What a command says of a checkpoint.
---@field model string|nil
---@field missing string   keys, sorted and joined
---@field unknown string
---@field wrong string

local function joined(keys)
  table.sort(keys)
  return table.concat(keys, " ")
end

---@return Said
local function by_identify(path, checkpoint)
  local found = recognise.checkpoint(path, checkpoint)
  local out = { missing = {}, unknown = {}, wrong = {} }
  for _, line in ipairs(found.why) do
    local count, kind, keys = line:match "^(%d+) (%l+): (.*)$"
    if out[kind] then
      for key in keys:gmatch "[^, ]+" do table.insert(out[kind], key) end
      equal(#out[kind], tonumber(count), line)
    end
    local key = line:match "^'([^']+)': expected"
    if key then table.insert(out.wrong, key) end
  end
  return { model = found.model, missing = joined(out.missing), unknown = joined(out.unknown), wrong = joined(out.wrong) }
end

---@param place string   before the keys of the model in the file
---@return Said
local function by_check(path, place)
  local found = findings.new()
  local subject = check.open(path, { reading = {}, dtypes = {}, without_values = true }, found)
  local of = { ["missing-weight"] = {}, ["unknown-weight"] = {}, ["wrong-shape"] = {} }
  for _, one in ipairs(found:sorted()) do
    local list = one.severity ~= "note" and of[one.rule.id]
    if list then list[#list + 1] = one.key:sub(#place + 1) end
  end
  return { model = subject.of and subject.of.name, missing = joined(of["missing-weight"]), unknown = joined(of["unknown-weight"]),
    wrong = joined(of["wrong-shape"]) }
end

---Whether `cbk convert` refuses the checkpoint, and why.
---@return string|nil
local function refusal(name, src, tgt, checkpoint, config)
  local route = converters.route(name, src, tgt)
  local job = converters.job(route, ways.input(checkpoint, route, config), { seed = 1 })
  local fine, problem
  conversion.warnings(function()
    fine, problem = pcall(function()
      converters.convert.config(job, config)
      converters.convert.checkpoint(job, job.source)
    end)
  end)
  return not fine and errors.text(problem) or nil
end

---The weight that is damaged: one that the model needs, is not tied, and has two dimensions.
local function victim(known, tensors)
  local tied = {}
  for _, names in ipairs(known:tied_names()) do
    for _, key in ipairs(names) do tied[key] = true end
  end
  for _, one in ipairs(known) do
    local is_plain = not (one.buffer or one.optional or one.part or tied[one.key]) and #one.extents == 2
    if is_plain and tensors[one.key] then return one.key end
  end
end

local function below(prefix, tensors)
  local out = cbk.dict()
  for key, value in cbk.items(tensors) do out[prefix .. key] = value end
  return out
end

---Each damage: a change of the tensors, and what of them is then missing, unknown, or of a wrong shape.
local DAMAGES = {
  { "none", function() return {} end },
  { "a weight is missing", function(tensors, key)
    tensors[key] = nil
    return { missing = key }
  end },
  { "a weight is null", function(tensors, key)
    tensors[key] = cbk.null
    return { missing = key }
  end },
  { "a tensor too many", function(tensors)
    tensors["stranger.weight"] = cbk.full({ 3 }, 1)
    return { unknown = "stranger.weight" }
  end },
  { "another shape", function(tensors, key)
    local shape = tensors[key]:shape()
    tensors[key] = cbk.full({ shape[1], shape[2] + 1 }, 1)
    return { wrong = key }
  end },
  { "wrapped", function(tensors) return { tensors = below("module.", tensors) } end },
}

---@param name string
---@param format string
---@param config Dict
---@param root Dict
---@param tgt string
local function agree(name, format, config, root, tgt)
  local is_hf = format == "hf"
  local class, release = catalogue.class_of(catalogue.find(name), {}, format)
  local section = is_hf and config or config.model or config.trainer.init.model
  local known = class:tensors(section, { release = release })
  for i, damage in ipairs(DAMAGES) do
    local dir, tensors = harness.temp_dir(), cbk.copy(is_hf and root or root.model)
    local key = victim(known, tensors) or error("no weight of " .. name)
    local want = damage[2](tensors, key)
    tensors = want.tensors or tensors
    local whole = is_hf and tensors or cbk.copy(root)
    if not is_hf then whole.model = tensors end
    local path = dir .. (is_hf and "/model.pt" or "/model.mdl")
    cbk.create(path, { root = whole }):commit { progress = false }
    cbk.config.save(config, dir .. (is_hf and "/config.json" or "/model.yaml"))
    local checkpoint, what = cbk.open(path), ("%s, %s: %s"):format(name, format, damage[1])
    local expected = { model = name, missing = want.missing or "", unknown = want.unknown or "", wrong = want.wrong or "" }
    local place = (is_hf and "" or "model.") .. (want.tensors and "module." or "")
    equal(by_identify(path, checkpoint), expected, what .. ", identify")
    equal(by_check(path, place), expected, what .. ", check")
    local said = refusal(name, format, tgt, checkpoint, config)
    equal(said ~= nil, i > 1 and not want.tensors, ("%s, convert: %s"):format(what, said or "done"))
    for _, part in ipairs { want.missing or "", want.unknown or "", want.wrong or "" } do harness.has(said or "", part) end
  end
end

describe("What a checkpoint is: all commands agree", function()
  for name, way in pairs(tiny.newest_ways()) do
    local model = catalogue.find(name)
    local has_classes = model.classes and model.classes.left and model.classes.right and not way.converter.wrap
    if has_classes and not way.converter.components and harness.is_sampled("agreement " .. name, 4) then
      it(name, function()
        local config, root = tiny.model(way)
        config.architectures = cbk.list { model.classes.left.name }
        -- of MPT, the original converter has other defaults than the class
        if name:find "^mpt" then config.no_bias, config.attn_config = false, cbk.dict { alibi = false } end
        agree(name, "hf", config, root, way.format)
        local cs_config, cs
        conversion.warnings(function() cs_config, cs = conversion.run(name, "hf", way.format, config, root) end)
        agree(name, way.format, cs_config, cs, "hf")
      end)
    end
  end
end)
