-- Gradient scaling, the optimizer step and clipping.

local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises
local amp, optim, utils = cstorch.amp, cstorch.optim, cstorch.nn.utils

local function parameter(list) return cstorch.nn.Parameter(cstorch.tensor(list)) end

local function sgd(p) return optim.SGD({ p }, { lr = 0.5 }) end

describe("cstorch: GradScaler", function()
  it("leaves everything alone off CSX", fresh(function()
    local p = parameter { 1 }
    local opt, scaler = sgd(p), amp.GradScaler { loss_scale = "dynamic" }
    local loss = (p * 3):sum()
    equal(scaler:scale(loss) == loss, true)
    loss:backward()
    scaler:unscale_(opt)
    scaler:step(opt)
    scaler:update()
    equal({ p:item(), next(require("cstorch.ordered_map").keys(scaler:state_dict())) }, { -0.5, nil })
  end))

  it("takes 0 as not given", fresh(function()
    equal(amp.GradScaler({ loss_scale = "dynamic", init_scale = 0 }):get_scale():item(), 32768)
    equal(amp.GradScaler({ loss_scale = 0 }):get_scale():item(), 1)
    equal(amp.GradScaler({}):get_scale():item(), 1)
    equal(amp.GradScaler({ loss_scale = "dynamic", init_scale = 64, max_loss_scale = 16 }):get_scale():item(), 16)
  end))

  --- What a new scaler has after a state dict, and what is warned about.
  local function loaded(options, dict)
    local texts, scaler = {}, amp.GradScaler(options)
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    scaler:load_state_dict(dict)
    cstorch.on_warning(before)
    if cstorch.use_cs() then return texts end
    return { scaler:get_scale():item(), scaler.steps_since_rescale and scaler.steps_since_rescale:item(), texts }
  end

  it("names what a state dict lacks, and what is unknown in it", fresh(function()
    local dynamic, lacks = { loss_scale = "dynamic", init_scale = 4 }, "GradScaler: the state dict lacks "
    equal(loaded(dynamic, {}), { 4, 0, {} })
    equal(loaded(dynamic, { loss_scale = 8, overflows_since_rescale = 1, num_skipped_steps = 3, scael = 5 }), { 8, 0, {
      lacks .. "'steps_since_rescale', which keep their values", "GradScaler: the state dict has 'scael', which this scaler does not use",
    } })
    equal(loaded({ loss_scale = 2 }, { loss_scale = 8, num_skipped_steps = 3 }), { 8, nil,
      { "GradScaler: the state dict has 'num_skipped_steps', which this scaler does not use" } })
    raises("GradScaler: the state dict: expected names as keys, found 1", function() loaded(dynamic, { 5 }) end, "type")
    cstorch.backend "CSX"
    equal(loaded(dynamic, {}),
      { lacks .. "'loss_scale', 'steps_since_rescale', 'overflows_since_rescale', 'num_skipped_steps', which keep their values" })
  end))

  it("loads a state dict of torch whose scale changes in the same way", fresh(function()
    local function of_torch(changes)
      local dict = { scale = cstorch.tensor(1024), growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000, _growth_tracker = 5 }
      for name, value in pairs(changes) do dict[name] = value end
      return dict
    end
    local dynamic = { loss_scale = "dynamic" }
    equal(loaded(dynamic, of_torch {}), { 1024, 5, {} })
    for text, changes in pairs {
      ["expected growth_factor 2 in the state dict of torch, found 4"] = { growth_factor = 4 },
      ["expected backoff_factor 0.5 in the state dict of torch, found 0.25"] = { backoff_factor = 0.25 },
      ["found 100; make the scaler with this number as steps_per_increase"] = { growth_interval = 100 },
    } do
      raises(text, function() loaded(dynamic, of_torch(changes)) end, "value")
    end
  end))

  it("loads plain numbers", fresh(function()
    local scaler = amp.GradScaler { loss_scale = "dynamic" }
    scaler:load_state_dict {
      loss_scale = 8, num_skipped_steps = cstorch.tensor(3), steps_since_rescale = 0, overflows_since_rescale = 0,
    }
    equal({ scaler:get_scale():item(), scaler:get_num_skipped_steps():item(), scaler:get_num_skipped_steps().dtype }, { 8, 3, "int64" })
    raises("expected a state dict, found 5", function() scaler:load_state_dict(5) end, "type")
  end))

  for _, case in ipairs {
    { { loss_scale = "static" }, "loss_scale must be a number or 'dynamic', not 'static'", "value" },
    { { loss_scale = "dynamic", min_loss_scale = 2 ^ -15 }, "min_loss_scale must be >= 2^-14", "value" },
    { { loss_scale = "dynamic", overflow_tolerance = -1 }, "overflow_tolerance must be >= 0, not -1", "value" },
    { { loss_scale = "dynamic", init_scale = "x" }, "expected a number as init_scale, found 'x'", "type" },
    { { scale = 1 }, "unknown keyword 'scale'", "type" },
  } do
    it("refuses: " .. case[2], fresh(function() raises(case[2], function() amp.GradScaler(case[1]) end, case[3]) end))
  end

  it("goes through its stages in order on CSX", fresh(function()
    cstorch.backend "CSX"
    local model = cstorch.nn.Sequential(cstorch.nn.Linear(1, 1))
    cstorch.compile(model, { backend = cstorch.backend() })
    local p = model:parameters()[1]
    local opt = sgd(p)
    local scaler = amp.GradScaler { loss_scale = 4 }
    raises("update takes no argument", function() scaler:update(2) end, "value")
    raises("scale: expected a tensor, found 5", function() scaler:scale(5) end, "type")
    raises("unscale_: expected an optimizer", function() scaler:unscale_(5) end, "type")
    local loss = (p * 1):sum()
    scaler:scale(loss)
    raises("scale was called twice", function() scaler:scale(loss) end, "runtime")
    scaler:step(opt)
    raises("step was called twice", function() scaler:step(opt) end, "runtime")
    raises("unscale_ was called after step", function() scaler:unscale_(opt) end, "runtime")
    scaler:update()
    p.grad = cstorch.zeros_like(p)
    raises("gradients are left from the step before", function() scaler:scale(loss) end, "runtime")
    local dynamic = amp.GradScaler { loss_scale = "dynamic" }
    raises("no optimizer was stepped", function() dynamic:update() end, "runtime")
  end))
end)

describe("cstorch: optimizer_step", function()
  it("steps several optimizers over gradients clipped together", fresh(function()
    local p, q = parameter { 0 }, parameter { 0 }
    amp.optimizer_step((p * 30 + q * 40):sum(), { sgd(p), sgd(q) }, nil, { max_gradient_norm = 5 })
    harness.near(p:item(), -1.5, 1e-5)
    harness.near(q:item(), -2, 1e-5)
    equal({ p.grad, q.grad }, {})
  end))

  it("takes both names of the limit", fresh(function()
    for _, name in ipairs { "max_gradient_value", "max_gradient_val" } do
      local p = parameter { 0 }
      amp.optimizer_step((p * 30):sum(), sgd(p), nil, { [name] = 2 })
      equal(p:item(), -1, name)
    end
  end))

  for _, case in ipairs {
    { "expected a tensor as loss, found 5", "value", 5 },
    { "expected an optimizer or a list of optimizers, found 'x'", "type", nil, "x" },
    { "item 1 of the optimizers is 3", "type", nil, { 3 } },
    { "expected a GradScaler or nil, found 2", "type", nil, nil, 2 },
    { "max_gradient_norm must be >= 0, not -1", "value", nil, nil, nil, { max_gradient_norm = -1 } },
    { "exclude each other", "value", nil, nil, nil, { max_gradient_norm = 1, max_gradient_value = 1 } },
    { "unknown keyword 'max_norm'", "type", nil, nil, nil, { max_norm = 1 } },
  } do
    it("refuses: " .. case[1], fresh(function()
      local p = parameter { 1 }
      local loss, opt = case[3] or (p * 2):sum(), case[4] or sgd(p)
      raises(case[1], function() amp.optimizer_step(loss, opt, case[5], case[6]) end, case[2])
    end))
  end
end)

describe("cstorch: clipping", function()
  it("keeps the precision and the range of float64", function()
    local p = cstorch.nn.Parameter(cstorch.tensor({ 1, 2 }, { dtype = "float64" }))
    p.grad = cstorch.tensor({ 3e100, 4e100 }, { dtype = "float64" })
    harness.near(utils.clip_grad_norm_(p, 1):item() / 5e100, 1, 1e-15)
    harness.near(p.grad:select(0, 0):item(), 0.6, 1e-15)
  end)

  it("refuses limits below 0, which would turn gradients round", function()
    local p = cstorch.nn.Parameter(cstorch.tensor { 1 })
    raises("max_norm must be >= 0, not -1", function() utils.clip_grad_norm_(p, -1) end, "value")
    raises("limit must be >= 0, not -1", function() utils.clip_grad_value_(p, -1) end, "value")
  end)

  it("takes one parameter, and leaves out those without gradients", fresh(function()
    local p, q = parameter { 1 }, parameter { 1 }
    p.grad = cstorch.tensor { 8 }
    equal(utils.clip_grad_norm_({ p, q }, 2):item(), 8)
    harness.near(p.grad:item(), 2, 1e-5)
    utils.clip_grad_value_(p, 0.5)
    equal(p.grad:item(), 0.5)
    equal(utils.clip_grad_norm_(q, 1):item(), 0)
  end))

  it("refuses what it cannot clip", fresh(function()
    raises("clip_grad_norm_: expected a list of parameters, found 3", function() utils.clip_grad_norm_(3, 1) end, "type")
    raises("item 1 of the parameters is 'x', not a tensor", function() utils.clip_grad_value_({ "x" }, 1) end, "type")
    raises("expected a number as limit, found nil", function() utils.clip_grad_value_({}) end, "type")
  end))
end)
