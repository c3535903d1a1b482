-- Optimizers, schedules and parameter groups from configurations.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local near = harness.near
local optim = cstorch.optim

local function parameters() return { cstorch.nn.Parameter(cstorch.tensor { 1 }) } end

--- Runs `body` with warnings collected.
local function with_warnings(body)
  cstorch.testing.reset()
  local unused, texts = {}, {}
  local before = cstorch.on_warning(function(text, info)
    texts[#texts + 1] = text
    for _, name in ipairs(info and info.unused or {}) do unused[#unused + 1] = name end
  end)
  local fine, problem = pcall(body)
  cstorch.on_warning(before)
  if not fine then error(problem, 0) end
  return unused, texts
end

describe("cstorch: configure_optimizer", function()
  it("leaves its table alone", function()
    local options = { optimizer_type = "sgd", params = parameters(), learning_rate = 0.25, betas = { 1 } }
    local unused = with_warnings(function() equal(optim.configure_optimizer(options).param_groups[1].lr, 0.25) end)
    equal(unused, { "betas" })
    equal({ options.optimizer_type, options.learning_rate, options.betas, #options.params }, { "sgd", 0.25, { 1 }, 1 })
  end)

  it("takes a config of cbk", function()
    local config = cbk.config.parse("optimizer_type: AdamW\nbetas: [0.8, 0.9]\nlearning_rate: 3\nweight_decay: null\n", "yaml")
    local options = { params = parameters() }
    for key, value in cbk.items(config) do options[key] = value end
    local group = optim.configure_optimizer(options).param_groups[1]
    equal({ group.betas, group.lr, group.weight_decay }, { { 0.8, 0.9 }, 3, 0 })
  end)

  it("accepts old names with legacy, and warns", function()
    local opt
    local _, texts = with_warnings(function()
      local old = { optimizer_type = "Adam", params = parameters(), beta1 = 0.5, weight_decay_rate = 0.1, legacy = true }
      opt = optim.configure_optimizer(old)
    end)
    equal({ opt.param_groups[1].betas, opt.param_groups[1].l2_regularization_rate }, { { 0.5, 0.999 }, 0.1 })
    equal(#texts, 2)
  end)

  for _, case in ipairs {
    { { optimizer_type = "SDG" }, "unknown optimizer_type 'SDG'; did you mean 'SGD'? (known: ASGD, Adadelta" },
    { { optimizer_type = "Optimizer" }, "unknown optimizer_type 'Optimizer'" },
    { { optimizer_type = "AdamBase" }, "unknown optimizer_type 'AdamBase'" },
    { { optimizer_type = 5 }, "expected a name as optimizer_type, found 5" },
    { { optimizer_type = "Adam", beta2 = 0.9 }, "'beta2' is an old name; Adam has 'betas', a list with it at position 2" },
    { { optimizer_type = "Rprop", step_size_min = 1 }, "Rprop has 'step_sizes'" },
    { { optimizer_type = "SGD", momentum = -1 }, "momentum must be >= 0" },
    { "AdamW", "expected a table { optimizer_type =, params = }, found 'AdamW'", "type" },
  } do
    it("refuses: " .. case[2], function()
      local options = case[1]
      if type(options) == "table" then options.params = parameters() end
      raises(case[2], function() optim.configure_optimizer(options) end, case[3] or "value")
    end)
  end

  it("refuses a missing list of parameters", function()
    raises("'params' is missing", function() optim.configure_optimizer { optimizer_type = "SGD" } end, "value")
  end)

  it("names a missing argument of a custom class", function()
    local Needy = optim.SGD:subclass("Needy", { speed = cstorch.REQUIRED })
    is_true(Needy)
    raises("Needy needs 'speed'", function() optim.configure_optimizer { optimizer_type = "needy", params = parameters() } end, "runtime")
  end)
end)

describe("cstorch: configure_lr_scheduler", function()
  local function configure(config, options) return optim.configure_lr_scheduler(optim.SGD(parameters(), { lr = 0.1 }), config, options) end

  it("takes configs of cbk", function()
    local schedule = configure(cbk.config.parse([[
- { scheduler: linear, initial_learning_rate: 0, end_learning_rate: 1, total_iters: 2 }
- { scheduler: ConstantLR, learning_rate: 1, param_group_tags: null }
]], "yaml"))
    equal({ schedule.class.name, schedule.milestones }, { "SequentialLR", { 2 } })
  end)

  it("leaves its table alone", function()
    local config = { { scheduler = "Constant", learning_rate = 1, main_scheduler = "sequential" } }
    configure(config)
    equal(config[1].main_scheduler, "sequential")
  end)

  for _, case in ipairs {
    { "fast", "expected a number or a schedule, found 'fast'" },
    { true, "expected a table with 'scheduler', found true" },
    { { learning_rate = 1 }, "expected a table with 'scheduler', found one without" },
    { { scheduler = 7 }, "expected the name of a schedule as 'scheduler', found 7" },
    { { scheduler = "Cosinedecai" }, "unknown scheduler 'Cosinedecai'; did you mean 'CosineDecayLR'?" },
    { { scheduler = "Linear", initial_learning_rate = 1, end_learning_rate = 0, decay_steps = 3 },
      "'decay_steps' is an old name; use 'total_iters'" },
    { { scheduler = "Cyclic", learning_rate = 1, max_lr = 2 }, "'learning_rate' is an old name; use 'base_lr'" },
    { { scheduler = "CosineAnnealing", initial_learning_rate = 1, t_max = 3 }, "'t_max' is an old name; use 'T_max'" },
    { { scheduler = "Constant", learning_rate = 1, foo = 2 }, "unknown argument 'foo'" },
    { { scheduler = "Constant" }, "argument 'learning_rate' is missing", "runtime" },
    { { { scheduler = "Constant", learning_rate = 1 }, { scheduler = "Constant", learning_rate = 1 } },
      "entry 1 needs 'total_iters'", "assertion" },
    { { { scheduler = "Constant", learning_rate = 1, total_iters = 2 }, 5 }, "expected a table with 'scheduler', found 5" },
  } do
    it("refuses: " .. case[2], function() raises(case[2], function() configure(case[1]) end, case[3] or "value") end)
  end
end)

describe("cstorch: configure_scheduler", function()
  local function sgd() return optim.SGD({ { params = parameters(), tags = "a" }, { params = parameters() } }, { lr = 0.1 }) end

  it("builds trees of exact class names", function()
    local opt = sgd()
    local schedule = optim.configure_scheduler(opt, { SequentialWD = {
      param_group_tags = "a", milestones = { 2 },
      schedulers = { { LinearWD = { initial_val = 0, end_val = 1, total_iters = 2 } }, { ConstantWD = { val = 3 } } },
    } })
    equal(schedule.class.name, "SequentialWD")
    for _ = 1, 2 do schedule:step() end
    equal({ schedule:get_last_wd(), opt.param_groups[2].weight_decay }, { { 3, false }, 0 })
    local inner = { ConstantLR = { learning_rate = 1 } }
    equal(optim.configure_scheduler(sgd(), { ScalePerParamLR = { scheduler = inner } }).class.name, "ScalePerParamLR")
    equal(optim.configure_scheduler(sgd(), { ChainedLR = { schedulers = { inner } } }):get_last_lr(), { 1, 1 })
  end)

  it("builds lists whose members do not meet", function()
    local list = optim.configure_scheduler(sgd(), {
      { ConstantLR = { learning_rate = 1, param_group_tags = "a" } },
      { ConstantLR = { learning_rate = 2, param_group_tags = { cbk.null } } },
      { ConstantWD = { val = 3 } },
    })
    equal({ #list, list[2]:get_last_lr() }, { 3, { false, 2 } })
  end)

  for _, case in ipairs {
    { { cosinedecaylr = {} }, "unknown class 'cosinedecaylr'" },
    { { ConstantLR = {}, LinearLR = {} }, "expected a table with one key" },
    { { ConstantLR = 5 }, "expected a table of arguments for ConstantLR, found 5" },
    { { SequentialLR = { milestones = {}, schedulers = { { ConstantLR = { learning_rate = 1, param_group_tags = "a" } } } } },
      "ConstantLR: param_group_tags belongs to the outermost schedule only" },
    { { { ConstantLR = { learning_rate = 1 } }, { ConstantLR = { learning_rate = 2, param_group_tags = "a" } } },
      "schedules 1 and 2 both write 'lr'; give each its param_group_tags" },
    { { { ConstantLR = { learning_rate = 1, param_group_tags = "a" } }, { ConstantLR = { learning_rate = 2, param_group_tags = "a" } } },
      "schedules 1 and 2 both write 'lr' of groups { 'a' }" },
  } do
    it("refuses: " .. case[2], function() raises(case[2], function() optim.configure_scheduler(sgd(), case[1]) end, "value") end)
  end
end)

describe("cstorch: configure_param_groups", function()
  local nn = cstorch.nn

  local function model()
    local Net = nn.Module:subclass "Net"
    function Net:init()
      Net.super.init(self)
      self.embedding = nn.Embedding(4, 3)
      self.norm = nn.LayerNorm(3)
      self.out = nn.Linear(3, 2)
    end
    function Net.forward(_, x) return x end
    return Net()
  end

  local function shapes(groups)
    local list = {}
    for g, group in ipairs(groups) do
      local own = {}
      for k, p in ipairs(group.params) do own[k] = ("[%s]"):format(table.concat(p:shape(), ", ")) end
      list[g] = { decay = group.weight_decay, factor = group.adjust_learning_rate, tags = group.tags, shapes = table.concat(own, " ") }
    end
    return list
  end

  it("gives biases and norms no decay", function()
    equal(shapes(optim.configure_param_groups(model(), { weight_decay = 0.5 })),
      { { decay = 0.5, shapes = "[4, 3] [2, 3]" }, { decay = 0, shapes = "[3] [3] [2]" } })
  end)

  it("takes norms as the reference does: derived ones, but not RMSNorm", function()
    local Own = nn.LayerNorm:subclass "Own"
    local groups = optim.configure_param_groups(nn.Sequential(Own(3), nn.RMSNorm(4)), { weight_decay = 0.5 })
    equal(shapes(groups), { { decay = 0.5, shapes = "[4]" }, { decay = 0, shapes = "[3] [3]" } })
  end)

  it("gives layers their factor, and filters their tag", function()
    local options = { weight_decay = 0.5, adjust_learning_rate = { embedding = 0.1 }, params = { { params = "out.*", tag = "head" } } }
    local groups = optim.configure_param_groups(model(), options)
    equal(shapes(groups), {
      { decay = 0.5, factor = 1, tags = "head", shapes = "[2, 3]" }, { decay = 0, factor = 1, tags = "head", shapes = "[2]" },
      { decay = 0.5, factor = 0.1, shapes = "[4, 3]" }, { decay = 0, factor = 1, shapes = "[3] [3]" },
    })
    near(optim.SGD(groups, { lr = 1 }).param_groups[3].adjust_learning_rate, 0.1, 0)
  end)

  for _, case in ipairs {
    { { params = { { params = "nothing.*", tag = "x" } } }, "the filter 'nothing.*' matches no parameter" },
    { { params = { 5 } }, "expected { params = glob or list of globs, tag = name } as filter 1" },
    { { params = { { params = "*", tag = "x" }, { params = { -1 }, tag = "x" } } }, "tag = name } as filter 2" },
    { { params = { { params = { {} }, tag = "x" } } }, "expected { params = glob or list of globs" },
    { { params = { { params = "*", tag = { 1 } } } }, "expected a string as tag, found 1", "type" },
    { { adjust_learning_rate = { embedding = 0 / 0, decoder_kernel = 0 / 0 } }, "expected a finite number for", "type" },
    { { adjust_learning_rate = { embeding = 2 } }, "unknown layer 'embeding'; did you mean 'embedding'?" },
    { { adjust_learning_rate = { embedding = "x" } }, "expected a finite number for 'embedding', found 'x'", "type" },
    { { weight_decay = "x" }, "expected a number as weight_decay", "type" },
  } do
    it("refuses: " .. case[2], function()
      raises(case[2], function() optim.configure_param_groups(model(), case[1]) end, case[3] or "value")
    end)
  end
end)
