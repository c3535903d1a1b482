-- Schedules: the clock, groups and tags, composites, state dicts, custom classes, and errors.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local near = harness.near
local optim, lr, wd = cstorch.optim, cstorch.optim.lr_scheduler, cstorch.optim.weight_decay_scheduler

local function optimizer(extras)
  local groups = {}
  for g, extra in ipairs(extras or { {} }) do
    groups[g] = { params = { cstorch.nn.Parameter(cstorch.tensor { 1 }) } }
    for key, value in pairs(extra) do groups[g][key] = value end
  end
  return optim.SGD(groups, { lr = 0.5 })
end

--- The next values of a schedule as it is stepped.
local function values(schedule, count)
  local list = {}
  for k = 1, count do
    list[k] = schedule:get_last_lr()[1]
    schedule:step()
  end
  return list
end

local function expect_near(got, want, tolerance)
  equal(#got, #want)
  for i, value in ipairs(want) do near(got[i], value, tolerance or 1e-6) end
end

describe("cstorch: schedule", function()
  it("has a rate in its first step when a phase has no length", function()
    equal(values(lr.OneCycleLR(optimizer(), { initial_learning_rate = 1, max_lr = 2, total_steps = 10, pct_start = 0.1 }), 1), { 2 })
    equal(values(lr.LinearLR(optimizer(), { initial_learning_rate = 1, end_learning_rate = 0.5, total_iters = 0 }), 1), { 0.5 })
  end)

  it("refuses to divide by no steps, or by fewer", function()
    local rates = { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 0 }
    raises("CosineDecayLR: total_iters must be > 0, not 0", function() lr.CosineDecayLR(optimizer(), rates) end, "value")
    rates.total_iters = -1
    raises("LinearLR: total_iters must be >= 0, not -1", function() lr.LinearLR(optimizer(), rates) end, "value")
    raises("warmup_steps must be > 0", function() lr.InverseSquareRootDecayLR(optimizer(), { warmup_steps = 0 }) end, "value")
  end)

  it("writes a 0-dim tensor into the groups, the first value at once", function()
    local opt = optimizer()
    local schedule = lr.LinearLR(opt, { initial_learning_rate = 0, end_learning_rate = 1, total_iters = 4 })
    local rate = opt.param_groups[1].lr
    equal({ rate:item(), rate:dim(), schedule.last_epoch:item(), schedule.last_epoch.dtype }, { 0, 0, 0, "int64" })
    opt:step()
    schedule:step()
    is_true(opt.param_groups[1].lr == rate, "the same tensor")
    equal({ cstorch.value(rate), schedule.last_epoch:item(), schedule:get_last_lr() }, { 0.25, 1, { 0.25 } })
    equal(cstorch.value(0.5), 0.5)
  end)

  it("starts behind last_epoch", function()
    local schedule = lr.StepLR(optimizer(), { initial_learning_rate = 1, step_size = 2, gamma = 0.5, last_epoch = 3 })
    equal({ schedule.last_epoch:item(), schedule:get_last_lr()[1] }, { 4, 0.25 })
  end)

  it("warns when get_lr is called outside of step", function()
    cstorch.testing.reset()
    local text
    local before = cstorch.on_warning(function(message) text = message end)
    equal(lr.ConstantLR(optimizer(), { learning_rate = 2 }):get_lr()[1]:item(), 2)
    cstorch.on_warning(before)
    is_true(text:find "get_last_lr")
  end)

  it("has its arguments as fields", function()
    local schedule = lr.CosineDecayLR(optimizer(), { initial_learning_rate = 1, end_learning_rate = 0.5, total_iters = 3 })
    equal({ schedule.initial_learning_rate, schedule.end_learning_rate, schedule.total_iters }, { 1, 0.5, 3 })
    equal({ schedule.class.name, schedule:isinstance(lr.LRScheduler) }, { "CosineDecayLR", true })
  end)

  it("targets the groups of its tags", function()
    local opt = optimizer { { tags = "a" }, { tags = { "b", "a" } }, { tags = "b" }, {} }
    equal(lr.ConstantLR(opt, { learning_rate = 2, param_group_tags = "a" }):get_last_lr(), { 2, 2, false, false })
    equal(lr.ConstantLR(opt, { learning_rate = 3, param_group_tags = { "b", cstorch.UNTAGGED } }):get_last_lr(), { false, 3, 3, 3 })
    equal({ opt.param_groups[1].lr:item(), opt.param_groups[2].lr:item(), opt.param_groups[4].lr:item() }, { 2, 3, 3 })
    raises("no parameter group has one of the tags { 'c' }; the groups have { 'a', 'b', UNTAGGED }",
      function() lr.ConstantLR(opt, { learning_rate = 1, param_group_tags = "c" }) end, "value")
    raises("a tag occurs twice", function() lr.ConstantLR(opt, { learning_rate = 1, param_group_tags = { "a", "a" } }) end, "value")
  end)

  it("of weight decay writes that", function()
    local opt = optimizer()
    local schedule = wd.LinearWD(opt, { initial_val = 0, end_val = 1, total_iters = 2 })
    schedule:step()
    equal({ opt.param_groups[1].weight_decay:item(), opt.param_groups[1].lr, schedule:get_last_wd() }, { 0.5, 0.5, { 0.5 } })
  end)

  it("is the same for rates and decays", function()
    local names = { initial_val = "initial_learning_rate", end_val = "end_learning_rate", val = "learning_rate", vals = "learning_rates",
      base_val = "base_lr", max_val = "max_lr" }
    for _, case in ipairs {
      { "Constant", { val = 3 } }, { "Polynomial", { initial_val = 3, end_val = 1, total_iters = 5, power = 2 } },
      { "Exponential", { initial_val = 3, total_iters = 4, decay_rate = 0.5 } }, { "InverseSquareRootDecay", { initial_val = 3 } },
      { "InverseExponentialTimeDecay", { initial_val = 3, total_iters = 4, step_exponent = 2, decay_rate = 0.5 } },
      { "CosineDecay", { initial_val = 3, end_val = 1, total_iters = 5 } },
      { "PiecewiseConstant", { vals = { 3, 2 }, milestones = { 2 } } },
      { "MultiStep", { initial_val = 3, gamma = 0.5, milestones = { 1, 3 } } }, { "Step", { initial_val = 3, gamma = 0.5, step_size = 2 } },
      { "CosineAnnealing", { initial_val = 3, T_max = 3 } }, { "Lambda", { initial_val = 3 } },
      { "CosineAnnealingWarmRestarts", { initial_val = 3, T_0 = 2 } }, { "Multiplicative", { initial_val = 3, coefficient = 0.5 } },
      { "Cyclic", { base_val = 1, max_val = 3, step_size_up = 2 } }, { "OneCycle", { initial_val = 1, max_val = 3, total_steps = 8 } },
    } do
      local name, arguments, renamed = case[1], case[2], {}
      for key, value in pairs(arguments) do renamed[names[key] or key] = value end
      local rate, decay = lr[name .. "LR"](optimizer(), renamed), wd[name .. "WD"](optimizer(), arguments)
      for _ = 1, 7 do
        equal(decay:get_last_wd(), rate:get_last_lr(), name)
        rate:step()
        decay:step()
      end
    end
  end)

  it("of any key needs a class with param_group_key", function()
    local arguments = { initial_val = 0.5, end_val = 0.9, total_iters = 4 }
    raises("the class has no param_group_key", function() optim.scheduler.LinearScheduler(optimizer(), arguments) end, "type")
    local LinearMomentum = optim.scheduler.LinearScheduler:subclass "LinearMomentum"
    LinearMomentum.param_group_key = "momentum"
    local opt = optimizer()
    LinearMomentum(opt, arguments):step()
    near(opt.param_groups[1].momentum:item(), 0.6, 1e-6)
  end)

  for _, case in ipairs {
    { "LinearLR", { initial_learning_rate = 1, total_iters = 2 }, "keyword 'end_learning_rate' is missing", "type" },
    { "LinearLR", { initial_learning_rate = 1, end_learning_rate = 1, total_iters = 2, powr = 1 }, "unknown keyword 'powr'", "type" },
    { "LinearLR", { initial_learning_rate = "a", end_learning_rate = 1, total_iters = 2 },
      "expected a number as initial_learning_rate", "type" },
    { "StepLR", { initial_learning_rate = 1, step_size = 2, gamma = 1, total_iters = 3 }, "unknown keyword 'total_iters'", "type" },
    { "CosineAnnealingWarmRestarts", { initial_learning_rate = 1, T_0 = 2, T_mult = 2 }, "T_mult must be 1, not 2", "value" },
    { "PiecewiseConstantLR", { learning_rates = { 1, 2 }, milestones = { 3, 4 } }, "one value more in learning_rates than milestones" },
    { "PiecewiseConstantLR", { learning_rates = { 1, "x" }, milestones = { 3 } }, "expected a list of numbers as learning_rates", "type" },
    { "ScalePerParamLR", { scheduler = 5 }, "expected a table as scheduler", "type" },
    { "SequentialLR", { schedulers = {}, milestones = {} }, "expected a list of schedules", "value" },
  } do
    it(("%s refuses: %s"):format(case[1], case[3]), function()
      raises(case[3], function() lr[case[1]](optimizer(), case[2]) end, case[4])
    end)
  end

  it("refuses what is not an optimizer", function()
    raises("expected an optimizer of cstorch.optim, found 3", function() lr.ConstantLR(3, { learning_rate = 1 }) end, "type")
  end)
end)

describe("cstorch: composite schedule", function()
  local function constant(opt, rate) return lr.ConstantLR(opt, { learning_rate = rate }) end
  local function linear(opt, from, to, steps)
    return lr.LinearLR(opt, { initial_learning_rate = from, end_learning_rate = to, total_iters = steps })
  end

  it("runs its members one after the other, each on its own clock", function()
    local opt = optimizer()
    local first, second = linear(opt, 0, 1, 2), linear(opt, 8, 4, 4)
    equal(#opt.schedulers, 2)
    local schedule = lr.SequentialLR(opt, { schedulers = { first, second }, milestones = { 2 } })
    is_true(#opt.schedulers == 1 and opt.schedulers[1] == schedule)
    expect_near(values(schedule, 5), { 0, 0.5, 8, 7, 6 })
    equal({ first.last_epoch:item(), second.last_epoch:item(), schedule.milestones }, { 5, 3, { 2 } })
  end)

  it("multiplies chained members", function()
    local opt = optimizer()
    local schedule = lr.ChainedScheduler { schedulers = { constant(opt, 3), linear(opt, 2, 1, 2) } }
    is_true(lr.ChainedLR == lr.ChainedScheduler)
    expect_near(values(schedule, 3), { 3, 2.25, 1.5 })
  end)

  it("scales per group, also a sequence", function()
    local opt = optimizer { { adjust_learning_rate = 0.5 }, { adjust_val = 3 }, {} }
    local inner = lr.SequentialLR(opt, { schedulers = { constant(opt, 2), constant(opt, 4) }, milestones = { 1 } })
    local schedule = lr.ScalePerParamLR(opt, { scheduler = inner })
    equal(schedule:get_last_lr(), { 1, 6, 2 })
    schedule:step()
    equal(schedule:get_last_lr(), { 2, 12, 4 })
    equal(schedule:state_dict().lr_adjustment_scalars, { 0.5, 3, 1 })
  end)

  it("refuses a factor that is not a number", function()
    local opt = optimizer { { adjust_learning_rate = "x" } }
    raises("expected a number as factor of group 1, found 'x'", function()
      lr.ScalePerParamLR(opt, { scheduler = constant(opt, 1) })
    end, "type")
  end)

  it("refuses members that do not fit", function()
    local opt, other = optimizer { { tags = "a" }, {} }, optimizer()
    local function sequence(second)
      return function() lr.SequentialLR(opt, { schedulers = { constant(opt, 1), second }, milestones = { 1 } }) end
    end
    local tagged = lr.ConstantLR(opt, { learning_rate = 1, param_group_tags = "a" })
    raises("schedule 2 belongs to another optimizer", sequence(constant(other, 1)), "value")
    raises("schedule 2 writes 'weight_decay', the first 'lr'", sequence(wd.ConstantWD(opt, { val = 1 })), "value")
    raises("schedule 2 has the tags { 'a' }, the first none", sequence(tagged), "value")
    raises("item 2 of 'schedulers' is 7, not a schedule", sequence(7), "type")
    raises("expected integers as milestones, found 1.5", function()
      lr.SequentialLR(opt, { schedulers = { constant(opt, 1), constant(opt, 2) }, milestones = { 1.5 } })
    end, "type")
    raises("expected 1 milestones for 2 schedules, found 2", function()
      lr.SequentialLR(opt, { schedulers = { constant(opt, 1), constant(opt, 2) }, milestones = { 1, 2 } })
    end, "value")
    raises("schedule 2, a ConstantLR, has no initial value", function()
      lr.ChainedLR { schedulers = { constant(opt, 1), constant(opt, 2) } }
    end, "value")
    raises("a ChainedScheduler cannot be scaled", function()
      lr.ScalePerParamLR(opt, { scheduler = lr.ChainedLR { schedulers = { constant(opt, 1) } } })
    end, "value")
  end)
end)

describe("cstorch: schedule state dict", function()
  it("restores every schedule", function()
    local function nested(opt) -- its inner line does not advance
      return lr.SequentialLR(opt, {
        schedulers = {
          lr.ConstantLR(opt, { learning_rate = 5 }),
          lr.SequentialLR(opt, {
            schedulers = {
              lr.LinearLR(opt, { initial_learning_rate = 0, end_learning_rate = 1, total_iters = 4 }),
              lr.ConstantLR(opt, { learning_rate = 3 }),
            },
            milestones = { 4 },
          }),
        },
        milestones = { 2 },
      })
    end
    local function build(opt)
      return {
        lr.PolynomialLR(opt, { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 9, power = 2 }),
        lr.ExponentialLR(opt, { initial_learning_rate = 1, total_iters = 3, decay_rate = 0.5 }),
        lr.MultiStepLR(opt, { initial_learning_rate = 1, gamma = 0.5, milestones = { 2, 4 } }),
        lr.PiecewiseConstantLR(opt, { learning_rates = { 3, 2, 1 }, milestones = { 2, 5 } }),
        lr.CyclicLR(opt, { base_lr = 1, max_lr = 2, step_size_up = 3 }),
        lr.OneCycleLR(opt, { initial_learning_rate = 1, max_lr = 2, total_steps = 10 }),
        lr.ScalePerParamLR(opt, { scheduler = lr.StepLR(opt, { initial_learning_rate = 1, step_size = 2, gamma = 0.5 }) }),
        lr.SequentialLR(opt, {
          schedulers = {
            lr.ConstantLR(opt, { learning_rate = 5 }), lr.MultiplicativeLR(opt, { initial_learning_rate = 1, coefficient = 0.5 }),
          },
          milestones = { 2 },
        }),
        nested(opt), lr.ScalePerParamLR(opt, { scheduler = nested(opt) }),
      }
    end
    local fresh = build(optimizer())
    for i, schedule in ipairs(build(optimizer())) do
      values(schedule, 4)
      fresh[i]:load_state_dict(schedule:state_dict())
      equal(fresh[i]:get_last_lr(), schedule:get_last_lr(), schedule.class.name)
      expect_near(values(fresh[i], 3), values(schedule, 3))
    end
  end)

  it("of constants has a state dict of each, as every schedule that is made of schedules", function()
    local families = {
      { lr.PiecewiseConstantLR, "learning_rates", "learning_rate" },
      { wd.PiecewiseConstantWD, "vals", "val" },
    }
    for _, family in ipairs(families) do
      local Piecewise, plural, single = unpack(family)
      local function made(rates) return Piecewise(optimizer(), { [plural] = rates, milestones = { 2, 5 } }) end
      local schedule = made { 3, 2, 1 }
      for _ = 1, 4 do schedule:step() end
      local dict, stretches = schedule:state_dict(), {}
      for k, member in ipairs(dict._schedulers) do
        stretches[k] = { member[single], member.total_iters or "none", member.last_epoch:item(), member._step_count:item() }
      end
      equal(stretches, { { 3, 2, 4, 1 }, { 2, 3, 2, 1 }, { 1, "none", 0, 1 } }, Piecewise.name)
      equal(dict._milestones, { 2, 5 })
      equal({ dict[plural] == nil, dict.milestones == nil, dict.schedulers == nil }, { true, true, true })
      local other = made { 30, 20, 10 }
      other:load_state_dict(dict)
      equal(other[plural], { 3, 2, 1 })
      local next_values = {}
      for k = 1, 3 do
        next_values[k] = other:get_last_value()[1]
        other:step()
      end
      equal(next_values, { 2, 1, 1 })
      other:load_state_dict { [plural] = { 6, 5, 4 }, last_epoch = 2 }
      equal(other:get_last_value(), { 5 })
      raises(plural, function() other:load_state_dict { [plural] = { 1 }, last_epoch = 0 } end, "value")
      equal(other[plural], { 6, 5, 4 })
    end
  end)

  it("lets the arguments of the file win", function()
    local opt = optimizer()
    local schedule = lr.ConstantLR(opt, { learning_rate = 1 })
    schedule:load_state_dict { learning_rate = 7, last_epoch = 3, _step_count = 9 }
    equal({ opt.param_groups[1].lr:item(), schedule.last_epoch:item(), schedule:state_dict()._step_count:item() }, { 7, 3, 9 })
  end)

  it("refuses entries of the wrong kind, and null where a value is needed", function()
    local ends = { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 9 }
    local function constant(opt) return lr.ConstantLR(opt, { learning_rate = 1 }) end
    local makers = {
      CosineDecayLR = ends, PolynomialLR = ends, CyclicLR = { base_lr = 1, max_lr = 2 },
      OneCycleLR = { initial_learning_rate = 1, max_lr = 2 }, CosineAnnealingWarmRestarts = { initial_learning_rate = 1, T_0 = 3 },
      MultiStepLR = { initial_learning_rate = 1, gamma = 0.5, milestones = { 2, 4 } },
      PiecewiseConstantLR = { learning_rates = { 3, 2 }, milestones = { 2 } },
    }
    for name, arguments in pairs(makers) do
      for key, value in pairs(arguments) do
        for _, wrong in ipairs { cbk.null, type(value) == "number" and "x" or 3 } do
          local opt = optimizer()
          local schedule = lr[name](opt, arguments)
          local before = schedule:get_last_lr()
          raises(key, function() schedule:load_state_dict { [key] = wrong, last_epoch = 0 } end, "type")
          equal(schedule:get_last_lr(), before)
        end
      end
    end
    local cyclic = lr.CyclicLR(optimizer(), { base_lr = 1, max_lr = 2 })
    cyclic:load_state_dict { step_size_up = 5, step_size_down = cbk.null, last_epoch = 5 }
    equal(cyclic:get_last_lr(), { 2 })

    local opt = optimizer()
    local composites = {
      sequential = lr.SequentialLR(opt, { schedulers = { constant(opt), constant(opt) }, milestones = { 2 } }),
      chained = lr.ChainedLR { schedulers = { constant(opt), lr.StepLR(opt, { initial_learning_rate = 1, step_size = 2, gamma = 0.5 }) } },
      scaled = lr.ScalePerParamLR(opt, { scheduler = constant(opt) }),
    }
    local function refused(name, dict, text)
      dict.last_epoch = 0
      raises(text, function() composites[name]:load_state_dict(dict) end, "type")
    end
    refused("sequential", { _milestones = cbk.null }, "milestones")
    refused("sequential", { _schedulers = cbk.null }, "expected a list as _schedulers, found null")
    refused("chained", { _schedulers = cbk.null }, "expected a list as _schedulers, found null")
    for _, wrong in ipairs { 3, true, tostring, cstorch.ones {}, cbk.null } do
      refused("scaled", { lr_adjustment_scalars = wrong }, "lr_adjustment_scalars")
    end
    raises("expected a factor for each of 1 groups, found 2", function()
      composites.scaled:load_state_dict { lr_adjustment_scalars = { 1, 2 }, last_epoch = 0 }
    end, "value")
    refused("scaled", { [true] = 1 }, "the state dict: expected names as keys, found true")
    composites.scaled:load_state_dict(composites.scaled:state_dict())
  end)

  it("needs the clock, which members follow that have no state dict", function()
    local function constant(opt, rate) return lr.ConstantLR(opt, { learning_rate = rate }) end
    local function composites()
      local opt = optimizer()
      local step = { initial_learning_rate = 1, step_size = 2, gamma = 0.5 }
      return {
        lr.SequentialLR(opt, { schedulers = { constant(opt, 1), lr.StepLR(opt, step) }, milestones = { 2 } }),
        lr.ChainedLR { schedulers = { constant(opt, 1), lr.StepLR(opt, step) } },
        lr.ScalePerParamLR(opt, { scheduler = lr.StepLR(opt, step) }),
        lr.PiecewiseConstantLR(opt, { learning_rates = { 3, 2, 1 }, milestones = { 2, 5 } }),
      }
    end
    local others = composites()
    for i, schedule in ipairs(composites()) do
      values(schedule, 7)
      local dict = schedule:state_dict()
      dict._schedulers, dict._scheduler = nil, nil
      others[i]:load_state_dict(dict)
      equal(others[i]:get_last_lr(), schedule:get_last_lr(), schedule.class.name)
      equal(values(others[i], 3), values(schedule, 3), schedule.class.name)
      dict.last_epoch = nil
      for _, incomplete in ipairs { {}, dict } do
        raises("the state dict has no 'last_epoch'", function() others[i]:load_state_dict(incomplete) end, "value")
      end
    end
  end)

  it("is refused where the constructor is", function()
    local opt = optimizer()
    local restarts = lr.CosineAnnealingWarmRestarts(opt, { initial_learning_rate = 1, T_0 = 2 })
    raises("T_mult must be 1, not 2", function() restarts:load_state_dict { T_mult = 2, last_epoch = 3 } end, "value")
    equal({ restarts.T_mult, restarts.last_epoch:item() }, { 1, 0 })
    local function constant() return lr.ConstantLR(opt, { learning_rate = 1 }) end
    local sequence = lr.SequentialLR(opt, { schedulers = { constant(), constant() }, milestones = { 2 } })
    for _, name in ipairs { "milestones", "_milestones" } do
      raises("expected integers as milestones, found 1.5", function()
        sequence:load_state_dict { [name] = { 1.5 }, last_epoch = 0 }
      end, "type")
      raises("expected 1 milestones for 2 schedules, found 2", function()
        sequence:load_state_dict { [name] = { 1, 2 }, last_epoch = 0 }
      end, "value")
    end
    raises("expected a list of numbers as milestones, found a table", function()
      lr.MultiStepLR(opt, { initial_learning_rate = 1, gamma = 0.5, milestones = { [4] = 1, [6] = 1 } })
    end, "type")
  end)

  --- Writes a file of torch whose 'state' is that of a MultiStepLR with two milestones, in the form without a zip archive.
  local function write_counter(path, counts)
    local function text(word) return "X" .. string.char(#word) .. "\0\0\0" .. word end
    local counter = ("ccollections\nCounter\n}(K%cK%cK%cK%cu\133R"):format(unpack(counts))
    local state = "}(" .. text "milestones" .. counter .. text "last_epoch" .. "K\3u"
    local header = "\128\2\138\10l\252\156F\249 j\168P\25.\128\2M\233\3.\128\2}."
    cbk.fs.write(path, header .. "\128\2}(" .. text "state" .. state .. "u.\128\2].")
  end

  it("of torch has milestones with how often they count", function()
    local function made(milestones)
      return lr.MultiStepLR(optimizer(), { initial_learning_rate = 1, gamma = 0.5, milestones = milestones })
    end
    for i, case in ipairs { { { 1, 1, 2, 1 }, { 1, 2 } }, { { 4, 1, 6, 2 }, { 4, 6, 6 } } } do
      local path, want = ("%s/%d.pt"):format(harness.temp_dir(), i), case[2]
      write_counter(path, case[1])
      for _, options in ipairs { {}, { map_location = "cpu" } } do
        local state = cstorch.load(path, options).state
        equal(made(state.milestones).milestones, want)
        cstorch.save({ state = state }, path .. ".mdl")
        for _, dict in ipairs { state, cstorch.load(path .. ".mdl", options).state } do
          local schedule, same = made { 9 }, made(want)
          schedule:load_state_dict(dict)
          same:load_state_dict { last_epoch = 3 }
          equal(schedule.milestones, want)
          equal(values(schedule, 4), values(same, 4))
        end
      end
    end
    local wrong = made { 9 }
    raises("found 1000000000 at '4'", function()
      wrong:load_state_dict { milestones = cbk.dict { ["4"] = 1e9 }, last_epoch = 0 }
    end, "value")
  end)

  it("refuses what is not one", function()
    local opt = optimizer()
    local schedule = lr.SequentialLR(opt, { schedulers = { lr.ConstantLR(opt, { learning_rate = 1 }) }, milestones = {} })
    raises("expected 1 members in the state dict, found 0", function()
      schedule:load_state_dict { _schedulers = {}, last_epoch = 0 }
    end, "value")
    local function forget() end
    schedule._keep_values = forget
    local before = cstorch.on_warning(forget)
    schedule:load_state_dict { _keep_values = 1, last_epoch = 0 }
    cstorch.on_warning(before)
    is_true(schedule._keep_values == forget, "a function is no state")
    local function now() return { opt.param_groups[1].lr:item(), schedule.last_epoch:item(), schedule.schedulers[1].learning_rate } end
    local unchanged = now()
    raises("one of the tags { 'x' }", function()
      schedule:load_state_dict { param_group_tags = "x", last_epoch = 5, _schedulers = { { learning_rate = 3, last_epoch = 5 } } }
    end, "value")
    raises("expected a number", function()
      schedule:load_state_dict { last_epoch = 5, _schedulers = { { last_epoch = 5, learning_rate = "x" } } }
    end)
    equal(now(), unchanged)
    equal(schedule.schedulers[1].last_epoch:item(), 0)
    raises("one of the tags { 'x' }", function() schedule:load_state_dict { param_group_tags = "x", last_epoch = 0 } end, "value")
    raises("expected a state dict, found 3", function() lr.ConstantLR(optimizer(), { learning_rate = 1 }):load_state_dict(3) end, "type")
  end)
end)

describe("cstorch: a custom schedule", function()
  local WarmupHold = lr.LRScheduler:subclass("WarmupHold", { learning_rate = cstorch.REQUIRED, warmup_steps = cstorch.REQUIRED })
  function WarmupHold:_get_closed_form_lr()
    local t = self.last_epoch:to("float32")
    return ((t + 1) / self.warmup_steps):clamp(nil, 1) * self.learning_rate
  end

  it("is made by name, and saves its keywords", function()
    local schedule = optim.configure_lr_scheduler(optimizer(), { scheduler = "warmuphold", learning_rate = 1, warmup_steps = 4 })
    expect_near(values(schedule, 5), { 0.25, 0.5, 0.75, 1, 1 })
    local dict = schedule:state_dict()
    equal({ dict.learning_rate, dict.warmup_steps, dict.last_epoch:item() }, { 1, 4, 5 })
  end)

  it("keeps its required keywords", function()
    local schedule = WarmupHold(optimizer(), { learning_rate = 1, warmup_steps = 4 })
    raises("WarmupHold: expected a value as 'warmup_steps' in the state dict, found null", function()
      schedule:load_state_dict { warmup_steps = cbk.null, last_epoch = 0 }
    end, "type")
    schedule:step()
  end)

  it("may use the later name of the closed form, and must have one", function()
    local Later = lr.LRScheduler:subclass "Later"
    raises("lacks the abstract method _get_closed_form or _get_closed_form_lr", function() Later(optimizer()) end, "type")
    function Later:_get_closed_form() return self.last_epoch:to("float32") * 2 end
    equal(values(Later(optimizer()), 3), { 0, 2, 4 })
  end)

  it("overrides the closed form of a built-in one", function()
    local Half = lr.ConstantLR:subclass "Half"
    function Half:_get_closed_form_lr() return cstorch.tensor(self.learning_rate / 2) end
    equal(values(Half(optimizer(), { learning_rate = 3 }), 1), { 1.5 })
  end)

  it("gives the functions of LambdaLR", function()
    local Ramp = lr.LambdaLR:subclass "Ramp"
    function Ramp.set_value_lambda() return { function(t) return t + 1 end } end
    equal(values(Ramp(optimizer(), { initial_learning_rate = 3 }), 2), { 3, 6 })
  end)

  it("must return a tensor", function()
    local Number = lr.LRScheduler:subclass "Number"
    function Number._get_closed_form() return 1 end
    raises("the closed form must return a tensor computed from self.last_epoch, not 1", function() Number(optimizer()) end, "type")
  end)
end)

describe("cstorch: the values of a schedule at many clocks", function()
  local rates = { initial_learning_rate = 0.4, end_learning_rate = 0.1, total_iters = 7 }
  local function with(more)
    local out = {}
    for _, fields in ipairs { rates, more } do
      for name, value in pairs(fields) do out[name] = value end
    end
    return out
  end
  local SCHEDULES = {
    ConstantLR = { learning_rate = 0.3 }, PolynomialLR = with { power = 2 }, LinearLR = rates, CosineDecayLR = rates,
    ExponentialLR = { initial_learning_rate = 1, total_iters = 5, decay_rate = 0.5, staircase = true },
    InverseExponentialTimeDecayLR = { initial_learning_rate = 1, step_exponent = 2, total_iters = 5, decay_rate = 0.5 },
    InverseSquareRootDecayLR = { warmup_steps = 4 }, StepLR = { initial_learning_rate = 1, step_size = 3, gamma = 0.5 },
    PiecewiseConstantLR = { learning_rates = { 3, 2, 1 }, milestones = { 2, 9 } },
    MultiStepLR = { initial_learning_rate = 1, gamma = 0.1, milestones = { 2, 9 } },
    CosineAnnealingLR = { initial_learning_rate = 1, T_max = 4 }, LambdaLR = { initial_learning_rate = 2 },
    CosineAnnealingWarmRestarts = { initial_learning_rate = 1, T_0 = 4 },
    MultiplicativeLR = { initial_learning_rate = 1, coefficient = 0.9 },
    CyclicLR = { base_lr = 0.1, max_lr = 1, step_size_up = 3, mode = "triangular2" },
    OneCycleLR = { initial_learning_rate = 0.1, max_lr = 1, total_steps = 12 },
  }

  ---Compares values_at with the values while a schedule of another optimizer is stepped.
  local function compare(make)
    local function made() return make(optimizer { {}, { adjust_learning_rate = 0.5 } }) end
    local steps, schedule, stepped = 14, made(), made()
    local all, tail, some = schedule:values_at(0, steps), schedule:values_at(5, 3), schedule:values_at(1, 3, 4)
    for i = 1, steps do
      for g, want in ipairs(stepped:get_last_lr()) do
        near(all[g]:tolist()[i], want, 1e-6)
        if i > 5 and i <= 8 then near(tail[g]:tolist()[i - 5], want, 1e-6) end
        if i % 4 == 2 and i < 14 then near(some[g]:tolist()[(i + 2) / 4], want, 1e-6) end
      end
      stepped:step()
    end
    equal(schedule.last_epoch:item(), 0)
  end

  for name, arguments in pairs(SCHEDULES) do
    it("are those of its steps: " .. name, function()
      compare(function(opt) return lr[name](opt, arguments) end)
    end)
  end

  it("are those of its steps: schedules made of schedules", function()
    local function sequence(opt)
      local members = { lr.LinearLR(opt, rates), lr.CosineDecayLR(opt, rates), lr.ConstantLR(opt, { learning_rate = 0.2 }) }
      return lr.SequentialLR(opt, { schedulers = members, milestones = { 4, 9 } })
    end
    compare(sequence)
    compare(function(opt) return lr.ScalePerParamLR(opt, { scheduler = sequence(opt) }) end)
    compare(function(opt)
      local second = lr.MultiplicativeLR(opt, { initial_learning_rate = 1, coefficient = 0.9 })
      return lr.ChainedScheduler { schedulers = { lr.LinearLR(opt, rates), second } }
    end)
  end)

  it("are false for groups that are not targeted", function()
    local schedule = lr.LinearLR(optimizer { { tags = "a" }, { tags = "b" } }, with { param_group_tags = "b" })
    local found = schedule:values_at(0, 2)
    equal({ found[1], found[2]:shape() }, { false, { 2 } })
  end)
end)
