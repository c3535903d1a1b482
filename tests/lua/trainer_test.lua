-- The step from the legacy YAML layout of 2.2 to the trainer layout of 2.3, field by field; and the data loader states of 1.8 and 1.9.

local cbk = require "cbk"
local conversion = require "conversion"
local trainer = require "converters.modelzoo.trainer"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"
local harness = require "harness"

local describe, it = harness.describe, harness.it

local function same(a, b, what)
  harness.checked()
  if cbk.equal(a, b) then return end
  error(("%s: %s is not %s"):format(what or "value", cbk.json(a), cbk.json(b)), 2)
end

local function refuses(text, f, ...)
  local arguments = { ... }
  harness.raises(text, function() f(unpack(arguments)) end)
end

-- What converters/modelzoo/trainer.lua should make of each field: the section and name of 2.2, a value, the place in 2.3.
local function trainer_fields()
  local init, rows = "trainer.init.", {}
  local function add(source, place, value)
    if value == nil then value = #rows + 1 end
    rows[#rows + 1] = { source = source, place = place, value = value }
  end
  local function same_names(section, place, names)
    for name in names:gmatch "%S+" do add(section .. "." .. name, init .. place .. name) end
  end
  same_names("runconfig", "", "model_dir seed")
  add("runconfig.target_device", init .. "backend.backend_type", "CSX")
  same_names("runconfig", "backend.",
    "compile_dir compile_only validate_only enable_distributed main_process_id dist_backend init_method sync_batchnorm")
  add("runconfig.num_wgt_servers", init .. "backend.cluster_config.max_wgt_servers")
  add("runconfig.num_act_servers", init .. "backend.cluster_config.max_act_per_csx")
  same_names("runconfig", "backend.cluster_config.",
    "num_csx mgmt_address mgmt_namespace credentials_path num_workers_per_csx cbcore_image job_priority job_time_sec disable_version_check")
  for _, name in ipairs { "mount_dirs", "python_paths", "job_labels" } do
    add("runconfig." .. name, init .. "backend.cluster_config." .. name, cbk.list { "/a", "/b" })
  end
  add("model.mixed_precision", init .. "precision.enabled", true)
  add("model.fp16_type", init .. "precision.fp16_type", "cbfloat16")
  same_names("runconfig", "precision.", "precision_opt_level")
  same_names("optimizer", "precision.",
    "loss_scaling_factor initial_loss_scale steps_per_increase min_loss_scale max_loss_scale max_gradient_norm max_gradient_value")
  add("optimizer.log_summaries", init .. "precision.log_loss_scale", false)
  same_names("runconfig", "loop.", "num_steps max_steps num_epochs steps_per_epoch eval_frequency eval_steps")
  same_names("optimizer", "loop.", "grad_accum_steps")
  add("runconfig.checkpoint_steps", init .. "checkpoint.steps")
  same_names("runconfig", "checkpoint.", "disable_strict_checkpoint_loading autoload_last_checkpoint save_initial_checkpoint")
  same_names("runconfig", "logging.", "log_steps enable_act_frequency")
  add("runconfig.logging", init .. "logging.log_level", "INFO")
  add("runconfig.wsc_log_level", init .. "logging.wsc_log_level", cbk.dict { task = "DEBUG" })
  local function callback(source, name, field, value) add(source, "callbacks:" .. name .. "/" .. (field or ""), value) end
  callback("runconfig.transfer_processes", "GlobalFlags", "csx.performance.transfer_processes")
  for _, name in ipairs { "ini", "debug_args" } do
    callback("runconfig." .. name, "GlobalFlags", "csx.debug." .. name, cbk.dict { x = 1 })
  end
  callback("runconfig.fabric_type_blacklist", "GlobalFlags", "csx.debug.fabric_type_blacklist", cbk.list { "a" })
  for name in ("retrace_every_iteration lazy_initialization log_initialization drop_data compile_crd_memory_gi execute_crd_memory_gi "
    .. "wrk_memory_gi act_memory_gi cmd_memory_gi wgt_memory_gi chf_memory_gi"):gmatch "%S+" do
    callback("runconfig." .. name, "GlobalFlags", "csx.debug." .. name)
  end
  callback("train_input.micro_batch_size", "ScopedTrainFlags", "csx.performance.micro_batch_size")
  callback("eval_input.micro_batch_size", "ScopedValidateFlags", "csx.performance.micro_batch_size", cbk.dict { explore = { min = 2 } })
  callback("runconfig.debug_args_path", "DebugArgsPath", "debug_args_path", "a.path")
  callback("model.lora_params", "Lora", "lora_params", cbk.dict { r = 4 })
  callback("runconfig.log_input_summaries", "LogInputSummaries", nil, true)
  callback("runconfig.check_loss_values", "CheckLoss", nil, false)
  callback("runconfig.load_checkpoint_states", "LoadCheckpointStates", "load_checkpoint_states", "model")
  callback("runconfig.max_checkpoints", "KeepNCheckpoints", "n")
  callback("model.compression", "WeightCompression", "compressions", cbk.list { cbk.dict { format = "x" } })
  callback("model.selective_grad", "SelectiveGrad", "selective_grads", cbk.dict { selection = "y" })
  callback("runconfig.op_profiler_config", "OpProfiler", nil, cbk.dict { start_step = 3 })
  callback("runconfig.dump_activations", "DumpActivations", nil, true)
  callback("runconfig.hf_cache_dir", "HFCacheDir", "cache_dir", "/cache")
  local function logger(source, name, field, value) add(source, "loggers:" .. name .. "/" .. field, value) end
  for _, name in ipairs { "summary_dir", "legacy_event_dirs" } do logger("runconfig." .. name, "TensorBoardLogger", name, "dir") end
  for name in ("project group run_id run_name job_type tags resume entity"):gmatch "%S+" do
    logger("wandb." .. name, "WandbLogger", name, name)
  end
  add("runconfig.checkpoint_path", "trainer.fit.ckpt_path", "a.mdl")
  add("runconfig.checkpoint_path", "trainer.validate.ckpt_path", "a.mdl")
  add("runconfig.checkpoint_path", "trainer.validate_all.ckpt_paths", "a.mdl")
  return rows
end

---The value at a place of the table above; a callback's whole options when no field is named.
local function at_place(config, place)
  local list, name, field = place:match "^(%w+):(%w+)/(.*)$"
  if not list then return cbk.find(config, place) end
  for _, entry in cbk.items(config.trainer.init[list] or cbk.list()) do
    if entry[name] ~= nil then return field == "" and entry[name] or entry[name][field] end
  end
end

local function legacy(rows)
  local config = cbk.dict { model = cbk.dict { hidden_size = 4 } }
  for _, row in ipairs(rows) do
    local section, field = row.source:match "^([%w_]+)%.(.*)$"
    if config[section] == nil then config[section] = cbk.dict() end
    config[section][field] = row.value
  end
  return config
end

describe("Converters: the trainer layout", function()
  local warnings_of = conversion.warnings

  it("takes the log level of the service as a text too", function()
    local out
    assert(#warnings_of(function()
      out = trainer.from_legacy(legacy { { source = "runconfig.wsc_log_level", value = "INFO" } })
    end) == 0)
    same(out.trainer.init.logging.wsc_log_level, "INFO")
  end)

  it("takes the states to load, and tags, as lists in an upgrade only, as the original converter drops these", function()
    local states, tags = cbk.list { "model", "dataloader" }, cbk.list { "a", "b" }
    local rows = { { source = "runconfig.load_checkpoint_states", value = states }, { source = "wandb.tags", value = tags } }
    local out
    assert(#warnings_of(function() out = trainer.from_legacy(legacy(rows), {}, true) end) == 0)
    same(out.trainer.init.callbacks[1].LoadCheckpointStates.load_checkpoint_states, states)
    same(out.trainer.init.loggers[1].WandbLogger.tags, tags)
    local said = warnings_of(function() out = trainer.from_legacy(legacy(rows)) end)[1]
    assert(said:find("runconfig.load_checkpoint_states (a list, which `cbk upgrade` keeps), wandb.tags (a list", 1, true), said)
    same(cbk.keys(out.trainer.init), cbk.list { "model" })
  end)

  it("has a place for every field, and leaves none behind", function()
    local rows = trainer_fields()
    local config = legacy(rows)
    config.optimizer.optimizer_type, config.optimizer.learning_rate, config.runconfig.mode = "AdamW", 0.1, "train"
    config.train_input.batch_size, config.eval_input.batch_size = 8, 9
    local out
    assert(#warnings_of(function() out = trainer.from_legacy(cbk.deep_copy(config)) end) == 0)
    for _, row in ipairs(rows) do
      local got, want = at_place(out, row.place), row.value
      if row.place:find "/$" and type(want) == "boolean" then want = want and cbk.dict() or cbk.null end
      if not cbk.equal(got, want) then error(("%s: %s is %s"):format(row.source, row.place, tostring(got)), 0) end
    end
    same(out.trainer.init.model, cbk.dict { hidden_size = 4 }, "model")
    same(out.trainer.init.optimizer, cbk.dict { AdamW = cbk.dict { learning_rate = 0.1 } }, "optimizer")
    same(at_place(out, "callbacks:ComputeNorm/"), cbk.null)
    same(out.trainer.fit.train_dataloader, cbk.dict { batch_size = 8 }, "train")
    same(out.trainer.validate_all.val_dataloaders, cbk.dict { batch_size = 9 }, "eval")
    assert(trainer.is(out))
  end)

  it("takes each field alone, and none that is null or empty", function()
    for _, row in ipairs(trainer_fields()) do
      local section, field = row.source:match "^([%w_]+)%.(.*)$"
      local needs = { optimizer = "optimizer_type" }
      local function converted(value)
        local config = legacy { { source = row.source, value = value } }
        if needs[section] then config[section][needs[section]] = "SGD" end
        if row.place:find "^trainer%.fit" then config.train_input = cbk.dict { batch_size = 1 } end
        if row.place:find "^trainer%.validate%." then config.eval_input = cbk.dict { batch_size = 1 } end
        return trainer.from_legacy(config)
      end
      local got = at_place(converted(row.value), row.place)
      assert(got ~= nil, row.place)
      for _, empty in ipairs { cbk.null, cbk.list(), cbk.dict { a = cbk.null } } do
        local out
        warnings_of(function() out = converted(empty) end)
        assert(at_place(out, row.place) == nil, row.source .. " should be dropped when it is empty")
        local rest = cbk.config.dump(out, "json")
        assert(section == "train_input" or section == "eval_input" or not rest:find('"' .. field .. '"', 1, true), rest)
      end
    end
  end)

  it("a list where one value belongs has no place, and the other way round", function()
    local said = warnings_of(function()
      local out = trainer.from_legacy(legacy {
        { source = "runconfig.checkpoint_steps", value = cbk.list { 1 } }, { source = "runconfig.mount_dirs", value = "/a" },
        { source = "runconfig.stranger", value = 1 }, { source = "wandb.other", value = 1 },
      })
      same(out, cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.dict { hidden_size = 4 } } } })
    end)
    for _, name in ipairs { "checkpoint_steps", "mount_dirs", "stranger", "wandb.other" } do
      assert(#said == 1 and said[1]:find(name, 1, true), tostring(said[1]))
    end
  end)

  it("is reported if a step leads to a release before it", function()
    local function reported(model, tgt, config)
      local job = conversion.job(model, "cs-2.9", tgt)
      return table.concat(warnings_of(function() require("cbk.converters").convert.config(job, config) end), "\n")
    end
    local new = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.dict { hidden_size = 4 } } } }
    for _, model in ipairs { "gpt2", "llama", "bert" } do
      local _, count = reported(model, "cs-2.1", new):gsub("keeps its 'trainer' layout, which release 2.2 does not read", "")
      same(count, 1, model)
    end
    assert(not reported("gpt2", "cs-2.3", new):find "layout")
    assert(not reported("gpt2", "cs-2.2", cbk.dict { model = cbk.dict { hidden_size = 4 } }):find "layout")
  end)

  it("every listener is a callback of its own", function()
    local listeners = cbk.list {
      cbk.dict { listener_type = "A", x = 1, y = cbk.null }, cbk.dict { listener_type = "B", z = cbk.list { 2 } },
    }
    local config = legacy { { source = "runconfig.experimental", value = cbk.dict { listeners = listeners } } }
    local want = cbk.list { cbk.dict { A = cbk.dict { x = 1 } }, cbk.dict { B = cbk.dict { z = cbk.list { 2 } } } }
    same(trainer.from_legacy(config).trainer.init.callbacks, want)
    listeners[1].listener_type = nil
    refuses("listener_type", trainer.from_legacy, config)
  end)

  it("learning rates become schedulers", function()
    local linear, cosine = cbk.dict { scheduler = "linear", total_iters = 3 }, cbk.dict { scheduler = "CosineDecayLR", total_iters = 5 }
    local one, two = cbk.dict { LinearLR = cbk.dict { total_iters = 3 } }, cbk.dict { CosineDecayLR = cbk.dict { total_iters = 5 } }
    local function chained(entry, how)
      local out = cbk.copy(entry)
      out.main_scheduler = how or "chained"
      return out
    end
    local function with_rate(rate)
      return legacy { { source = "optimizer.optimizer_type", value = "SGD" }, { source = "optimizer.learning_rate", value = rate } }
    end
    local function constant(number) return cbk.dict { ConstantLR = cbk.dict { learning_rate = cbk.float(number) } } end
    local function all(class, ...) return cbk.dict { [class] = cbk.dict { schedulers = cbk.list { ... } } } end
    for i, case in ipairs {
      { 0.25, constant(0.25), 0.25 }, { 1, constant(1), 1 }, { "1e-3", constant(1e-3), "1e-3" }, { linear, one },
      { cbk.list { linear }, one }, { cbk.list { linear, cosine }, all("SequentialLR", one, two) },
      { cbk.list { chained(linear), chained(cosine) }, all("ChainedScheduler", one, two) },
      { cbk.list { chained(linear, "ChainedLR") }, all("ChainedScheduler", one) },
      { cbk.list { chained(linear, "sequential"), cosine }, all("SequentialLR", one, two) },
    } do
      local config = with_rate(case[1])
      local init = trainer.from_legacy(cbk.deep_copy(config)).trainer.init
      same(init.schedulers, cbk.list { case[2] }, "case " .. i)
      same(init.optimizer.SGD, case[3] and cbk.dict { learning_rate = case[3] } or cbk.dict(), "optimizer of case " .. i)
      config.optimizer.adjust_learning_rate = cbk.dict { decoder_kernel = 0.5 }
      init = trainer.from_legacy(config).trainer.init
      same(init.schedulers, cbk.list { cbk.dict { ScalePerParamLR = cbk.dict { scheduler = case[2] } } }, "scaled case " .. i)
      same(init.optimizer.SGD.adjust_learning_rate.decoder_kernel, 0.5)
    end
    local function refused(text, rate)
      refuses(text, trainer.from_legacy, with_rate(rate))
    end
    refused("unknown scheduler 'nosuch'", cbk.dict { scheduler = "nosuch" })
    refused("expected one main_scheduler", cbk.list { chained(linear), chained(cosine, "sequential") })
    refused("not a number", "fast")
    for shown, bad in pairs { ["[]"] = cbk.list(), ["{}"] = cbk.dict() } do
      refused(("optimizer.learning_rate=%s: only a number, a map with a scheduler or a list of such maps"):format(shown), bad)
    end
    refused("optimizer.learning_rate.0 has no 'scheduler'; known: ConstantLR,", cbk.list { cbk.dict { foo = 1 } })
    refused("optimizer.learning_rate has no 'scheduler'; known: ConstantLR,", cbk.dict { foo = 1 })
    refused("optimizer.learning_rate.1=3: only a map with a scheduler", cbk.list { linear, 3 })
    refuses("optimizer_type", trainer.from_legacy, legacy { { source = "optimizer.learning_rate", value = 1 } })
  end)

  it("summaries of sparsity become a callback", function()
    local function group(level, summaries)
      local out = cbk.dict { sparsity = level }
      out.add_summaries = summaries
      return out
    end
    for i, case in ipairs {
      { 0.5, cbk.dict { sparsity = 0.5 }, "none" },
      { group(0.5, true), group(0.5), true },
      { group(0.5, false), group(0.5), false },
      { cbk.list { group(0.5), group(1, true) }, cbk.list { group(0.5), group(1) }, true },
      { cbk.list { group(0.5, false) }, cbk.list { group(0.5) }, "none" },
      { cbk.dict { groups = cbk.list { group(1, true) } }, cbk.dict { groups = cbk.list { group(1) } }, true },
    } do
      local config = cbk.dict { model = cbk.dict { hidden_size = 4 } }
      config.sparsity = case[1]
      local out = trainer.from_legacy(config)
      same(out.trainer.init.sparsity, case[2], "sparsity of case " .. i)
      local said = at_place(out, "callbacks:LogSparsity/")
      if case[3] == "none" then assert(said == nil, "callback of case " .. i) else
        same(said, case[3] and cbk.dict() or cbk.null, "callback of case " .. i)
      end
    end
  end)

  it("sections are maps; null ones are as if they were not there", function()
    local function with(name, value)
      local config = legacy { { source = "optimizer.optimizer_type", value = "SGD" }, { source = "train_input.batch_size", value = 8 } }
      config[name] = value
      return config
    end
    local maps = { "runconfig", "optimizer", "train_input", "eval_input", "wandb" }
    for _, name in ipairs(maps) do
      for shown, bad in pairs { ["'x'"] = "x", ["3"] = 3, ["true"] = true, ["[3]"] = cbk.list { 3 }, ["[]"] = cbk.list() } do
        local message = ("%s=%s: only a map of fields"):format(name, shown)
        refuses(message, trainer.from_legacy, with(name, bad))
        for _, hop in ipairs { { "cs-2.2", "cs-2.3" }, { "cs-2.1", "cs-2.3" } } do
          refuses(message, require("cbk.converters").convert.config, conversion.job("gpt2", unpack(hop)), with(name, bad))
        end
      end
      local without = with(name, nil)
      same(trainer.from_legacy(with(name, cbk.null)), trainer.from_legacy(without), name)
    end
    for shown, bad in pairs { ["'x'"] = "x", ["true"] = true } do
      refuses(("sparsity=%s: only a number, a map of fields or a list"):format(shown), trainer.from_legacy, with("sparsity", bad))
    end
    refuses("sparsity.1=3: only a map of fields", trainer.from_legacy, with("sparsity", cbk.list { cbk.dict { sparsity = 0.5 }, 3 }))
    refuses("optimizer.optimizer_type=[1]: only the name of an optimizer", trainer.from_legacy,
      with("optimizer", cbk.dict { optimizer_type = cbk.list { 1 } }))
    local convert = require("cbk.converters").convert
    local config = with("trainer", cbk.null)
    assert(convert.config(conversion.job("gpt2", "cs-2.2", "cs-2.3"), config).trainer ~= cbk.null)
  end)

  it("sparsity of 2.2 is what its fields must be", function()
    local function upgraded(section)
      local config = cbk.dict { model = cbk.dict { hidden_size = 4 }, sparsity = cbk.dict(section) }
      return require("cbk.converters").convert.config(conversion.job("gpt2", "cs-2.1", "cs-2.2"), config)
    end
    for message, section in pairs {
      ["sparsity.sparsity_schedule=3: only a list of [step, level]"] = { sparsity_schedule = 3 },
      ["sparsity.sparsity_schedule.0=3: only [step, level]"] = { sparsity_schedule = cbk.list { 3 } },
      ["sparsity.param_name_patterns=3: only a pattern, a list or a map"] = { sparsity = 0.5, param_name_patterns = 3 },
      ["sparsity.param_name_patterns=4: only a pattern"] = { sparsity = 0.5, param_name_patterns = cbk.list { 4 } },
      ["sparsity.param_name_patterns.a=4: only a map of fields"] = { sparsity = 0.5, param_name_patterns = cbk.dict { a = 4 } },
    } do
      refuses(message, upgraded, section)
    end
    upgraded { sparsity_schedule = cbk.list { cbk.list { 0, 0.5 } } }
  end)

  it("fields of another kind than their place has are reported, in any place", function()
    local said = table.concat(warnings_of(function()
      trainer.from_legacy(legacy {
        { source = "optimizer.optimizer_type", value = "SGD" }, { source = "optimizer.grad_accum_steps", value = cbk.list { 1 } },
        { source = "model.fp16_type", value = cbk.dict { a = 1 } }, { source = "model.lora_params", value = 3 },
      })
    end), "\n")
    for _, name in ipairs { "optimizer.grad_accum_steps", "model.fp16_type", "model.lora_params" } do
      local _, count = said:gsub(name:gsub("%p", "%%%0"), "")
      same(count, 1, said)
    end
  end)

  it("runs need their data", function()
    local path = { source = "runconfig.checkpoint_path", value = "a.mdl" }
    local train, eval = { source = "train_input.batch_size", value = 8 }, { source = "eval_input.batch_size", value = 9 }
    local function runs(...)
      local names = {}
      for name in cbk.items(trainer.from_legacy(legacy { ... }).trainer) do names[#names + 1] = name end
      return table.concat(names, " ")
    end
    same(runs(), "init")
    same(runs(path), "init validate_all")
    same(runs(train), "init fit")
    same(runs(eval), "init validate validate_all")
    same(runs(train, eval, path), "init fit validate validate_all")
  end)
end)

describe("Converters: data loader states", function()
  local function folder_of(files)
    local folder = harness.temp_dir()
    for name, text in pairs(files) do cbk.fs.write(cbk.fs.join(folder, name), text) end
    return folder
  end
  local function config_of(processor, folder)
    return cbk.dict { cerebras = cbk.dict { save_iter_state_path = folder }, train_input = cbk.dict { data_processor = processor } }
  end
  local files = {
    data_iter_checkpoint_state_file_global = " 1_0 \nmore\n", ["data_iter_state_file_worker_10_step_10.txt"] = "7\nx\n",
    ["data_iter_state_file_worker_2_step_10.txt"] = "+5", ["data_iter_state_file_worker_2_step_9.txt"] = "nothing", ["notes.md"] = "x",
  }

  it("are read for both processors", function()
    local folder = folder_of(files)
    local root = cbk.dict()
    zoo_checkpoint.add_data_state(config_of("GptHDF5MapDataProcessor", folder), root)
    same(root, cbk.dict { dataloader = cbk.dict { samples_streamed = 12, seed = 0 } })
    root = cbk.dict()
    zoo_checkpoint.add_data_state(config_of("GptHDF5DataProcessor", folder), root)
    same(root.dataloader.all_worker_states, cbk.list {
      cbk.dict { samples_streamed = 5, shard_index = 2 }, cbk.dict { samples_streamed = 7, shard_index = 10 },
    })
  end)

  it("stay in their files until 2.0, which has them in the checkpoint", function()
    local section = cbk.dict { save_iter_state_path = folder_of(files), other = 1 }
    for steps, is_taken in pairs { ["1.8 1.9"] = false, ["1.9 1.8"] = false, ["2.0 1.9"] = false, ["2.1 1.8"] = false,
      ["1.8 2.0"] = true, ["1.9 2.0"] = true, ["2.0 2.1"] = true } do
      local from, to = steps:match "(%S+) (%S+)"
      local config = cbk.dict { model = cbk.dict { hidden_size = 8 }, cerebras = section,
        train_input = cbk.dict { data_processor = "GptHDF5MapDataProcessor" } }
      local root = cbk.dict { model = cbk.dict { x = cbk.tensor { 1 } }, global_step = 10 }
      local new_config, new
      conversion.warnings(function() new_config, new = conversion.run("gpt2", "cs-" .. from, "cs-" .. to, config, root) end)
      conversion.same(new_config.cerebras, not is_taken and section or nil, steps)
      conversion.same(new.dataloader, is_taken and cbk.dict { samples_streamed = 12, seed = 0 } or nil, steps)
    end
  end)

  it("are reported if their section is not a map", function()
    local reported = conversion.warnings(function()
      local config = cbk.dict { model = cbk.dict { hidden_size = 8 }, cerebras = "x" }
      local new_config = conversion.run("gpt2", "cs-1.9", "cs-2.0", config, cbk.dict { model = cbk.dict { x = cbk.tensor { 1 } } })
      conversion.same(new_config.cerebras, nil)
    end)
    assert(table.concat(reported, "\n"):find("that release 2.0 no longer has are left out: cerebras", 1, true), reported[1])
  end)

  it("are left alone where there is nothing to read", function()
    local root = cbk.dict()
    zoo_checkpoint.add_data_state(cbk.dict(), root)
    zoo_checkpoint.add_data_state(cbk.dict { cerebras = cbk.dict { save_iter_state_path = cbk.null } }, root)
    assert(#root == 0)
    root.dataloader = 1
    zoo_checkpoint.add_data_state(config_of("GptHDF5DataProcessor", "/no/such/folder"), root)
    same(root.dataloader, 1)
  end)

  it("that cannot be read are named", function()
    local function refused(text, processor, more, less)
      local all = {}
      for name, content in pairs(files) do all[name] = content end
      for name, content in pairs(more or {}) do all[name] = content end
      if less then all[less] = nil end
      refuses(text, zoo_checkpoint.add_data_state, config_of(processor, folder_of(all)), cbk.dict())
    end
    refused("data_processor=Other", "Other")
    local silent = config_of("Other", folder_of(files))
    for _, input in ipairs { cbk.null, cbk.dict(), cbk.dict { data_processor = cbk.null } } do
      silent.train_input = input
      refuses("expected train_input.data_processor to be", zoo_checkpoint.add_data_state, silent, cbk.dict())
    end
    refused("state_file_global", "GptHDF5DataProcessor", nil, "data_iter_checkpoint_state_file_global")
    refused("not a whole number", "GptHDF5DataProcessor", { data_iter_checkpoint_state_file_global = "ten" })
    refused("not a whole number", "GptHDF5DataProcessor", { ["data_iter_state_file_worker_3_step_10.txt"] = "1.5" })
    refused("stray.txt", "GptHDF5DataProcessor", { ["stray.txt"] = "1" })
  end)
end)
