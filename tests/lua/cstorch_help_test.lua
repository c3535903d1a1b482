-- Help about names of cstorch, as `:help` shows it.

local cbk = require "cbk"
local harness = require "harness"
local help = require "cbk.help"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

describe("cstorch: help", function()
  for name, words in pairs {
    ["cstorch.optim.AdamW"] = { "β1·m + (1 - β1)·g", "Source: Loshchilov", "betas = { 0.9, 0.999 }", "lr = 0.001", ":step" },
    ["cstorch.optim.lr_scheduler.LinearLR"] = { "(initial - end)·(1 - t/N) + end", "end_learning_rate = required" },
    ["cstorch.optim.weight_decay_scheduler.ChainedWD"] = { "fk(t)/initial_k", "schedulers = required" },
    ["cstorch.metrics.MeanIOUMetric"] = { "M_cc/(row + column - M_cc)", "num_classes = required" },
    ["cstorch.optim.Optimizer:zero_grad"] = { "zero_grad(options)", "Removes the gradients" },
    ["cstorch.nn.utils.clip_grad_norm_"] = { "clip_grad_norm_(params, max_norm, ...)", "min(1, max_norm/(norm + 1e-6))" },
    ["cstorch.step_closure"] = { "step_closure(fn, options)", "run_async" },
    ["cstorch.utils.data"] = { "DataLoader", "ShardedSampler" },
    ["cstorch"] = { "optim", "checkpoint_closure", "UNTAGGED" },
    ["cbtorch.save"] = { "cstorch.save(tree, path)" },
  } do
    it("describes " .. name, function()
      local text = help.text(name)
      for _, word in ipairs(words) do is_true(text:find(word, 1, true), word .. " in: " .. text) end
    end)
  end

  it("completes names in the REPL", function()
    local complete = require "cbk.repl.complete"
    local env = { cstorch = require "cstorch" }
    local function candidates(line) return select(2, complete.at(line, #line, env, {})) end
    equal(candidates "cstorch.op", { "optim" })
    equal(candidates "cstorch.st", { "stack(", "step_closure(" })
    equal(candidates "cstorch.optim.Adam", { "Adam", "AdamBase", "AdamW", "Adamax" })
    equal(candidates "local s = cstorch.optim.lr_scheduler.Cosine", {
      "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestartsLR", "CosineDecayLR",
    })
    equal(candidates "cstorch.nn.functional.cross", { "cross_entropy(" })
    equal(candidates "cstorch.utils.data.DataL", { "DataLoader" })
    env.x = env.cstorch.ones { 2 }
    equal(candidates "x:requires", { "requires_grad_(" })
    env.model = env.cstorch.nn.Sequential(env.cstorch.nn.Linear(2, 2))
    env.opt = env.cstorch.optim.SGD(env.model:parameters(), { lr = 1 })
    equal(candidates "model:named_p", { "named_parameters(" })
    equal(candidates "opt:zero_", { "zero_grad(" })
    equal(candidates "opt.param_g", { "param_groups" })
    env.layer = env.cstorch.nn.Linear(2, 2)
    equal(candidates "layer.wei", { "weight" })
  end)

  it("is the same under the name cbtorch", function()
    equal(require "cbtorch" == require "cstorch", true)
    equal(require("cbtorch").save, require("cstorch").save)
  end)

  it("has a page whose script runs as it says", function()
    local folder = harness.temp_dir()
    local page = cbk.fs.read((debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or "") .. "scripts/help/training-api.md")
    local lines = {}
    for line in page:match("\nA complete run\n(.-)\nIt prints"):gmatch "[^\n]*\n" do lines[#lines + 1] = line:gsub("^  ", "") end
    cbk.fs.write(folder .. "/line.lua", table.concat(lines))
    local code, out, err = harness.cbk(folder, "run", "line.lua")
    equal({ code, err }, { 0, "" })
    local losses = {}
    for step, loss in out:gmatch "step (%d+): loss ([%d.]+)\n" do losses[tonumber(step) / 50] = tonumber(loss) end
    is_true(#losses == 4 and losses[4] < 1e-3 and losses[4] < losses[1], out)
    equal({ cbk.fs.list(folder) }, { { "line.lua", "line_100.mdl", "line_200.mdl" } })
  end)

  it("has a page with an optimizer and a schedule of one's own, which run", function()
    local folder = harness.temp_dir()
    local page = cbk.fs.read((debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or "") .. "scripts/help/training-api.md")
    local lines = {}
    for line in page:match("\nYour own optimizer and schedule\n.-\n\n(  %-%- signum.-)\nErrors that"):gmatch "[^\n]*\n" do
      lines[#lines + 1] = line:gsub("^  ", "")
    end
    cbk.fs.write(folder .. "/signum.lua", table.concat(lines))
    local code, out, err = harness.cbk(folder, "run", "signum.lua")
    equal({ code, out, err }, { 0, "step 1: learning rate 0.0500\nstep 2: learning rate 0.0354\nstep 3: learning rate 0.0289\n"
      .. "step 4: learning rate 0.0250\n", "" })
  end)

  it("has a page whose sparse run goes on as it says", function()
    local folder = harness.temp_dir()
    local page = cbk.fs.read((debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or "") .. "scripts/help/training-api.md")
    local save, go_on = page:match("\nSparse runs\n.-\n\n(  cstorch.save.-)\n\n(  .-)\n\n%S")
    local script = ([[
local cstorch = require "cstorch"
local model, optimizer, sparsity
local function make()
  model = cstorch.nn.Linear(8, 4)
  optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.1 })
  sparsity = cstorch.sparse.Static { sparsity = 0.5 }
end
local function step()
  model(cstorch.ones { 1, 8 }):mean():backward()
  optimizer:step()
  optimizer:zero_grad()
  return model.weight:detach():clone()
end
make()
model:apply(sparsity)
optimizer:apply(sparsity)
step()
SAVE
local second = step()
make()
GO_ON
print((step() - second):abs():amax():item(), sparsity:state_dict() ~= nil)
]]):gsub("SAVE", save):gsub("GO_ON", go_on)
    cbk.fs.write(folder .. "/sparse.lua", script)
    local code, out, err = harness.cbk(folder, "run", "sparse.lua")
    equal({ code, out, err }, { 0, "0\ttrue\n", "" })
  end)

  it("describes all methods of tensors", function()
    local known, text = debug.getmetatable(require("cstorch").ones {}).methods, help.text "cstorch.Tensor"
    local described = {}
    for name in text:gmatch "\n  :([%w_]+)%(" do
      described[name] = true
      is_true(known[name], name)
    end
    for name in pairs(known) do is_true(described[name], name) end
    is_true(help.text("cstorch.Tensor:topk"):find("cstorch.Tensor:topk(k, dim)", 1, true))
    equal({ help.text "cstorch.Tensor:clmp" }, { nil, { "cstorch.Tensor:clamp" } })
  end)

  it("names what looks like an unknown name", function()
    local text, near = help.text "cstorch.optim.AdmW"
    equal({ text, near[1] }, { nil, "cstorch.optim.AdamW" })
  end)
end)
