-- The two layouts of a Model Zoo YAML file: legacy (model, optimizer, runconfig, …) up to 2.2, and `trainer:` from 2.3 on.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"

local present, is_dict, is_list = kinds.present, kinds.is_dict, kinds.is_list

local trainer = {}

---The sections of a legacy file that the trainer's layout has a place for.
trainer.LEGACY_SECTIONS = { model = true, optimizer = true, runconfig = true, wandb = true, sparsity = true, train_input = true,
  eval_input = true }

function trainer.is(config) return present(config.trainer) end

-- Sections beside the model in the legacy layout.
local SECTIONS = { "train_input", "eval_input", "inference_input", "optimizer", "runconfig", "sparsity" }

---Whether a config is a whole file of the Model Zoo, with a section for the model, as far as its names say. Others may have a section
---`model` among their own.
---@param config any
function trainer.is_file(config)
  if not is_dict(config) then return false end
  if trainer.is(config) then return true end
  if not is_dict(config, "model") then return false end
  for _, name in ipairs(SECTIONS) do
    if config[name] ~= nil then return true end
  end
  return cbk.count(config) == 1
end

---The parent of the model section.
local function place(config)
  if not trainer.is(config) then return config end
  if present(config.model) then
    cbk.fail("config", "the config has a section 'model' and a section 'trainer', which both describe the model: remove one")
  end
  if is_list(config, "trainer") then
    cbk.fail("config", "expected one trainer config, found multiple trainer configs; pass a file with one of them")
  end
  return is_dict(config, "trainer") and is_dict(config.trainer, "init") and config.trainer.init
    or cbk.fail("config", "the config has a 'trainer' section without 'init'")
end

---The model section of either layout.
function trainer.model(config)
  local parent = place(config)
  if parent.model == nil then
    for _, field in ipairs { "model_type", "architectures" } do
      if present(config[field]) then
        cbk.fail("config", ("expected a config of the Model Zoo, found one of Hugging Face (it has '%s'); its format is hf"):format(field))
      end
    end
    cbk.fail("config", "expected a config of the Model Zoo, found no section 'model'")
  end
  if not is_dict(parent, "model") then fields.refuse(trainer.place_of_model(config), parent.model, "a map of fields") end
  return parent.model
end

---The dotted path of the model section.
function trainer.place_of_model(config) return trainer.is(config) and "trainer.init.model" or "model" end

function trainer.set_model(config, model) place(config).model = model end

---A section of a legacy file; nil if it is missing, or null (`runconfig:` with nothing below it).
---@param config Dict
---@param name string
---@return Dict|nil
function trainer.section(config, name)
  if not present(config[name]) then return nil end
  if not is_dict(config, name) then fields.refuse(name, config[name], "a map of fields") end
  return config[name]
end

---The sparsity of a legacy file: a level, a group, or a list of groups.
---@param config Dict
---@return any
function trainer.sparsity(config)
  local groups = config.sparsity
  if not present(groups) then return nil end
  if is_list(config, "sparsity") then
    for i, group in cbk.items(groups) do
      if not is_dict(group) then fields.refuse(("sparsity.%d"):format(i - 1), group, "a map of fields") end
    end
  elseif not is_dict(config, "sparsity") and type(groups) ~= "number" then
    fields.refuse("sparsity", groups, "a number, a map of fields or a list of such maps")
  end
  return groups
end

-- --- legacy to trainer

-- The new places of a legacy file's fields: "new <- section.field", or "section.field" if the name stays. The field is a scalar; with
-- ".*" at the end a dict or a list, with "?" either, with "+" also a list in an upgrade. Null and empty containers count as absent, and
-- absent fields make no section.
local layout = {
  head = { "runconfig.model_dir", "runconfig.seed" },
  backend = {
    "backend_type <- runconfig.target_device", "runconfig.compile_dir", "runconfig.compile_only", "runconfig.validate_only",
    {
      name = "cluster_config",
      "runconfig.num_csx", "max_wgt_servers <- runconfig.num_wgt_servers", "max_act_per_csx <- runconfig.num_act_servers",
      "runconfig.mgmt_address", "runconfig.mgmt_namespace", "runconfig.credentials_path", "runconfig.mount_dirs.*",
      "runconfig.python_paths.*", "runconfig.num_workers_per_csx", "runconfig.cbcore_image", "runconfig.job_labels.*",
      "runconfig.job_priority", "runconfig.job_time_sec", "runconfig.disable_version_check",
    },
    "runconfig.enable_distributed", "runconfig.main_process_id", "runconfig.dist_backend", "runconfig.init_method",
    "runconfig.sync_batchnorm",
  },
  precision = {
    "enabled <- model.mixed_precision", "model.fp16_type", "runconfig.precision_opt_level", "optimizer.loss_scaling_factor",
    "optimizer.initial_loss_scale", "optimizer.steps_per_increase", "optimizer.min_loss_scale", "optimizer.max_loss_scale",
    "optimizer.max_gradient_norm", "optimizer.max_gradient_value", "log_loss_scale <- optimizer.log_summaries",
  },
  loop = {
    "runconfig.num_steps", "runconfig.max_steps", "runconfig.num_epochs", "runconfig.steps_per_epoch", "runconfig.eval_frequency",
    "runconfig.eval_steps", "optimizer.grad_accum_steps",
  },
  checkpoint = {
    "steps <- runconfig.checkpoint_steps", "runconfig.disable_strict_checkpoint_loading", "runconfig.autoload_last_checkpoint",
    "runconfig.save_initial_checkpoint",
  },
  logging = {
    "runconfig.log_steps", "log_level <- runconfig.logging", "runconfig.wsc_log_level?", "runconfig.enable_act_frequency",
  },
  -- Callbacks are made of fields, or of one value: a dict of options, or a switch.
  callbacks = {
    {
      name = "GlobalFlags",
      "csx.performance.transfer_processes <- runconfig.transfer_processes", "csx.debug.ini <- runconfig.ini.*",
      "csx.debug.debug_args <- runconfig.debug_args.*",
      "csx.debug.retrace_every_iteration <- runconfig.retrace_every_iteration",
      "csx.debug.lazy_initialization <- runconfig.lazy_initialization",
      "csx.debug.log_initialization <- runconfig.log_initialization", "csx.debug.drop_data <- runconfig.drop_data",
      "csx.debug.fabric_type_blacklist <- runconfig.fabric_type_blacklist.*",
      "csx.debug.compile_crd_memory_gi <- runconfig.compile_crd_memory_gi",
      "csx.debug.execute_crd_memory_gi <- runconfig.execute_crd_memory_gi", "csx.debug.wrk_memory_gi <- runconfig.wrk_memory_gi",
      "csx.debug.act_memory_gi <- runconfig.act_memory_gi", "csx.debug.cmd_memory_gi <- runconfig.cmd_memory_gi",
      "csx.debug.wgt_memory_gi <- runconfig.wgt_memory_gi", "csx.debug.chf_memory_gi <- runconfig.chf_memory_gi",
    },
    { name = "ScopedTrainFlags", "csx.performance.micro_batch_size <- train_input.micro_batch_size?" },
    { name = "ScopedValidateFlags", "csx.performance.micro_batch_size <- eval_input.micro_batch_size?" },
    { name = "DebugArgsPath", "runconfig.debug_args_path" },
    { name = "Lora", "model.lora_params.*" },
    { name = "LogInputSummaries", value = "runconfig.log_input_summaries" },
    { name = "CheckLoss", value = "runconfig.check_loss_values" },
    { name = "ComputeNorm", value = "optimizer.log_summaries" },
    { name = "LoadCheckpointStates", "runconfig.load_checkpoint_states+" },
    { name = "KeepNCheckpoints", "n <- runconfig.max_checkpoints" },
    { name = "LogSparsity" }, -- its switch is somewhere in the sparsity section
    { name = "WeightCompression", "compressions <- model.compression.*" },
    { name = "SelectiveGrad", "selective_grads <- model.selective_grad.*" },
    { each = "runconfig.experimental.listeners.*", name_from = "listener_type" },
    { name = "OpProfiler", value = "runconfig.op_profiler_config.*" },
    { name = "DumpActivations", value = "runconfig.dump_activations" },
    { name = "HFCacheDir", "cache_dir <- runconfig.hf_cache_dir" },
  },
  loggers = {
    { name = "TensorBoardLogger", "runconfig.summary_dir", "runconfig.legacy_event_dirs" },
    {
      name = "WandbLogger",
      "wandb.project", "wandb.group", "wandb.run_id", "wandb.run_name", "wandb.job_type", "wandb.tags+", "wandb.resume", "wandb.entity",
    },
  },
  fit = { "ckpt_path <- runconfig.checkpoint_path" },
  validate_all = { "ckpt_paths <- runconfig.checkpoint_path" },
}

---The value without null and empty parts; nil if nothing is left.
local function filled(tree, name)
  local what = cbk.kind(tree, name)
  if what == "none" then return nil end
  if what == "bool" then return tree[name] end
  local is_items = what == "list"
  if not is_items and not what:find "dict" then return cbk.raw(tree, name) end
  local out = is_items and cbk.list() or cbk.dict()
  for key in cbk.items(tree[name]) do
    local value = filled(tree[name], key)
    if value ~= nil then out[is_items and #out + 1 or key] = value end
  end
  return cbk.count(out) > 0 and out or nil
end

---A function that takes fields of the legacy file by their sources. Records the fields that were asked for, those of another kind, and
---the moves.
---@param moves Moves
---@param keeps_lists? boolean   in fields of the form "+", where the original converter drops them
local function taker(config, moves, keeps_lists)
  local asked, lists, misfits = {}, {}, {}
  ---@param source string   "section.field", "section.field.*", "section.field?" or "section.field+"
  ---@param target? string  its place in the new file
  local function take(source, target)
    local section, path, form = source:match "^([%w_]+)%.([%w_.]-)([.*?+]*)$"
    local tree, field = config, section
    trainer.section(config, section)
    for part in path:gmatch "[^.]+" do
      if not is_dict(tree, field) then return nil end
      tree, field = tree[field], part
    end
    if tree[field] == nil then return nil end
    local is_items = is_list(tree, field) or is_dict(tree, field)
    local value = filled(tree, field)
    local takes_both = form == "?" or form == "+" and (keeps_lists or not is_list(tree, field))
    if value ~= nil and not takes_both and is_items ~= (form == ".*") then
      lists[source:match "^[^+]*"] = form == "+" and is_list(tree, field) or nil
      misfits[section .. "." .. path] = true
      return nil
    end
    asked[section .. "." .. path:match "^[^.]+"] = true
    -- items after removed empty ones have other positions now
    local is_whole = value ~= nil and (not is_list(tree, field) or #value == #tree[field])
    if target and is_whole then moves[#moves + 1] = { section .. "." .. path, target } end
    return value
  end
  return take, asked, lists, misfits
end

---A dict of the fields that exist, in the order of the layout.
---@param at? string   its place in the new file
local function fill(take, names, at)
  local out = cbk.dict()
  for _, field in ipairs(names) do
    local name, value
    if type(field) == "table" then
      name, value = field.name, fill(take, field, at .. "." .. field.name)
      if cbk.count(value) == 0 then value = nil end
    else
      local renamed, source = field:match "^(%S+) <%- (%S+)$"
      source = source or field
      name = renamed or source:match "%.([%w_]+)"
      value = take(source, at and at .. "." .. name)
    end
    if value ~= nil then out[name] = value end
  end
  return out
end

---A list of `{Name: options}`. A switch adds the callback (true) or disables it (false).
---@param at string     its place in the new file
---@param moves Moves
local function fill_list(take, entries, switches, at, moves)
  local out = cbk.list()
  local function spot(name) return ("%s.%d.%s"):format(at, #out, name) end
  local function add(name, options) out[#out + 1] = cbk.dict { [name] = options } end
  for _, entry in ipairs(entries) do
    if entry.each then
      for i, options in cbk.items(take(entry.each) or cbk.list()) do
        local name = is_dict(options) and options[entry.name_from]
        if not present(name or nil) then
          cbk.fail("config", ("each entry of %s needs a '%s'"):format(entry.each:gsub("%.%*$", ""), entry.name_from))
        end
        options[entry.name_from] = nil
        moves[#moves + 1] = { ("%s.%d"):format(entry.each:gsub("%.%*$", ""), i - 1), spot(tostring(name)) }
        add(tostring(name), options)
      end
    elseif entry[1] then
      local options = fill(take, entry, spot(entry.name))
      if cbk.count(options) > 0 then add(entry.name, options) end
    else
      local value = switches[entry.name]
      if entry.value then value = take(entry.value, spot(entry.name)) end
      if value == true then
        add(entry.name, cbk.dict())
      elseif value == false then
        add(entry.name, cbk.null)
      elseif value ~= nil then
        add(entry.name, value)
      end
    end
  end
  return out
end

---The fields of a section of a legacy file that the layout moves elsewhere: of runconfig, all that are known.
---@param section string
---@return string[]
function trainer.moved_fields(section)
  local out = {}
  local function look(node)
    if type(node) == "string" then
      local field = node:match("%f[%w_]" .. section .. "%.([%w_]+)")
      if field then out[#out + 1] = field end
    else
      for _, inner in pairs(node) do look(inner) end
    end
  end
  look(layout)
  return out
end

local function without_moved(tree, section)
  if tree ~= nil then
    for _, field in ipairs(trainer.moved_fields(section)) do tree[field] = nil end
  end
  return tree
end

local schedule_classes = {
  "ConstantLR", "PolynomialLR", "LinearLR", "ExponentialLR", "InverseExponentialTimeDecayLR", "InverseSquareRootDecayLR",
  "CosineDecayLR", "SequentialLR", "PiecewiseConstantLR", "MultiStepLR", "StepLR", "CosineAnnealingLR", "LambdaLR",
  "CosineAnnealingWarmRestarts", "MultiplicativeLR", "ChainedScheduler", "CyclicLR", "OneCycleLR", "ScalePerParamLR",
}
local schedule_class, schedule_names = {}, {}
for _, class in ipairs(schedule_classes) do
  schedule_class[class:lower()] = class
  schedule_class[class:lower():gsub("lr$", "")] = class
  schedule_names[#schedule_names + 1] = class:gsub("LR$", "")
end

---@param from string   its path in the legacy file
---@param at string     its path in the new file
local function schedule(entry, from, at, moves)
  local known = "known: " .. table.concat(schedule_classes, ", ")
  if not present(entry.scheduler) then cbk.fail("config", ("%s has no 'scheduler'; %s"):format(from, known), { field = from }) end
  local name = tostring(entry.scheduler)
  local class = schedule_class[name:lower()]
  if not class then
    local question = naming.question(cbk.nearest(name, schedule_names, 1))
    cbk.fail("config", ("%s: unknown scheduler '%s'; %s"):format(from, name, question or known), { field = from .. ".scheduler" })
  end
  local options = cbk.copy(entry)
  options.scheduler, options.main_scheduler = nil, nil
  moves[#moves + 1] = { from .. ".scheduler", at .. "." .. class }
  moves[#moves + 1] = { from, at .. "." .. class }
  return cbk.dict { [class] = options }
end

---Several schedules in one: one after the other, or all at once (`main_scheduler: chained`).
local function schedule_list(entries, at, moves)
  local list, main = cbk.list(), nil
  for i, entry in cbk.items(entries) do
    if not is_dict(entry) then fields.refuse(("optimizer.learning_rate.%d"):format(i - 1), entry, "a map with a scheduler") end
    local wanted = present(entry.main_scheduler) and tostring(entry.main_scheduler) or main
    if main and wanted ~= main then
      cbk.fail("config", ("optimizer.learning_rate: expected one main_scheduler, found '%s' and '%s'"):format(main, wanted),
        { field = "optimizer.learning_rate" })
    end
    main = wanted
  end
  local is_chained = main and (main:lower() == "chained" or main:lower() == "chainedlr")
  local is_alone = #entries == 1 and not is_chained
  local class = is_chained and "ChainedScheduler" or "SequentialLR"
  for i in cbk.items(entries) do
    moves[#moves + 1] = { ("optimizer.learning_rate.%d.main_scheduler"):format(i - 1), at .. "." .. class }
  end
  for i, entry in cbk.items(entries) do
    local spot = is_alone and at or ("%s.%s.schedulers.%d"):format(at, class, i - 1)
    list[i] = schedule(entry, ("optimizer.learning_rate.%d"):format(i - 1), spot, moves)
  end
  if is_alone then return list[1] end
  return cbk.dict { [class] = cbk.dict { schedulers = list } }
end

---Refuses an empty learning rate: it is a number, one schedule or several. Null counts as absent.
local function check_rate(optimizer)
  local rate = optimizer.learning_rate
  local is_empty = (is_dict(optimizer, "learning_rate") or is_list(optimizer, "learning_rate")) and cbk.count(rate) == 0
  if is_empty then fields.refuse("optimizer.learning_rate", rate, "a number, a map with a scheduler or a list of such maps") end
end

---A list with the one scheduler. Its fields are removed from the optimizer, except a plain number.
local function schedulers(optimizer, moves)
  local rate = optimizer.learning_rate
  if rate == nil then return nil end
  local is_scaled, at, out = optimizer.adjust_learning_rate ~= nil, "trainer.init.schedulers.0"
  moves[#moves + 1] = { "optimizer.learning_rate", "trainer.init.schedulers" } -- for what is of none of the schedules
  if is_scaled then at = at .. ".ScalePerParamLR.scheduler" end
  if is_dict(optimizer, "learning_rate") then
    out = schedule(rate, "optimizer.learning_rate", at, moves)
  elseif is_list(optimizer, "learning_rate") then
    out = schedule_list(rate, at, moves)
  else
    local number = cbk.raw(optimizer, "learning_rate") -- as it is written
    if cbk.kind(optimizer, "learning_rate") ~= "float" then
      number = tonumber(rate) or cbk.fail("config", ("optimizer.learning_rate is %s, not a number"):format(tostring(rate)),
        { field = "optimizer.learning_rate" })
      number = cbk.float(number)
    end
    out = cbk.dict { ConstantLR = cbk.dict { learning_rate = number } }
    moves[#moves + 1] = { "optimizer.learning_rate", at .. ".ConstantLR.learning_rate" }
  end
  if is_dict(optimizer, "learning_rate") or is_list(optimizer, "learning_rate") then optimizer.learning_rate = nil end
  if is_scaled then out = cbk.dict { ScalePerParamLR = cbk.dict { scheduler = out } } end
  return cbk.list { out }
end

---The sparsity section without `add_summaries`, and their value.
local function sparsity(config)
  if trainer.sparsity(config) == nil then return nil, nil end
  if not is_dict(config, "sparsity") and not is_list(config, "sparsity") then
    return cbk.dict { sparsity = cbk.raw(config, "sparsity") }, nil
  end
  local section = cbk.deep_copy(config.sparsity)
  local summaries
  if is_dict(config, "sparsity") then summaries = section.add_summaries end
  local function look(tree)
    if is_dict(tree) and tree.add_summaries ~= nil then
      local value = tree.add_summaries
      if present(value) and value ~= false and value ~= 0 and value ~= "" then summaries = true end
      tree.add_summaries = nil
    end
    for key in cbk.items(tree) do
      if is_dict(tree, key) or is_list(tree, key) then look(tree[key]) end
    end
  end
  look(section)
  if summaries == cbk.null then summaries = nil end
  return section, summaries
end

---Warns about fields without a place in the layout, by their names in the legacy file.
---@param lists table<string, true>   lists that an upgrade would keep
---@param misfits table<string, true>   fields of another kind than the layout has
local function warn_of_the_rest(config, asked, lists, misfits)
  local unknown = {}
  for _, name in ipairs(naming.sorted(misfits)) do
    if not name:find "^runconfig%." and not name:find "^wandb%." then unknown[#unknown + 1] = name end
  end
  for _, section in ipairs { "runconfig", "wandb" } do
    if is_dict(config, section) then
      for name in cbk.items(config[section]) do
        local field = section .. "." .. tostring(name)
        local is_default = field == "runconfig.mode" and config.runconfig.mode == "train"
        if not asked[field] and not is_default and filled(config[section], name) ~= nil then
          unknown[#unknown + 1] = field .. (lists[field] and " (a list, which `cbk upgrade` keeps)" or "")
        end
      end
    end
  end
  for name in cbk.items(config) do
    if not trainer.LEGACY_SECTIONS[name] and filled(config, name) ~= nil then unknown[#unknown + 1] = tostring(name) end
  end
  if #unknown > 0 then cbk.warn("fields without a place in the trainer layout are dropped: " .. table.concat(unknown, ", ")) end
end

---`fit`, `validate` and `validate_all`: the first two need their data.
local function runs(take, config, moves)
  local function input(section)
    local data = trainer.section(config, section)
    if data == nil or cbk.count(data) == 0 then return nil end
    return without_moved(cbk.copy(data), section)
  end
  local train, eval = input "train_input", input "eval_input"
  local out, path = cbk.dict(), fill(take, layout.fit).ckpt_path
  local function add(name, entries)
    local section = cbk.dict()
    for _, entry in ipairs(entries) do
      if entry[2] ~= nil then
        section[entry[1]] = cbk.deep_copy(entry[2])
        moves[#moves + 1] = { entry[3], ("trainer.%s.%s"):format(name, entry[1]) }
      end
    end
    if cbk.count(section) > 0 then out[name] = section end
  end
  local path_of = "runconfig.checkpoint_path"
  if train then
    add("fit", { { "train_dataloader", train, "train_input" }, { "val_dataloader", eval, "eval_input" }, { "ckpt_path", path, path_of } })
  end
  if eval then add("validate", { { "val_dataloader", eval, "eval_input" }, { "ckpt_path", path, path_of } }) end
  add("validate_all", { { "val_dataloaders", eval, "eval_input" }, { "ckpt_paths", path, path_of } })
  return out
end

---The file of a 2.3 trainer from a legacy file.
---@param config Dict
---@param moves? Moves   gets the moved fields
---@param keeps_lists? boolean   keep states to load and tags that are lists
---@return Dict
function trainer.from_legacy(config, moves, keeps_lists)
  moves = moves or {}
  local take, asked, lists, misfits = taker(config, moves, keeps_lists)
  local init = fill(take, layout.head, "trainer.init")
  local function put(name, section)
    if section ~= nil and cbk.count(section) > 0 then init[name] = section end
  end
  put("backend", fill(take, layout.backend, "trainer.init.backend"))
  init.model = without_moved(cbk.copy(trainer.model(config)), "model")
  moves[#moves + 1] = { "model", "trainer.init.model" }
  local optimizer = trainer.section(config, "optimizer") and filled(config, "optimizer")
  if optimizer then
    local class = optimizer.optimizer_type
    if not present(class) then cbk.fail("config", "the optimizer section has no 'optimizer_type'", { field = "optimizer" }) end
    if type(class) ~= "string" then fields.refuse("optimizer.optimizer_type", class, "the name of an optimizer") end
    check_rate(config.optimizer)
    without_moved(optimizer, "optimizer")
    local list = schedulers(optimizer, moves)
    optimizer.optimizer_type = nil
    moves[#moves + 1] = { "optimizer.optimizer_type", "trainer.init.optimizer." .. class }
    moves[#moves + 1] = { "optimizer", "trainer.init.optimizer." .. class }
    init.optimizer = cbk.dict { [class] = optimizer }
    put("schedulers", list)
  end
  local sparsity_section, summaries = sparsity(config)
  put("sparsity", sparsity_section)
  local has_groups = is_dict(config, "sparsity") or is_list(config, "sparsity")
  moves[#moves + 1] = { "sparsity", has_groups and "trainer.init.sparsity" or "trainer.init.sparsity.sparsity" }
  for _, name in ipairs { "precision", "loop", "checkpoint", "logging" } do
    put(name, fill(take, layout[name], "trainer.init." .. name))
  end
  put("callbacks", fill_list(take, layout.callbacks, { LogSparsity = summaries }, "trainer.init.callbacks", moves))
  put("loggers", fill_list(take, layout.loggers, {}, "trainer.init.loggers", moves))

  local out = cbk.dict { init = init }
  for name, section in cbk.items(runs(take, config, moves)) do out[name] = section end
  warn_of_the_rest(config, asked, lists, misfits)
  return cbk.dict { trainer = out }
end

return trainer
