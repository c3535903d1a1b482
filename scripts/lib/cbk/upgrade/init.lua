-- Upgrades an old checkpoint and its config over several releases at once: returns the tree to write, and a report.

local cbk = require "cbk"
local candidates = require "cbk.recognise.candidates"
local converters = require "cbk.converters"
local config_changes = require "cbk.config_changes"
local configs = require "cbk.recognise.configs"
local dataloader_state = require "cbk.dataloader_state"
local detect = require "cbk.recognise.detect"
local doubts = require "cbk.recognise.doubts"
local errors = require "cbk.errors"
local kept_config = require "cbk.recognise.kept_config"
local lost_leaves = require "cbk.upgrade.lost_leaves"
local names = require "cbk.recognise.names"
local naming = require "cbk.naming"
local release = require "cbk.recognise.release"
local warnings = require "cbk.warnings"
local resume = require "cbk.upgrade.resume"
local spec_tree = require "cbk.spec_tree"
local kinds = require "converters.engine.kinds"
local releases = require "converters.engine.releases"
local trainer = require "converters.modelzoo.trainer"


local upgrade = {}

upgrade.NOTHING_TO_DO = "'%s' is already of release %s; `cbk convert` converts to older releases"
local convert, catalogue = converters.convert, converters.catalogue
local OPTIONS = "--model and --src-fmt" -- that name the model and format

---@class UpgradeOptions
---@field seed? integer|Value          of a map loader's state; default: the config's shuffle seed
---@field kind? "map"|"iterable"        of the data loader; default: from the config
---@field without_state? boolean        ignores the states of 1.8 and 1.9 data loaders
---@field accept_missing? boolean       continues if the file lacks parts of the run's state
---@field drop_unmatched? boolean       leaves out keys that no rule matches

---The job of an upgrade. It goes release by release, even if `cbk convert` would take several at once.
---@return Job
---@param options? UpgradeOptions
function upgrade.job(model_name, from, to, options)
  options = options or {}
  return converters.job(converters.route(model_name, from, to), nil, {
    loader = { seed = options.seed or "config", kind = options.kind, is_upgrade = true },
    without_state = options.without_state, accept_missing = options.accept_missing, drop_unmatched = options.drop_unmatched,
    keeps_lists = true, is_stepwise = true, is_watched = true, warnings = warnings.new(),
  })
end

---The model's format for a release.
---@param model_name string
---@param number string   "2.4"
function upgrade.format_at(model_name, number)
  local model = catalogue.find(model_name)
  return model and catalogue.format_at(model, number) or "cs-" .. number
end

---Fails if a config does not describe a model of the Model Zoo.
---@param config any
---@param path string      the file that it is in
---@param command string   that converts a checkpoint of Hugging Face
function upgrade.check_config(config, path, command)
  local problem
  if kinds.is_dict(config) and configs.says_hugging_face(config) then
    cbk.fail("config", ("'%s' is a config of Hugging Face; upgrade is for checkpoints of the Model Zoo"):format(path),
      { advice = ("use `%s`"):format(command) })
  end
  if (cbk.kind(config) or ""):find "dict" then
    local fine, found = pcall(trainer.model, config)
    problem = not fine and errors.text(found) or cbk.count(found) == 0 and "the model section of the config is empty"
  elseif config == cbk.null then
    problem = "the config is empty"
  else
    problem = ("the config should be a map of fields, found a %s"):format(tostring(cbk.kind(config)))
  end
  if problem then cbk.fail("config", ("'%s': %s"):format(path, problem)) end
end

---@param path string
---@param reading? table   options of `cbk.open`
---@return OldFile
function upgrade.open(path, reading) return spec_tree.old_file(cbk.open(path, reading)) end

-- --- the report

---A number without its kind.
local function shown(number) return (tostring(number):gsub("LL$", "")) end

local function fix_lines(fix)
  local out = {}
  if fix.has_scalar_dicts then out[1] = "TensorScalarDict becomes dict" end
  for _, tie in ipairs(fix.restored) do out[#out + 1] = ("restored: %s, tied to %s"):format(tie.key, tie.source) end
  if not fix.epochs then out[#out + 1] = "last_epoch: cannot be repaired without a global_step" end
  for _, epoch in ipairs(fix.epochs or {}) do
    out[#out + 1] = ("%s: %s -> %s"):format(epoch.name, shown(epoch.before), shown(epoch.value))
  end
  return out
end

---Lines about keys that get another name or value. Keys of all layers, by their first number, are one line.
---@param records KeyRecord[]   of one step
local function key_lines(records)
  local count, order = {}, {}
  local function template(key) return key and (key:gsub("%f[^.%z]%d+%f[.%z]", "N", 1)) end
  for _, record in ipairs(records) do
    local action = record.ending and record.ending.rule.action
    local done = record.what == "fill" and record.note or action and action.name
    if record.source ~= record.target or done then
      local source, target = template(record.source), template(record.target)
      local line = not target and ("gone: %s"):format(source) or source ~= target and ("%s -> %s"):format(source, target) or source
      if done then line = ("%s (%s)"):format(line, done) end
      if not count[line] then order[#order + 1] = line end
      count[line] = (count[line] or 0) + 1
    end
  end
  local out = {}
  for i, line in ipairs(order) do out[i] = line .. (count[line] > 1 and ("  %d ×"):format(count[line]) or "") end
  return out
end

local function loader_line(state)
  if state.all_worker_states ~= nil then
    local samples = {}
    for i, worker in cbk.items(state.all_worker_states) do samples[i] = tostring(worker.samples_streamed) end
    return ("dataloader: %d workers, samples streamed %s"):format(#samples, table.concat(samples, ", "))
  end
  return ("dataloader: %s samples streamed"):format(tostring(state.samples_streamed))
end

---@class UpgradePart
---@field title string
---@field lines string[]
---@field warnings? string[]

---@param job Job
---@param i integer
---@param config Dict
---@param root Dict
---@return Dict config, Dict root, UpgradePart
local function step(job, i, config, root)
  local one = job.path[i]
  local new_config = convert.config_step(job, i, config)
  local new_root = convert.checkpoint_step(job, i, root)
  local lines, said = key_lines(job.watch.steps[i]), job.warnings:take()
  if #lines == 0 then lines[1] = "no tensor changes" end
  if root.dataloader == nil and new_root.dataloader ~= nil then lines[#lines + 1] = loader_line(new_root.dataloader) end
  for _, line in ipairs(config_changes.lines(config, new_config, job.configs[i].moves)) do lines[#lines + 1] = "config: " .. line end
  return new_config, new_root, { title = ("%s -> %s"):format(one.src, one.tgt), lines = lines, warnings = said }
end

--- Config fields that name checkpoints, before and after the trainer layout.
local checkpoint_fields = {
  "runconfig.checkpoint_path", "trainer.fit.ckpt_path", "trainer.validate.ckpt_path", "trainer.validate_all.ckpt_paths",
}

---Fails if the config of a checkpoint that lacks weights has fields which only other models have.
---@param job Job
---@param config Dict
---@param lacking string   what it lacks
local function refuse_foreign(job, config, lacking)
  local class = (catalogue.class_of(job.model, {}, job.src))
  local foreign = class and candidates.foreign_fields(trainer.model(config))(class) or {}
  if #foreign == 0 then return end
  cbk.fail("usage", ("this run is not of %s: the config has %s, which only other models have, and %s"):format(job.model.model,
    naming.listed(foreign, 5), lacking))
end

---Fails if the model does not have the weight names in the target format. Also reports other signs that the files are of another model
---or release.
---@param done Upgrade
---@param job Job
---@param given { config: Dict, root: Dict }   before the steps
---@return UpgradePart|nil
function upgrade.identity(done, job, given)
  if #names.keys_of(done.root) == 0 then cbk.fail("key", "the checkpoint's 'model' has no weights: there is nothing to upgrade") end
  local said = {}
  local function add(text) said[#said + 1] = text end
  add(doubts.release(job, given.root, "--src-fmt"))
  local strange = names.check(job.model.model, job.tgt, done.config, done.root, OPTIONS)
  local other = doubts.other_model(job, given, done)
  if other then cbk.fail("usage", ("this %s is not of %s: %s"):format(strange and "checkpoint" or "run", job.model.model, other)) end
  local kept, is_contradiction = kept_config.doubt(given.config, given.root)
  if is_contradiction then cbk.fail("config", kept .. "; use the config of the run") end
  add(kept)
  add(strange)
  add(doubts.unconvertible(job, done.config))
  local lacking = doubts.lacking(job, done.config, done.root)
  if lacking then refuse_foreign(job, given.config, lacking) end
  add(lacking)
  add(doubts.untied(job, done.config, done.root))
  return #said > 0 and { title = "model", lines = {}, warnings = said } or nil
end

---The fields of the new config that still name the old checkpoint. Their values are kept, because they may be intended.
---@param config Dict     the new one
---@param target string   the new checkpoint
---@return UpgradePart|nil
function upgrade.stale(config, target)
  local part = { title = "config", lines = {}, warnings = {} }
  for _, field in ipairs(checkpoint_fields) do
    local value = cbk.find(config, field)
    if value ~= nil and value ~= cbk.null then
      part.warnings[#part.warnings + 1] = ("%s is still %s; the new checkpoint is '%s'"):format(field, cbk.json(value), target)
    end
  end
  for section, folder in pairs { ["runconfig"] = "runconfig.model_dir", ["trainer.init.checkpoint"] = "trainer.init.model_dir" } do
    local field = section .. ".autoload_last_checkpoint"
    if cbk.find(config, field) == true then
      local value = cbk.find(config, folder)
      local named = type(value) == "string" and (" '%s'"):format(value) or ""
      part.warnings[#part.warnings + 1] = ("%s is true: the run would load the last checkpoint in its model_dir%s, not '%s'")
        :format(field, named, target)
    end
  end
  return #part.warnings > 0 and part or nil
end

---@class Upgrade
---@field root Dict            the tree to write
---@field config Dict
---@field parts UpgradePart[]  the report, in order

---Performs all steps on lazy tensors; nothing is read or written.
---@param old OldFile
---@param config Dict
---@param job Job
---@return Upgrade
function upgrade.run(old, config, job)
  local root, parts = old.checkpoint.root, {}
  local lost, is_own
  if not releases.since(catalogue.release(job.src), "2.0") then
    local fix = spec_tree.fix(old)
    root, lost, is_own = fix.root, fix.lost, true
    parts[1] = { title = "spec", lines = fix_lines(fix) }
    if #parts[1].lines == 0 then parts[1].lines[1] = "nothing to repair" end
  else
    lost = spec_tree.lost(old)
  end
  lost = lost_leaves.with_none_states(root, lost)
  if #lost > 0 and not is_own then root = cbk.deep_copy(root) end
  if #lost > 0 then
    parts[#parts + 1] = { title = "not stored", lines = {}, warnings = lost_leaves.settle(root, lost, job.accept_missing) }
  end
  job.loader.step = dataloader_state.step_of(root)
  if job.without_state then
    config = cbk.copy(config)
    config.cerebras = nil
  end
  for i in ipairs(job.path) do config, root, parts[#parts + 1] = step(job, i, config, root) end
  local of = names.of(job.model, job.tgt, config)
  lost_leaves.check_model(root, function(key) return not of or names.has(of, key) end)
  parts[#parts + 1] = resume.part(root, config)
  return { root = root, config = config, parts = parts }
end

-- --- the release of the files

local upgrade_advice = "name the release with --src-fmt cs-X.Y"

---The release of the files, with the evidence.
---@param old OldFile
---@param config Dict
---@param model_name string
---@param target string   "cs-2.5"
---@param prepared? Dict    the config to upgrade, if the command line changes it
---@param config_path? string
---@return string release
---@return Evidence[]
function upgrade.detect(old, config, model_name, target, prepared, config_path)
  if not kinds.is_dict(old.checkpoint.root, "model") then
    cbk.fail("format", ("expected a Cerebras checkpoint, found no 'model' in '%s'; `cbk convert` converts those of Hugging Face"):format(
      old.checkpoint.path))
  end
  local evidence = release.evidence(old.checkpoint, config, old.has_scalar_dicts)
  local possible = release.candidates(evidence)
  if #possible > 0 and releases.since(possible[1], catalogue.release(target)) then
    cbk.fail("usage", (upgrade.NOTHING_TO_DO .. "%s"):format(old.checkpoint.path,
      detect.listed(possible), detect.reasons(evidence, "if it is of an older one, name that with --src-fmt cs-X.Y")))
  end
  local files = { root = old.checkpoint.root, config = prepared or config,
    paths = { checkpoint = old.checkpoint.path, config = config_path } }
  return detect.release(evidence, model_name, target, files, upgrade_advice), evidence
end

-- --- for people

---@param done Upgrade
---@param without_warnings? boolean   if they are printed elsewhere
---@return string
function upgrade.text(done, without_warnings)
  local out = {}
  for _, part in ipairs(done.parts) do
    local title = part.title
    for _, line in ipairs(part.lines) do
      out[#out + 1] = ("  %-18s %s"):format(title, line)
      title = ""
    end
    for _, warning in ipairs(not without_warnings and part.warnings or {}) do
      out[#out + 1] = ("  %-18s warning: %s"):format(title, warning)
      title = ""
    end
  end
  return table.concat(out, "\n")
end

return upgrade
