-- The fields of a trainer's sections: what each may be, and of those that are not emulated, what they would do on a cluster.
-- Source: trainer/callbacks/*.py and trainer/trainer.py of the Model Zoo 2.9.

local field_kinds = require "cbk.training.field_kinds"
local keywords = require "cstorch.keywords"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"

local fields = {}

local kind, ignored, only = field_kinds.kind, field_kinds.ignored, field_kinds.only
local count, steps, whole, flag = field_kinds.count, field_kinds.steps, field_kinds.whole, field_kinds.flag
local text, texts = field_kinds.text, field_kinds.texts
local function section(of) return { section = of } end

local positive = kind("a number above 0", function(value) return type(value) == "number" and value > 0 and value < math.huge end)

local LARGEST = (2 - 2 ^ -23) * 2 ^ 127 -- of float32, in which losses are scaled
local loss_scale = kind(("a number above 0, at most %g"):format(LARGEST),
  function(value) return type(value) == "number" and value > 0 and value <= LARGEST end)

---The states in a checkpoint of a run.
fields.STATES = { model = true, optimizer = true, schedulers = true, grad_scaler = true, dataloader = true, global_step = true }

---The states that a list, or a text with commas, names; nil if it names another one.
---@return table<string, true>|nil
local function states_in(value)
  if type(value) == "string" and value:lower() == "all" then return fields.STATES end
  local out = {}
  for _, one in ipairs(field_kinds.is_texts(value) and keywords.plain(value) or { value }) do
    if type(one) ~= "string" then return nil end
    for name in one:gmatch "[^,%s]+" do
      if not fields.STATES[name] then return nil end
      out[name] = true
    end
  end
  return next(out) and out
end

local states = kind('"all", or some of ' .. table.concat(naming.sorted(fields.STATES), ", "),
  function(value) return states_in(value) ~= nil end)
states.kind.read = states_in

local checkpoint_name = kind("a file name without folders that has {step} once, such as checkpoint_{step}.mdl", function(value)
  return type(value) == "string" and not value:find "/" and select(2, value:gsub("{step}", "")) == 1
end)
local frequency = kind("a whole number of steps from 0, or a fraction of all steps such as 0.5 or 1.0",
  function(value, written) return type(value) == "number" and value >= 0 and (written == "int" or value <= 1) end)
frequency.null = { steps = 0 }
frequency.kind.read = function(value, written) return written == "int" and { steps = value } or { share = value } end
local scale = kind(('a number from 0, at most %g, or "dynamic"'):format(LARGEST),
  function(value) return value == "dynamic" or type(value) == "number" and value >= 0 and value <= LARGEST end)
local map = kind("a map of fields", function(value) return kinds.is_dict(value) end)
local settings = kind("a map of fields, or a list of them", function(value) return kinds.is_dict(value) or kinds.is_list(value) end)
local list = kind("a list", function(value) return kinds.is_list(value) end)
local device = kind('"CSX", "CPU" or "GPU"',
  function(value) return type(value) == "string" and (" csx cpu gpu "):find(" " .. value:lower() .. " ", 1, true) ~= nil end)

local CLUSTER = "belongs to a cluster, and nothing here runs on one"
local LOADING = "sets how workers read ahead; here each batch is read when it is due"
local MEMORY = "sets the memory of a cluster's servers"

local backend = section {
  backend_type = device, compile_only = flag, validate_only = flag, compile_dir = ignored "keeps compiled programs", artifact_dir = ignored(
    "keeps a cluster's logs"), enable_distributed = ignored(CLUSTER), main_process_id = ignored(CLUSTER), dist_backend = ignored(CLUSTER),
  init_method = ignored(CLUSTER), sync_batchnorm = ignored(CLUSTER), mixed_precision = ignored "computes in half precision",
  cluster_config = section {
    num_csx = count, num_workers_per_csx = count, max_wgt_servers = ignored(CLUSTER), max_act_per_csx = ignored(CLUSTER),
    mgmt_address = ignored(CLUSTER), mgmt_namespace = ignored(CLUSTER), credentials_path = ignored(CLUSTER), mount_dirs = ignored(CLUSTER),
    python_paths = ignored(CLUSTER), cbcore_image = ignored(CLUSTER), job_labels = ignored(CLUSTER), job_priority = ignored(CLUSTER),
    job_time_sec = ignored(CLUSTER), disable_version_check = ignored(CLUSTER), workflow_id = ignored(CLUSTER),
  },
}

local precision = section {
  enabled = ignored "computes in half precision; here everything is float32",
  fp16_type = kind('"float16", "bfloat16" or "cbfloat16"',
    function(value) return value == "float16" or value == "bfloat16" or value == "cbfloat16" end),
  precision_opt_level = ignored "trades precision for speed",
  loss_scaling_factor = scale, initial_loss_scale = loss_scale, steps_per_increase = count, min_loss_scale = loss_scale,
  max_loss_scale = loss_scale, max_gradient_norm = positive, max_gradient_value = positive, log_loss_scale = flag,
}

local loop = section {
  num_steps = steps, max_steps = steps, num_epochs = steps, steps_per_epoch = steps, eval_frequency = frequency, eval_steps = count,
  grad_accum_steps = count,
}

local checkpoint = section {
  steps = whole, autoload_last_checkpoint = flag, save_initial_checkpoint = flag, checkpoint_name = checkpoint_name,
  disable_strict_checkpoint_loading = flag, checkpoint_root = ignored "saves checkpoints in another folder than model_dir",
  strict_version = ignored "refuses checkpoints of other releases",
}

local logging = section {
  log_steps = count, log_level = ignored "sets which messages a cluster logs", wsc_log_level = ignored(CLUSTER),
  enable_act_frequency = ignored "leaves out activations between log steps",
}

---Callbacks and loggers that are emulated, by their names. Others are named as having no effect.
fields.CALLBACKS = {
  KeepNCheckpoints = section { n = count }, CheckLoss = section {}, LoadCheckpointStates = section { load_checkpoint_states = states },
  Lora = section { lora_params = settings }, ComputeNorm = section {},
}
fields.LOGGERS = {
  ProgressLogger = section {},
  TensorBoardLogger = section {
    summary_dir = ignored "writes event files to another folder than model_dir", legacy_event_dirs = ignored "names event files as before",
  },
}
fields.IGNORED_LOGGERS = { WandbLogger = ignored "sends numbers to Weights & Biases" }

local GlobalFlags = ignored(MEMORY)
fields.IGNORED_CALLBACKS = {
  GlobalFlags = GlobalFlags, ScopedTrainFlags = GlobalFlags, ScopedValidateFlags = GlobalFlags,
  ComputeNormGNS = ignored "logs the norms of gradients of each sample; ComputeNorm logs those of the batch",
  LogInputSummaries = ignored "logs batches",
  LogOptimizerParamGroup = ignored "logs fields of the optimizer", LogSparsity = ignored "logs sparsity",
  WeightCompression = ignored "compresses weights on their way", SelectiveGrad = ignored "leaves out gradients of parts of tensors",
  DumpActivations = ignored "writes activations", OpProfiler = ignored "measures a cluster's operators", DebugArgsPath = ignored(CLUSTER),
  HFCacheDir = ignored "keeps downloads", RateProfiler = ignored "measures samples a second, as the progress line does",
  SavePerformanceData = ignored "writes how fast a run was",
}

local init = section {
  model = map, optimizer = map, schedulers = list, device = device, model_dir = text, seed = whole, backend = backend,
  precision = precision, loop = loop, checkpoint = checkpoint, logging = logging, callbacks = list, loggers = list,
  sparsity = ignored "trains with masks; here all weights are dense", autorestart = ignored "starts a failed run again",
}

local LOADER = {
  data_processor = text, batch_size = count, shuffle = flag, shuffle_seed = whole, drop_last = flag,
  vocab_size = ignored "repeats the model's vocabulary",
  micro_batch_size = ignored "cuts a batch into parts that fit into a system's memory",
  num_workers = ignored(LOADING), prefetch_factor = ignored(LOADING), persistent_workers = ignored(LOADING),
}

---The fields of a processor, with those of all loaders.
---@param own table<string, TrainingField>
---@return table<string, TrainingField>
function fields.of_loader(own)
  for name, field in pairs(LOADER) do own[name] = own[name] or field end
  return own
end

---Of the Model Zoo's processors of token files.
fields.DATA = fields.of_loader {
  data_dir = texts, max_sequence_length = count, use_vsl = only(false), sort_files = only(true), pad_last = only(false),
  use_worker_cache = ignored(LOADING), repeat_on_eof = ignored "repeats the data; here an epoch follows the other",
}

local loaders = kind("a map of fields, or a list of them", function(value)
  for i = 1, kinds.is_list(value) and #value or 0 do
    if not kinds.is_dict(value[i]) then return false end
  end
  return kinds.is_dict(value) or kinds.is_list(value)
end)
---@class DataSection
---@field section Dict
---@field at string      its place below the field: "", or ".0" in a list
---@field name? string   by which its numbers are recorded, if there are several: that of the Model Zoo

---@return DataSection[]
loaders.kind.read = function(value)
  if not kinds.is_list(value) then return { { section = value, at = "" } } end
  local out = {}
  for i = 1, #value do
    out[i] = { section = value[i], at = (".%d"):format(i - 1), name = #value > 1 and ("validate_%d"):format(i - 1) or nil }
  end
  return out
end

---The whole file below `trainer`.
---@type table<string, TrainingField>
fields.TRAINER = {
  init = init, fit = section { train_dataloader = map, val_dataloader = loaders, ckpt_path = text },
  validate = section { val_dataloader = loaders, ckpt_path = text },
  validate_all = section { val_dataloaders = loaders, ckpt_paths = texts },
}

return fields
