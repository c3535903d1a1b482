-- `cstorch.configure{…}`: the configuration of the process, made once, before the model.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"
local systems = require "cstorch.run.systems"

local check, show = errors.check, errors.show

local DEFAULTS = {
  model_dir = "./", compile_dir = "/opt/cerebras/cached_compile", compile_only = false, validate_only = false, checkpoint_steps = 0,
  num_csx = keywords.OPTIONAL, max_wgt_servers = 24, mount_dirs = keywords.OPTIONAL, python_paths = keywords.OPTIONAL,
  transfer_processes = 5,
  num_workers_per_csx = 1, job_labels = keywords.OPTIONAL, max_act_per_csx = 1, mgmt_address = keywords.OPTIONAL,
  check_loss_values = true, -- a loss that is NaN or infinite stops the run
}
--- The least and the greatest value: each worker takes memory.
local RANGES = {
  checkpoint_steps = { 0, 2 ^ 53 }, num_csx = { 1, 2048 }, max_wgt_servers = { 1, 65536 }, transfer_processes = { 1, 65536 },
  num_workers_per_csx = { 1, 1024 }, max_act_per_csx = { 1, 1024 },
}
local TEXTS = { "model_dir", "compile_dir", "mgmt_address" }
local LISTS = { "mount_dirs", "python_paths", "job_labels" }
local FLAGS = { "compile_only", "validate_only", "check_loss_values" }

local function check_values(options)
  for name, range in pairs(RANGES) do
    local value, least, most = options[name], unpack(range)
    local is_count = type(value) == "number" and value == math.floor(value) and value >= least and value <= most
    check(is_count, "value", "configure: %s must be a whole number from %d to %d, not %s", name, least, most, show(value))
  end
  for _, name in ipairs(FLAGS) do
    check(type(options[name]) == "boolean", "type", "configure: %s must be true or false, not %s", name, show(options[name]))
  end
  for _, name in ipairs(TEXTS) do
    check(options[name] == nil or type(options[name]) == "string", "type", "configure: %s must be a string, not %s", name,
      show(options[name]))
  end
  for _, name in ipairs(LISTS) do
    check(options[name] == nil or type(options[name]) == "table", "type", "configure: %s must be a list of strings, not %s", name,
      show(options[name]))
    for _, item in ipairs(options[name] or {}) do
      check(type(item) == "string", "type", "configure: %s must be a list of strings, but %s is in it", name, show(item))
    end
  end
  for _, label in ipairs(options.job_labels or {}) do
    local is_pair = label:find "^[^=]+=" ~= nil
    check(is_pair, "value", "configure: the job label %s must have the form 'key=value'", show(label))
  end
end

---Sets the configuration of the process, once, before a model is compiled: checkpoint_steps = 0 (none), compile_only and
---validate_only = false (one step, without closures), check_loss_values = true (a loss that is NaN or infinite stops the run),
---num_csx (as many as there are ranks, else 1), num_workers_per_csx = 1. Options for clusters only are checked and kept:
---model_dir = "./", compile_dir, mgmt_address,
---job_labels, mount_dirs, python_paths, max_wgt_servers = 24, max_act_per_csx = 1, transfer_processes = 5.
---@param options table   as above
return function(options)
  check(not session.configuration, "runtime", "configure was called before: there is one configuration for each process")
  check(not session.model, "runtime", "configure must be called before the first model is compiled")
  options = keywords.complete("configure", DEFAULTS, options)
  if options.num_csx == nil then options.num_csx = systems.count() end
  check_values(options)
  systems.count(options.num_csx)
  session.configuration = options
end
