-- Every public function has a summary of one line and an example that runs.

local cbk = require "cbk"
local examples = require "cbk.help_examples"
local harness = require "harness"
local help = require "cbk.help"
local training = require "cstorch.help"
local training_examples = require "cstorch.help_examples"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

--- What the examples speak of, in a folder of their own. Each of them is run on its own.
local SCRIPT = [[
local cbk = require "cbk"
local function fresh()
  cbk.config.save(cbk.dict { name = "tiny", model = cbk.dict { hidden_size = 8 } }, "params.yaml", { overwrite = true })
  local root = cbk.dict { { "head.weight", cbk.randn({ 4, 6 }, { std = 1, mean = 0, seed = 1 }) },
    { "layers.0.weight", cbk.full({ 4, 6 }, 1) }, { "one", cbk.tensor { 1 } } }
  for _, name in ipairs { "model.safetensors", "model.pt" } do cbk.create(name, { root = root, overwrite = true }):commit() end
  cbk.create("model.mdl", { root = root, overwrite = true, h5_version = "0.4" }):commit()
  cbk.fs.mkdir "iter_state"
  cbk.fs.write("iter_state/data_iter_checkpoint_state_file_global", "100\n", { overwrite = true })
  cbk.fs.write("iter_state/data_iter_state_file_worker_0_step_100.txt", "1600\n", { overwrite = true })
  local ckpt = cbk.open "model.safetensors"
  local env = { cbk = cbk, ckpt = ckpt, t = ckpt["head.weight"], edit = cbk.h5.edit "model.mdl", cfg = cbk.config.load "params.yaml",
    args = { quiet = true }, parser = cbk.cli.parser("mine", "Counts."), out = cbk.create("out.pt", { overwrite = true }),
    loader = cbk.dataloader_state.to_dict(cbk.dataloader_state.aggregate("map",
      { { samples_streamed = 8, previous_samples_streamed = 0 } })) }
  env.cfg.lr = 1e-3
  env.out["head"] = env.t
  env.files = cbk.dataloader_state.read_files "iter_state"
  env.print = function() end
  return setmetatable(env, { __index = _G })
end
local failed = {}
for name, example in pairs(require "cbk.help_examples") do
  local env = fresh()
  local unfinished = { env.out, env.edit }
  local code, why = load("return " .. example, name, "t", env)
  if not code then code, why = load(example, name, "t", env) end
  local ok, problem = pcall(code or function() error(why) end)
  if not ok then failed[#failed + 1] = ("%s: %s: %s"):format(name, example, tostring(problem)) end
  for _, one in pairs { unfinished[1], unfinished[2], env.out, env.edit } do pcall(one.close, one) end
end
for _, line in ipairs(failed) do io.stderr:write("FAILED " .. line .. "\n") end
os.exit(#failed > 0 and 1 or 0)
]]

--- The same for cstorch.
local TRAINING = [[
local cbk, cstorch = require "cbk", require "cstorch"
local examples = require "cstorch.help_examples"
local SUFFIX = { lr_scheduler = "LR", weight_decay_scheduler = "WD" }

--- Two schedules for those that are made of others.
local function schedules(env, module)
  local suffix = SUFFIX[module]
  local options = suffix == "LR" and { initial_learning_rate = 0.1, end_learning_rate = 1, total_iters = 10 }
    or { initial_val = 0.1, end_val = 1, total_iters = 10 }
  local Linear = cstorch.optim[module]["Linear" .. suffix]
  env.first, env.second = Linear(env.opt, options), Linear(env.opt, options)
end

local function fresh()
  local env = { cbk = cbk, cstorch = cstorch, print = function() end }
  env.model = cstorch.nn.Sequential(cstorch.nn.Linear(4, 4))
  env.opt = cstorch.optim.SGD(env.model:parameters(), { lr = 0.1 })
  env.x, env.labels = cstorch.randn { 2, 4 }, cstorch.tensor({ 0, 1 }, { dtype = "int64" })
  env.batches = function() return { cstorch.randn { 2, 4 } } end
  env.loader = cstorch.utils.data.DataLoader(env.batches, { num_steps = 10, batch_size = 2 })
  cstorch.save({ model = env.model:state_dict() }, "start.mdl")
  return setmetatable(env, { __index = _G })
end

local names, failed = { "cstorch.configure", "cstorch.backend" }, {} -- which come before all else
for name in pairs(examples) do names[#names + 1] = name end
table.sort(names, function(a, b)
  local function rank(name) return name == "cstorch.configure" and 1 or name == "cstorch.backend" and 2 or 3 end
  if rank(a) ~= rank(b) then return rank(a) < rank(b) end
  return a < b
end)
for i, name in ipairs(names) do
  if name ~= names[i - 1] then
    local example = examples[name]
    local env = i > 4 and fresh() or setmetatable({ cstorch = cstorch }, { __index = _G })
    local module = name:match "^cstorch%.optim%.([%w_]+)%."
    if example:find "first" and SUFFIX[module] then schedules(env, module) end
    local code, why = load("return " .. example, name, "t", env)
    if not code then code, why = load(example, name, "t", env) end
    local ok, problem = pcall(code or function() error(why) end)
    if not ok then failed[#failed + 1] = ("%s: %s: %s"):format(name, example, tostring(problem)) end
  end
end
for _, line in ipairs(failed) do io.stderr:write("FAILED " .. line .. "\n") end
os.exit(#failed > 0 and 1 or 0)
]]

describe("help on every public function", function()
  it("has a summary of one line", function()
    for _, name in ipairs(help.functions()) do
      local text = help.summary(name)
      is_true(text ~= "", name .. " has no summary in its annotation")
      is_true(#text <= 160, ("the summary of %s is too long for a line: %s"):format(name, text))
    end
  end)

  it("has an example, in scripts/lib/cbk/help_examples.lua", function()
    local known = {}
    for _, name in ipairs(help.names()) do known[name] = true end
    local missing = {}
    for _, name in ipairs(help.functions()) do
      if examples[name] then
        is_true(help.text(name):find("\nexample:\n  " .. examples[name], 1, true), name)
      else
        missing[#missing + 1] = name
      end
    end
    equal(table.concat(missing, ", "), "", "without an example in scripts/lib/cbk/help_examples.lua")
    for name in pairs(examples) do is_true(known[name], name .. " has an example, but no help") end
  end)

  for what, script in pairs { cbk = SCRIPT, cstorch = TRAINING } do it("has examples of " .. what .. " that run", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/examples.lua", script)
    local code, _, err = harness.cbk(dir, "run", "examples.lua")
    local failures = {}
    for line in err:gmatch "[^\n]+" do
      if line:find "^FAILED" or line:find "^cbk: examples" then failures[#failures + 1] = line end
    end
    equal(table.concat(failures, "\n"), "")
    equal(code, 0)
  end) end

  it("has a summary and an example in cstorch, too", function()
    local missing, known = {}, {}
    for _, name in ipairs(training.names()) do
      known[name] = true
      if training.summary(name) == "" or not training_examples[name] then missing[#missing + 1] = name end
    end
    equal(table.concat(missing, ", "), "", "without a summary, or an example in scripts/lib/cstorch/help_examples.lua")
    for name, example in pairs(training_examples) do
      is_true(known[name], name .. " has an example, but no help")
      is_true(help.text(name):find("\nexample:\n  " .. example, 1, true), name)
    end
  end)
end)
