-- Detects the release of the Model Zoo that wrote a checkpoint and its config (help/releases.md has the table).

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local converter_list = require "cbk.converters.list"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"

local release = {}

---@class Evidence
---@field what string
---@field from string   the oldest release that it allows
---@field to string     the newest
---@field is_habit? boolean   only likely: ignored if other evidence contradicts it
---@field is_overruled? boolean  a habit that was ignored
---@field is_of_config? boolean
---@field has? string          what the config has: "model.use_bfloat16"

local first, newest = releases.known[1], releases.newest

---A release in a version text. Releases that changed no layout count as the newest.
local function release_in(text)
  local found = type(text) == "string" and text:match "^(%d+%.%d+)"
  if not found then return nil end
  return releases.unchanged[found] and newest or releases.place[found] and found or nil
end

---What is wrong with the format of a release that the user names, or nil.
---@param format string   "cs-2.5"
---@return string|nil
function release.problem(format)
  if releases.place[catalogue.release(format)] then return nil end
  local formats = {}
  for i, name in ipairs(releases.known) do formats[i] = "cs-" .. name end
  local question = naming.question(converter_list.nearest_formats(format, formats))
  return ("'%s' is not a release; %sknown are cs-%s … cs-%s"):format(format, question and question .. " " or "", first, newest)
end

--- Only releases wrote versions 0.1 to 0.3. Later versions are containers that tools write too, for models of any release: the tools
--- of 2.0 (and cbk's) wrote checkpoints of 1.8 and 1.9 as 0.4 without a release.
local h5_versions = {
  ["0.1"] = { "1.6", "1.7" }, ["0.2"] = { "1.8", "1.8" }, ["0.3"] = { "1.9", "1.9" },
  ["0.4"] = { first, "2.0", true }, ["0.5"] = { "2.5", newest, true },
}

local is_dict = kinds.is_dict

---The version and release in the list `__metadata__`.
---@param root Dict
---@return string|nil version   "2.4.0"
---@return string|nil release   "2.4"
function release.of_metadata(root)
  if not is_dict(root) or not kinds.is_list(root, "__metadata__") or #root.__metadata__ == 0 then return nil end
  local last = root.__metadata__[#root.__metadata__]
  local version = (cbk.kind(last) or ""):find "dict" and last.version
  local found = release_in(version)
  if found then return version, found end
end

---The file's own statements. The release that wrote it may have kept an older model, but never a newer one.
local function stated(checkpoint, add)
  local root, metadata = checkpoint.root, checkpoint.metadata
  local named, release_named = release.of_metadata(root)
  if named then return add(("__metadata__ says %s"):format(named), release_named, release_named) end
  if checkpoint.format ~= "cerebras-h5" then return end
  local version = metadata ~= nil and metadata ~= cbk.null and metadata.__cstorch_version__
  local found = release_in(version)
  if found then return add(("written by version %s"):format(version), found, found, true) end
  local range = h5_versions[checkpoint.version]
  if range then add(("H5 format %s%s"):format(checkpoint.version, range[3] and " without a release" or ""), unpack(range)) end
end

local function config_hints(config, add)
  if config.trainer ~= nil then
    local init = is_dict(config, "trainer") and is_dict(config.trainer, "init") and config.trainer.init
    local has_name = init and is_dict(init, "model") and init.model.name ~= nil
    add("the config has a trainer section", "2.3", newest, false, "a trainer section")
    if init and not has_name then add("its model has no name", "2.3", "2.3", true) end
    return
  end
  add("the config has no trainer section", first, "2.2", true)
  local run = is_dict(config, "runconfig") and config.runconfig or cbk.dict()
  local model = is_dict(config, "model") and config.model or cbk.dict()
  local function any(tree, where, to, ...)
    for _, name in ipairs { ... } do
      if tree[name] ~= nil then return add(("the config has %s%s"):format(where, name), first, to, false, where .. name) end
    end
  end
  any(run, "runconfig.", "2.1", "use_cs_grad_accum", "autogen_policy")
  any(model, "model.", "2.0", "use_bfloat16", "precision_opt_level")
  any(config, "", "2.0", "csconfig")
  any(config, "", "1.9", "cerebras")
  any(model, "model.", "1.9", "use_rms_norm", "use_biasless_norm", "use_t5_layer_norm")
  if model.norm_type ~= nil then add("the config has model.norm_type", "2.0", newest, false, "model.norm_type") end
end

---Names that 2.1 gave to weights of decoders, BERT and T5 (not of CLIP, which kept the old ones).
local weight_names = {}
for _, module in ipairs { "embedding_layer", "bert_encoder%.embedding_layer", "bert%.embedding_layer", "encoder_embeddings",
  "decoder_embeddings" } do
  for name, is_new in pairs { ["weight"] = false, ["embed%.weight"] = true, ["fpe"] = true } do
    weight_names[("^%s%%.position_embeddings%%.%s$"):format(module, name)] = is_new
  end
  weight_names[("^%s%%.position_embeddings$"):format(module)] = false
  weight_names[("^%s%%.position_embed_helper%%."):format(module)] = true
end
weight_names["^relative_pe_helper%."], weight_names["^relative_position_[ed][en]coder%."] = false, false

local function tensor_hints(root, add)
  if not is_dict(root, "model") then return end
  local shown = {}
  for key in cbk.items(root.model) do
    if type(key) == "string" and (key:find("position", 1, true) or key:find("relative_pe", 1, true)) then
      local name = key:gsub("^model%.", ""):gsub("^model%.", "")
      for pattern, is_new in pairs(weight_names) do
        if not shown[is_new] and name:find(pattern) then
          shown[is_new] = true
          add(("it has %s"):format(key), is_new and "2.1" or first, is_new and newest or "2.0")
        end
      end
    end
  end
end

---All evidence for a release, the strongest first.
---@param checkpoint Checkpoint
---@param config Dict|nil
---@param has_scalar_dicts boolean
---@return Evidence[]
function release.evidence(checkpoint, config, has_scalar_dicts)
  local out = {}
  local function add(what, from, to, is_habit) out[#out + 1] = { what = what, from = from, to = to, is_habit = is_habit } end
  stated(checkpoint, add)
  if has_scalar_dicts then add("its spec has TensorScalarDict", first, "1.9") end
  if checkpoint.root.dataloader ~= nil and checkpoint.root.dataloader ~= cbk.null then add("it has a 'dataloader'", "1.8", newest) end
  tensor_hints(checkpoint.root, add)
  if config then
    config_hints(config, function(what, from, to, is_habit, has)
      out[#out + 1] = { what = what, from = from, to = to, is_habit = is_habit, is_of_config = true, has = has }
    end)
  end
  return out
end

---The releases that all evidence allows, oldest first. Habits that contradict other evidence, or an earlier habit, are ignored
---and marked. If the other evidence contradicts itself, the list is empty.
---@param evidence Evidence[]
---@param without_habits? boolean
---@return string[]
function release.candidates(evidence, without_habits)
  local low, high = 1, #releases.known
  for _, habits in ipairs(without_habits and { false } or { false, true }) do
    for _, one in ipairs(evidence) do
      if (one.is_habit or false) == habits then
        local from, to = math.max(low, releases.place[one.from]), math.min(high, releases.place[one.to])
        one.is_overruled = habits and from > to
        if not one.is_overruled then low, high = from, to end
      end
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

---"H5 format 0.2: 1.8"
---@param one Evidence
function release.line(one) return ("%s: %s%s"):format(one.what, release.range(one), one.is_habit and " (usually)" or "") end

---The lines of the evidence that counts.
---@param evidence Evidence[]
---@return string[]
function release.lines(evidence)
  local out = {}
  for _, one in ipairs(evidence) do
    if not one.is_overruled then out[#out + 1] = release.line(one) end
  end
  return out
end

-- --- checkpoint and config of different releases

---The facts of the checkpoint or the config, and the releases that all of them allow.
---@param evidence Evidence[]
---@param is_of_config boolean
---@return Evidence[] facts, { from: string, to: string }|nil range   nil: they contradict each other
local function facts_of(evidence, is_of_config)
  local facts, low, high = {}, 1, #releases.known
  for _, one in ipairs(evidence) do
    if not one.is_habit and (one.is_of_config or false) == is_of_config then
      facts[#facts + 1], low, high = one, math.max(low, releases.place[one.from]), math.min(high, releases.place[one.to])
    end
  end
  return facts, low <= high and { from = releases.known[low], to = releases.known[high] } or nil
end

---The facts of a config that the checkpoint's releases exclude: "model.use_bfloat16 (up to 2.0)".
---@param facts Evidence[]
---@param range { from: string, to: string }
---@return string text, boolean are_fields
---@return integer count
local function excluded(facts, range)
  local out, are_fields = {}, true
  for _, one in ipairs(facts) do
    if releases.place[one.from] > releases.place[range.to] or releases.place[one.to] < releases.place[range.from] then
      out[#out + 1] = ("%s (%s)"):format(one.has, release.range(one))
      are_fields = are_fields and one.has:find "^%S+$" ~= nil
    end
  end
  return table.concat(out, ", "), are_fields, #out
end

---The error for files whose facts no release allows.
---@param evidence Evidence[]
---@param paths { checkpoint: string, config: string|nil, option: string|nil }   the option that names the format: "--tgt-fmt"
---@return string problem, string advice
function release.contradiction(evidence, paths)
  local option = paths.option or "--src-fmt"
  local own, range = facts_of(evidence, false)
  local facts, range_of_config = facts_of(evidence, true)
  local config = paths.config and cbk.quote(paths.config) or "its config"
  local function several(file, list)
    return ("%s is of different releases: %s"):format(file, table.concat(release.lines(list), "; "))
  end
  if not range then return several(cbk.quote(paths.checkpoint), own), "name the release with " .. option .. " cs-X.Y" end
  if not range_of_config then return several(config, facts), "correct it, or name the release with " .. option .. " cs-X.Y" end
  local reasons, enough = {}, nil
  for i, one in ipairs(own) do
    reasons[i] = one.what
    if one.from == range.from and one.to == range.to then enough = enough or one.what end
  end
  local text, are_fields, count = excluded(facts, range)
  local change = not are_fields and "use the config of the run" or count == 1 and "remove it" or "remove them"
  local is_one = range.from == range.to
  local what = ("%s is of %s%s (%s)"):format(cbk.quote(paths.checkpoint), is_one and "" or "a release ", release.range(range),
    enough or table.concat(reasons, ", "))
  return ("%s, but %s has %s"):format(what, config, text), ("%s, or pass %s cs-%s"):format(change, option, is_one and range.from or "X.Y")
end

return release
