-- The two layouts of a Model Zoo YAML file: legacy (model, optimizer, runconfig, …) up to 2.2, and `trainer:` from 2.3 on.

local cbk = require "cbk"

local trainer = {}

local function present(value) return value ~= nil and value ~= cbk.null end
local function kind(tree, name) return tree[name] ~= nil and cbk.kind(tree, name) or "" end
local function is_dict(tree, name) return kind(tree, name):find "dict" ~= nil end
local function is_list(tree, name) return kind(tree, name) == "list" end

function trainer.is(config) return config.trainer ~= nil end

---Where the model section stands: its parent and name.
local function place(config)
  if config.trainer == nil then return config end
  if kind(config, "trainer") == "list" then
    cbk.fail("config", "converting a config with multiple trainer configs is not supported: give one of them")
  end
  return is_dict(config.trainer, "init") and config.trainer.init
    or cbk.fail("config", "the config has a 'trainer' section without 'init'")
end

---The model section of either layout.
function trainer.model(config)
  local parent = place(config)
  if not is_dict(parent, "model") then cbk.fail("config", "the config has no 'model' section") end
  return parent.model
end

function trainer.set_model(config, model) place(config).model = model end

-- --- legacy to trainer

---Nothing worth a place in the new file: null, or a dict or list of nothing. Numbers, bools and text always are.
local function is_empty(tree, name)
  local what = cbk.kind(tree, name)
  if what == "none" then return true end
  if what ~= "list" and not what:find "dict" then return false end
  for key in cbk.items(tree[name]) do
    if not is_empty(tree[name], key) then return false end
  end
  return true
end

---Takes fields out of a section: what was moved is not left behind.
local function mover(config)
  local move = {}
  for _, name in ipairs { "runconfig", "optimizer", "model", "train_input", "eval_input", "wandb" } do
    move[name] = is_dict(config, name) and cbk.copy(config[name]) or cbk.dict()
  end
  ---`move("runconfig", { "a", { "new", "old" } })`: a dict of what is there; null and empty containers count as absent.
  return setmetatable(move, {
    __call = function(self, section, names)
      local from, out = self[section], cbk.dict()
      for _, entry in ipairs(names) do
        local new, old = entry, entry
        if type(entry) == "table" then new, old = entry[1], entry[2] end
        if from[old] ~= nil then
          if not is_empty(from, old) then out[new] = cbk.raw(from, old) end
          from[old] = nil
        end
      end
      return out
    end,
  })
end

---A copy of a section without its empty fields, and without `name`.
local function without_empty(section, name)
  local out = cbk.copy(section)
  for key in cbk.items(section) do
    if key == name or is_empty(section, key) then out[key] = nil end
  end
  return out
end

---Sets a section, unless it is empty.
local function put(tree, name, section)
  if section ~= nil and #section > 0 then tree[name] = section end
end

local function merge(...)
  local out = cbk.dict()
  for _, part in ipairs { ... } do
    for name in cbk.items(part) do out[name] = cbk.raw(part, name) end
  end
  return out
end

local function backend(move)
  local cluster = move("runconfig", {
    "num_csx", { "max_wgt_servers", "num_wgt_servers" }, { "max_act_per_csx", "num_act_servers" }, "mgmt_address", "mgmt_namespace",
    "credentials_path", "mount_dirs", "python_paths", "num_workers_per_csx", "cbcore_image", "job_labels", "job_priority",
    "job_time_sec", "disable_version_check",
  })
  local out = move("runconfig", { { "backend_type", "target_device" }, "compile_dir", "compile_only", "validate_only" })
  put(out, "cluster_config", cluster)
  return merge(out, move("runconfig", { "enable_distributed", "main_process_id", "dist_backend", "init_method", "sync_batchnorm" }))
end

local schedule_classes = {
  "ConstantLR", "PolynomialLR", "LinearLR", "ExponentialLR", "InverseExponentialTimeDecayLR", "InverseSquareRootDecayLR",
  "CosineDecayLR", "SequentialLR", "PiecewiseConstantLR", "MultiStepLR", "StepLR", "CosineAnnealingLR", "LambdaLR",
  "CosineAnnealingWarmRestarts", "MultiplicativeLR", "ChainedScheduler", "CyclicLR", "OneCycleLR", "ScalePerParamLR",
}
local schedule_class = {}
for _, class in ipairs(schedule_classes) do
  schedule_class[class:lower()] = class
  schedule_class[class:lower():gsub("lr$", "")] = class
end

local function schedule(entry)
  local name = tostring(entry.scheduler)
  local class = schedule_class[name:lower()]
  if not class then
    cbk.fail("config", ("optimizer.learning_rate: the scheduler '%s' is not known; known are %s"):format(name,
      table.concat(schedule_classes, ", ")))
  end
  local options = cbk.copy(entry)
  options.scheduler, options.main_scheduler = nil, nil
  return cbk.dict { [class] = options }
end

local function schedulers(optimizer)
  local rate = optimizer.learning_rate
  if not present(rate) then return nil end
  local out
  if type(rate) == "number" then
    local constant = cbk.dict()
    constant.learning_rate = cbk.raw(optimizer, "learning_rate")
    out = cbk.dict { ConstantLR = constant }
  elseif is_dict(optimizer, "learning_rate") then
    out = schedule(rate)
  else
    local list, chained = cbk.list(), false
    for _, entry in cbk.items(rate) do
      chained = chained or entry.main_scheduler == "chained"
      list[#list + 1] = schedule(entry)
    end
    out = #list == 1 and list[1]
      or cbk.dict { [chained and "ChainedScheduler" or "SequentialLR"] = cbk.dict { schedulers = list } }
  end
  if type(rate) ~= "number" then optimizer.learning_rate = nil end
  if present(optimizer.adjust_learning_rate) then
    local options = cbk.copy(optimizer.adjust_learning_rate)
    options.scheduler = out
    out = cbk.dict { ScalePerParamLR = options }
    optimizer.adjust_learning_rate = nil
  end
  return cbk.list { out }
end

---Callbacks of the form `{Name: {option: value}}`, each made only where there is something to say.
local function callbacks(move)
  local out = cbk.list()
  local function add(name, options) out[#out + 1] = cbk.dict { [name] = options } end
  local function add_filled(name, options) if #options > 0 then add(name, options) end end
  ---A switch: true makes the callback, false names it as absent.
  local function add_switch(name, value)
    if value == true then
      add(name, cbk.dict())
    elseif value == false then
      add(name, cbk.null)
    elseif present(value) then
      add(name, value)
    end
  end
  local flags = { { "csx.performance.transfer_processes", "transfer_processes" } }
  for _, name in ipairs {
    "ini", "debug_args", "retrace_every_iteration", "lazy_initialization", "log_initialization", "drop_data", "fabric_type_blacklist",
    "compile_crd_memory_gi", "execute_crd_memory_gi", "wrk_memory_gi", "act_memory_gi", "cmd_memory_gi", "wgt_memory_gi", "chf_memory_gi",
  } do
    flags[#flags + 1] = { "csx.debug." .. name, name }
  end
  add_filled("GlobalFlags", move("runconfig", flags))
  local batch = { { "csx.performance.micro_batch_size", "micro_batch_size" } }
  add_filled("ScopedTrainFlags", move("train_input", batch))
  add_filled("ScopedValidateFlags", move("eval_input", batch))
  add_filled("DebugArgsPath", move("runconfig", { "debug_args_path" }))
  add_filled("Lora", move("model", { "lora_params" }))
  add_switch("LogInputSummaries", move("runconfig", { "log_input_summaries" }).log_input_summaries)
  add_switch("CheckLoss", move("runconfig", { "check_loss_values" }).check_loss_values)
  add_switch("ComputeNorm", move.log_summaries)
  if not is_list(move.runconfig, "load_checkpoint_states") then -- a list has no place in the trainer layout of 2.3
    add_filled("LoadCheckpointStates", move("runconfig", { "load_checkpoint_states" }))
  end
  add_filled("KeepNCheckpoints", move("runconfig", { { "n", "max_checkpoints" } }))
  add_switch("LogSparsity", move.add_summaries)
  add_filled("WeightCompression", move("model", { { "compressions", "compression" } }))
  add_filled("SelectiveGrad", move("model", { { "selective_grads", "selective_grad" } }))
  local experimental = move.runconfig.experimental
  if present(experimental) and present(experimental.listeners) then
    for _, listener in cbk.items(experimental.listeners) do
      add(tostring(listener.listener_type), without_empty(listener, "listener_type"))
    end
  end
  add_filled("OpProfiler", move("runconfig", { "op_profiler_config" }).op_profiler_config or cbk.dict())
  add_switch("DumpActivations", move("runconfig", { "dump_activations" }).dump_activations)
  add_filled("HFCacheDir", move("runconfig", { { "cache_dir", "hf_cache_dir" } }))
  return out
end

local function loggers(move)
  local out = cbk.list()
  local board = move("runconfig", { "summary_dir", "legacy_event_dirs" })
  if #board > 0 then out[#out + 1] = cbk.dict { TensorBoardLogger = board } end
  local wandb = without_empty(move.wandb)
  if #wandb > 0 then out[#out + 1] = cbk.dict { WandbLogger = wandb } end
  return out
end

---The sparsity section (a level, a group or a list of groups), and whether summaries were asked for.
local function sparsity(config)
  local section = config.sparsity
  if not present(section) then return nil, nil end
  if type(section) == "number" then
    local out = cbk.dict()
    out.sparsity = cbk.raw(config, "sparsity")
    return out, nil
  end
  section = cbk.deep_copy(section)
  local summaries
  local groups = is_dict(config, "sparsity") and { section } or section
  for _, group in cbk.items(groups) do
    if group.add_summaries ~= nil then
      summaries = summaries or group.add_summaries
      group.add_summaries = nil
    end
  end
  return section, summaries
end

---The file of a 2.3 trainer from a legacy file.
---@param config Dict
---@return Dict
function trainer.from_legacy(config)
  local move = mover(config)
  local checkpoint_path = move("runconfig", { "checkpoint_path" })
  local optimizer = move.optimizer
  move.log_summaries = optimizer.log_summaries
  local sparsity_section
  sparsity_section, move.add_summaries = sparsity(config)
  local init = move("runconfig", { "model_dir", "seed" })
  put(init, "backend", backend(move))
  local lists = { callbacks = callbacks(move), loggers = loggers(move) }
  local precision = merge(
    move("model", { { "enabled", "mixed_precision" }, "fp16_type" }), move("runconfig", { "precision_opt_level" }),
    move("optimizer", {
      "loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale", "max_gradient_norm",
      "max_gradient_value", { "log_loss_scale", "log_summaries" },
    }))
  local accumulation = move("optimizer", { "grad_accum_steps" })
  init.model = move.model
  if config.optimizer ~= nil then
    local schedule_list = schedulers(optimizer)
    local class = optimizer.optimizer_type
    if not present(class) then cbk.fail("config", "the optimizer section has no 'optimizer_type'") end
    optimizer.optimizer_type = nil
    init.optimizer = cbk.dict { [class] = optimizer }
    put(init, "schedulers", schedule_list)
  end
  put(init, "precision", precision)
  put(init, "sparsity", sparsity_section)
  put(init, "loop", merge(
    move("runconfig", { "num_steps", "max_steps", "num_epochs", "steps_per_epoch", "eval_frequency", "eval_steps" }), accumulation))
  put(init, "checkpoint", move("runconfig", {
    { "steps", "checkpoint_steps" }, "disable_strict_checkpoint_loading", "autoload_last_checkpoint", "save_initial_checkpoint",
  }))
  put(init, "logging", move("runconfig", { "log_steps", { "log_level", "logging" }, "wsc_log_level", "enable_act_frequency" }))
  put(init, "callbacks", lists.callbacks)
  put(init, "loggers", lists.loggers)
  local unknown = {}
  for name in cbk.items(move.runconfig) do
    if name ~= "mode" and name ~= "experimental" then unknown[#unknown + 1] = tostring(name) end
  end
  if #unknown > 0 then cbk.warn("runconfig fields without a place in the trainer layout are dropped: " .. table.concat(unknown, ", ")) end

  local out = cbk.dict { init = init }
  local path = checkpoint_path.checkpoint_path
  local function filled(section) return present(section) and #section > 0 end
  local has = { train = filled(config.train_input), eval = filled(config.eval_input) }
  local function run(name, entries)
    local section = cbk.dict()
    for _, entry in ipairs(entries) do
      if entry[2] ~= nil then section[entry[1]] = cbk.deep_copy(entry[2]) end
    end
    out[name] = section
  end
  local train, eval = has.train and move.train_input or nil, has.eval and move.eval_input or nil
  if has.train then run("fit", { { "train_dataloader", train }, { "val_dataloader", eval }, { "ckpt_path", path } }) end
  if has.eval then
    run("validate", { { "val_dataloader", eval }, { "ckpt_path", path } })
    run("validate_all", { { "val_dataloaders", eval }, { "ckpt_paths", path } })
  end
  return cbk.dict { trainer = out }
end

return trainer
