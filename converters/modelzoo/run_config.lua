-- Changes of the releases to the YAML file around the model: run options, optimizer and schedule names, sparsity.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local releases = require "converters.engine.releases"
local mup = require "converters.modelzoo.mup"
local optimizers = require "converters.modelzoo.optimizers"
local trainer = require "converters.modelzoo.trainer"

local present, is_dict, is_list = kinds.present, kinds.is_dict, kinds.is_list

local run_config = {}

---Moves a field, unless the new one exists.
---@param at string      the path of the tree: "runconfig."
---@param moves Moves
local function rename(tree, old, new, at, moves)
  if tree[old] == nil then return end
  if tree[new] == nil then
    tree[new] = cbk.raw(tree, old)
    moves[#moves + 1] = { at .. old, at .. new }
  end
  tree[old] = nil
end

---Removes a field that the newer release no longer has, and notes its name.
local function drop(tree, field, name, dropped)
  if present(tree[field]) then dropped[#dropped + 1] = name end
  tree[field] = nil
end

---@alias Moves { [1]: string, [2]: string }[]   dotted paths of fields or sections: the old one and the new one, in the order of moving

-- --- from 1.9 and 2.0

local old_run_options = {
  "experimental_api", "multireplica", "num_replicas", "save_losses", "service_dir", "use_appliance_data", "num_act_servers",
  "num_wgt_servers",
}

local function clean_runconfig(config, dropped, moves)
  drop(config, "csconfig", "csconfig", dropped)
  local run = trainer.section(config, "runconfig")
  if run == nil then return end
  for _, name in ipairs(old_run_options) do drop(run, name, "runconfig." .. name, dropped) end
  if run.is_pretrained_checkpoint == true then run.load_checkpoint_states = cbk.list { "model", "dataloader" } end
  run.is_pretrained_checkpoint = nil
  rename(run, "keep_checkpoint_max", "max_checkpoints", "runconfig.", moves)
end

-- --- from 2.0 to 2.1: names of optimizer and schedule parameters

---The settings of each schedule, by the lower-case name of its class.
local of_schedules = {
  constantlr = "learning_rate total_iters", polynomiallr = "initial_learning_rate end_learning_rate total_iters power cycle",
  linearlr = "initial_learning_rate end_learning_rate total_iters cycle",
  exponentiallr = "initial_learning_rate total_iters decay_rate staircase",
  inverseexponentialtimedecaylr = "initial_learning_rate step_exponent total_iters decay_rate staircase",
  inversesquarerootdecaylr = "initial_learning_rate scale warmup_steps",
  cosinedecaylr = "initial_learning_rate end_learning_rate total_iters", sequentiallr = "schedulers milestones last_epoch",
  piecewiseconstantlr = "learning_rates milestones", multisteplr = "initial_learning_rate gamma milestones",
  steplr = "initial_learning_rate step_size gamma", cosineannealinglr = "initial_learning_rate T_max eta_min",
  lambdalr = "initial_learning_rate", cosineannealingwarmrestarts = "initial_learning_rate T_0 T_mult eta_min",
  multiplicativelr = "initial_learning_rate coefficient", chainedscheduler = "schedulers",
  cycliclr = "base_lr max_lr step_size_up step_size_down mode gamma scale_mode",
  onecyclelr = "initial_learning_rate max_lr total_steps pct_start final_div_factor three_phase anneal_strategy",
  scaleperparamlr = "scheduler",
}

---@param class any   as the config names it, with or without "LR"
local function schedule_takes(class, setting)
  class = tostring(class):lower()
  local list = of_schedules[class] or of_schedules[class .. "lr"]
  return list ~= nil and (" " .. list .. " "):find(" " .. setting .. " ", 1, true) ~= nil
end

local optimizer_aliases = {
  { { "weight_decay_rate" }, "weight_decay" }, { { "beta1", "beta2" }, "betas" }, { { "eps1", "eps2" }, "eps" },
  { { "eta1", "eta2" }, "etas" }, { { "step_size_min", "step_size_max" }, "step_sizes" },
}

local schedule_aliases = {
  { "steps", "total_iters" }, { "decay_steps", "total_iters" },
  { "learning_rate", "initial_learning_rate" }, { "base_lr", "initial_learning_rate" },
  { "learning_rate", "base_lr" }, { "initial_learning_rate", "base_lr" },
  { "values", "learning_rates" }, { "boundaries", "milestones" },
  { "t_max", "T_max" }, { "t_0", "T_0" }, { "t_mult", "T_mult" },
}

local function rename_schedule(schedule, at, moves)
  for _, alias in ipairs(schedule_aliases) do
    local old, new = alias[1], alias[2]
    local is_free = schedule[old] ~= nil and schedule[new] == nil
    if is_free and schedule_takes(schedule.scheduler, new) then rename(schedule, old, new, at, moves) end
  end
end

local function rename_optimizer(optimizer, moves)
  for _, alias in ipairs(optimizer_aliases) do
    local old, new = alias[1], alias[2]
    local complete = true
    for _, name in ipairs(old) do complete = complete and optimizer[name] ~= nil end
    if complete and optimizer[new] == nil and optimizers.takes(optimizer.optimizer_type, new) then
      if #old == 1 then
        optimizer[new] = cbk.raw(optimizer, old[1])
        moves[#moves + 1] = { "optimizer." .. old[1], "optimizer." .. new }
      else
        local both = cbk.list()
        for i, name in ipairs(old) do
          both[i] = cbk.raw(optimizer, name)
          moves[#moves + 1] = { "optimizer." .. name, ("optimizer.%s.%d"):format(new, i - 1) }
        end
        optimizer[new] = both
      end
      for _, name in ipairs(old) do optimizer[name] = nil end
    end
  end
  if is_dict(optimizer, "learning_rate") then
    rename_schedule(optimizer.learning_rate, "optimizer.learning_rate.", moves)
  elseif is_list(optimizer, "learning_rate") then
    for i, schedule in cbk.items(optimizer.learning_rate) do
      if is_dict(schedule) then rename_schedule(schedule, ("optimizer.learning_rate.%d."):format(i - 1), moves) end
    end
  end
end

---The type that replaces use_bfloat16; nil if it is not set.
---@param flag any
---@param field string   its name, for messages
function run_config.fp16_type(flag, field)
  if not present(flag) then return nil end
  if not fields.same(flag, fields.any_of(true, false)) then fields.refuse(field, flag, fields.any_of(true, false)) end
  return fields.same(flag, true) and "bfloat16" or "float16"
end

local function aliases_of_2_1(config, moves)
  local optimizer, run = trainer.section(config, "optimizer"), trainer.section(config, "runconfig")
  if optimizer then rename_optimizer(optimizer, moves) end
  local model, at = trainer.model(config), trainer.place_of_model(config) .. "."
  if run and model.precision_opt_level ~= nil then
    if run.precision_opt_level == nil then
      run.precision_opt_level = cbk.raw(model, "precision_opt_level")
      moves[#moves + 1] = { at .. "precision_opt_level", "runconfig.precision_opt_level" }
    end
    model.precision_opt_level = nil
  end
  local fp16_type = run_config.fp16_type(model.use_bfloat16, "use_bfloat16")
  if fp16_type then
    model.fp16_type = fp16_type
    moves[#moves + 1] = { at .. "use_bfloat16", at .. "fp16_type" }
  end
  model.use_bfloat16 = nil
end

-- --- from 2.1: gradient accumulation and sparsity

local function micro_batch_size(config, dropped)
  local run = trainer.section(config, "runconfig")
  if run == nil then return end
  local accumulate = run.use_cs_grad_accum
  drop(run, "autogen_policy", "runconfig.autogen_policy", dropped)
  if accumulate == nil then return end
  if type(accumulate) ~= "boolean" then
    cbk.fail("config", ("runconfig.use_cs_grad_accum=%s: it must be true or false"):format(tostring(accumulate)))
  end
  run.use_cs_grad_accum = nil
  for _, section in ipairs { "train_input", "eval_input" } do
    if trainer.section(config, section) == nil then config[section] = cbk.dict() end
    local input = config[section]
    if not accumulate then
      input.micro_batch_size = cbk.null
    elseif input.micro_batch_size == nil then
      input.micro_batch_size = "auto"
    end
  end
end

local function glob(pattern)
  if type(pattern) ~= "string" then fields.refuse("sparsity.param_name_patterns", pattern, "a pattern, a list or a map of them") end
  return (pattern:gsub("%.%*", "*"))
end

local function groups_of(sparsity, moves)
  local patterns = sparsity.param_name_patterns
  if not present(patterns) then return sparsity end
  local base, place = cbk.copy(sparsity), "sparsity.param_name_patterns"
  base.param_name_patterns = nil
  if not is_dict(sparsity, "param_name_patterns") then moves[#moves + 1] = { place, "sparsity.param_filter" } end
  if type(patterns) == "string" then
    base.param_filter = glob(patterns)
    return base
  elseif is_list(sparsity, "param_name_patterns") then
    local filters = cbk.list()
    for _, pattern in cbk.items(patterns) do filters[#filters + 1] = glob(pattern) end
    base.param_filter = filters
    return base
  elseif not is_dict(sparsity, "param_name_patterns") then
    glob(patterns)
  end
  local groups = cbk.list()
  for pattern, options in cbk.items(patterns) do
    local group = cbk.deep_copy(base)
    group.param_filter = glob(pattern)
    local at = ("sparsity.%d"):format(#groups)
    moves[#moves + 1] = { "sparsity", at }
    if present(options) then
      if not is_dict(options) then fields.refuse(("%s.%s"):format(place, pattern), options, "a map of fields") end
      for name in cbk.items(options) do
        group[name] = cbk.raw(options, name)
        moves[#moves + 1] = { ("%s.%s.%s"):format(place, pattern, name), ("%s.%s"):format(at, name) }
      end
    end
    groups[#groups + 1] = group
  end
  return groups
end

local function sparsity_of_2_2(config, moves)
  trainer.sparsity(config)
  if not is_dict(config, "sparsity") then return end
  local sparsity = config.sparsity
  if sparsity.type == "sideband" then return end
  rename(sparsity, "type", "algorithm", "sparsity.", moves)
  if sparsity.algorithm == "static" then sparsity.algorithm = nil end
  rename(sparsity, "schedule", "update", "sparsity.", moves)
  if present(sparsity.sparsity_schedule) then
    local steps, levels = cbk.list(), cbk.list()
    local schedule = sparsity.sparsity_schedule
    if not is_list(sparsity, "sparsity_schedule") then fields.refuse("sparsity.sparsity_schedule", schedule, "a list of [step, level]") end
    for i, pair in cbk.items(schedule) do
      if not is_list(pair) or #pair ~= 2 then fields.refuse(("sparsity.sparsity_schedule.%d"):format(i - 1), pair, "[step, level]") end
      steps[i], levels[i] = cbk.raw(pair, 1), cbk.raw(pair, 2)
    end
    sparsity.sparsity_schedule = nil
    sparsity.schedule = levels
    sparsity.update = cbk.dict { steps = steps }
  end
  if present(sparsity.sparsity) and type(sparsity.sparsity) ~= "number" then
    rename(sparsity, "sparsity", "schedule", "sparsity.", moves)
  end
  if sparsity.update == 1 then
    sparsity.update = nil
  elseif type(sparsity.update) == "number" then
    sparsity.update = cbk.dict { freq = sparsity.update }
    moves[#moves + 1] = { "sparsity.update", "sparsity.update.freq" }
  end
  if cbk.count(sparsity) == 1 and type(sparsity.sparsity) == "number" then
    config.sparsity = cbk.raw(sparsity, "sparsity")
    moves[#moves + 1] = { "sparsity.sparsity", "sparsity" }
  else
    config.sparsity = groups_of(sparsity, moves)
  end
end

-- --- all of it

---Warns about options that the original converter keeps when it goes from 1.8 to 2.0 at once.
local function warn_of_run_options(config)
  local cleaned, names = cbk.deep_copy(config), {}
  clean_runconfig(cleaned, {}, {})
  if config.csconfig ~= nil then names[1] = "csconfig" end
  for name in cbk.items(is_dict(config, "runconfig") and config.runconfig or cbk.dict()) do
    if cleaned.runconfig[name] == nil then names[#names + 1] = "runconfig." .. tostring(name) end
  end
  if #names == 0 then return end
  cbk.warn(("a direct conversion from cs-1.8 keeps options that cs-2.0 does not know: %s; convert to cs-1.9 first to change them"):format(
    table.concat(names, ", ")))
end

---Whether a step puts the states of data loaders from their files into the checkpoint, where 2.0 and later read them. On the way
---back to 1.9, which reads the files, nothing changes.
---@param from string
---@param to string
function run_config.takes_states(from, to) return releases.since(to, "2.0") and releases.since(to, from) end

---Removes the section with the folder of data loader states: from 2.0 on they are in the checkpoint.
local function drop_cerebras(config, dropped)
  if is_dict(config, "cerebras") then
    for name in cbk.items(config.cerebras) do
      if name ~= "save_iter_state_path" then dropped[#dropped + 1] = "cerebras." .. tostring(name) end
    end
  elseif present(config.cerebras) then
    dropped[#dropped + 1] = "cerebras"
  end
  config.cerebras = nil
end

---Changes a file of release `from` into one of `to`, in place; `config` is the whole file, its model section already new.
---@param moves? Moves   gets the moved fields
---@param options? { at_once_from: string|nil, keeps_lists: boolean|nil }   the source release, if the conversion takes several releases
---at once; whether the trainer layout gets lists that the original converter drops
function run_config.upgrade(config, from, to, moves, options)
  local dropped, at_once_from = {}, options and options.at_once_from
  moves = moves or {}
  if run_config.takes_states(from, to) then drop_cerebras(config, dropped) end
  if from == to then return config end -- another kind of model, of the same release
  if from == "1.9" and at_once_from == "1.8" then
    warn_of_run_options(config)
  elseif from == "1.9" or from == "2.0" then
    clean_runconfig(config, dropped, moves)
  end
  if from == "2.0" and to == "2.1" then aliases_of_2_1(config, moves) end
  if from == "2.1" then
    micro_batch_size(config, dropped)
    sparsity_of_2_2(config, moves)
  end
  local text = "config fields that release %s no longer has are left out: %s"
  if #dropped > 0 then cbk.warn(text:format(to, table.concat(dropped, ", "))) end
  if from == "2.2" and to == "2.3" and not trainer.is(config) then
    mup.upgrade(config.model, trainer.section(config, "optimizer"), moves)
    if not at_once_from then return trainer.from_legacy(config, moves, options and options.keeps_lists) end
    cbk.warn "a conversion from cs-2.2 at once keeps the file's layout (convert to cs-2.3 first for the trainer layout)"
  end
  return config
end

return run_config
