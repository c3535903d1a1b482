-- Which release of the Model Zoo a checkpoint and its config are of, told from what they say and how they look.
-- (README.md has the table of what tells which.)

local cbk = require "cbk"
require "cbk.converters" -- finds the converters' modules
local releases = require "converters.modelzoo.releases"

local release = {}

---@class Evidence
---@field what string
---@field from string   the oldest release that it allows
---@field to string     the newest
---@field is_hint? boolean   gives way to what contradicts it

local first, newest = releases.known[1], releases.newest

---A release in a version text; those that changed no layout count as the newest.
local function release_in(text)
  local found = type(text) == "string" and text:match "^(%d+%.%d+)"
  if not found then return nil end
  return releases.unchanged[found] and newest or releases.place[found] and found or nil
end

---What is wrong with a release that somebody names, or nil.
---@param name string|nil   "2.5"
---@return string|nil
function release.problem(name)
  local known = table.concat(releases.known, ", ")
  if not name then return "cs-X.Y is expected, of the releases " .. known end
  if not releases.place[name] then return ("there is no release %s; known are %s"):format(name, known) end
end

local h5_versions = { ["0.1"] = { "1.6", "1.7" }, ["0.2"] = { "1.8", "1.8" }, ["0.3"] = { "1.9", "1.9" }, ["0.4"] = { "2.0", "2.0" },
  ["0.5"] = { "2.5", newest } }

local function is_dict(tree, name) return tree[name] ~= nil and (cbk.kind(tree, name) or ""):find "dict" ~= nil end

---What the file itself says.
local function stated(checkpoint)
  local root, metadata = checkpoint.root, checkpoint.metadata
  if (cbk.kind(root, "__metadata__") or "") == "list" and #root.__metadata__ > 0 then
    local last = root.__metadata__[#root.__metadata__]
    local version = (cbk.kind(last) or ""):find "dict" and last.version
    local found = release_in(version)
    if found then return { what = ("__metadata__ says %s"):format(version), from = found, to = found } end
  end
  if checkpoint.format ~= "cerebras-h5" then return nil end
  local version = metadata ~= cbk.null and metadata.__cstorch_version__
  local found = release_in(version)
  if found then return { what = ("written by version %s"):format(version), from = found, to = found } end
  local range = h5_versions[checkpoint.version]
  return range and { what = ("H5 format %s"):format(checkpoint.version), from = range[1], to = range[2] }
end

local function config_hints(config, add)
  if config.trainer ~= nil then
    local init = is_dict(config, "trainer") and is_dict(config.trainer, "init") and config.trainer.init
    local has_name = init and is_dict(init, "model") and init.model.name ~= nil
    add("the config has a trainer section", "2.3", newest)
    if init and not has_name then add("its model has no name", "2.3", "2.3", true) end
    return
  end
  add("the config has no trainer section", first, "2.2", true)
  local run = is_dict(config, "runconfig") and config.runconfig or cbk.dict()
  local model = is_dict(config, "model") and config.model or cbk.dict()
  local function any(tree, where, to, ...)
    for _, name in ipairs { ... } do
      if tree[name] ~= nil then return add(("the config has %s%s"):format(where, name), first, to, true) end
    end
  end
  any(run, "runconfig.", "2.1", "use_cs_grad_accum", "autogen_policy")
  any(model, "model.", "2.0", "use_bfloat16", "precision_opt_level")
  any(config, "", "2.0", "csconfig")
  any(config, "", "1.9", "cerebras")
  any(model, "model.", "1.9", "use_rms_norm")
  if model.norm_type ~= nil then add("the config has model.norm_type", "2.0", newest, true) end
end

local function tensor_hints(root, add)
  if not is_dict(root, "model") then return end
  for _, prefix in ipairs { "model.", "" } do
    local key = prefix .. "embedding_layer.position_embeddings"
    if root.model[key .. ".embed.weight"] ~= nil then add(("it has %s.embed.weight"):format(key), "2.1", newest, true) end
    if root.model[key .. ".weight"] ~= nil then add(("it has %s.weight"):format(key), first, "2.0", true) end
  end
end

---All that tells a release, the strongest first.
---@param checkpoint Checkpoint
---@param config Dict
---@param has_scalar_dicts boolean
---@return Evidence[]
function release.evidence(checkpoint, config, has_scalar_dicts)
  local out = {}
  local function add(what, from, to, is_hint) out[#out + 1] = { what = what, from = from, to = to, is_hint = is_hint } end
  local said = stated(checkpoint)
  if said then out[1] = said end
  if has_scalar_dicts then add("its spec has TensorScalarDict", first, "1.9") end
  tensor_hints(checkpoint.root, add)
  config_hints(config, add)
  return out
end

---The releases that all evidence allows, oldest first; hints that contradict stronger evidence do not count. Nothing is left
---when the evidence contradicts itself.
---@param evidence Evidence[]
---@return string[]
function release.candidates(evidence)
  local low, high = 1, #releases.known
  local function narrow(one)
    local from, to = math.max(low, releases.place[one.from]), math.min(high, releases.place[one.to])
    if from > to and one.is_hint then return end
    low, high = from, to
  end
  for _, hints in ipairs { false, true } do
    for _, one in ipairs(evidence) do
      if (one.is_hint or false) == hints then narrow(one) end
    end
  end
  local out = {}
  for i = low, high do out[#out + 1] = releases.known[i] end
  return out
end

---"1.8", "up to 1.9", "2.3 and later", "1.6 to 1.7"
---@param one Evidence
function release.range(one)
  if one.from == one.to then return one.from end
  if one.from == first then return "up to " .. one.to end
  if one.to == newest then return one.from .. " and later" end
  return one.from .. " to " .. one.to
end

return release
