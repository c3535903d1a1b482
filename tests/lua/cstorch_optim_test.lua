-- Optimizers: groups, state, hooks, state dicts, and the errors of each class.

local cbk = require "cbk"
local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local optim = cstorch.optim

local function parameter(list, options) return cstorch.nn.Parameter(cstorch.tensor(list), options) end

local function with_grad(p, grad)
  p.grad = cstorch.tensor(grad)
  return p
end

local ALL = {
  "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adafactor", "Adamax", "ASGD", "Lamb", "Lion", "NAdam", "RAdam", "RMSprop", "Rprop",
  "Muon",
}

describe("cstorch: optimizer", function()
  it("completes groups from the defaults, and keeps their extra keys", function()
    local a, b = parameter { 1 }, parameter { 2 }
    local opt = optim.SGD({ { params = { a }, lr = 0.5, tags = "norm", mark = "x" }, { params = b } }, { lr = 0.1, momentum = 0.9 })
    local first, second = opt.param_groups[1], opt.param_groups[2]
    equal({ first.lr, first.momentum, first.mark, first.tags }, { 0.5, 0.9, "x", { "norm" } })
    equal({ second.lr, second.momentum, second.tags }, { 0.1, 0.9, nil })
    is_true(first.params[1] == a and second.params[1] == b)
  end)

  it("has state for each of its parameters", function()
    local a, b = parameter { 1, 2 }, parameter { 3 }
    local opt = optim.AdamW { a, b }
    local names = {}
    for name in cstorch.items(opt.state[a]) do names[#names + 1] = name end
    equal(names, { "exp_avg", "exp_avg_sq", "beta1_power", "beta2_power" })
    equal(opt.state[a].exp_avg:tolist(), { 0, 0 })
    equal(opt.state[parameter { 1 }], nil)
    local plain = optim.SGD({ a }, { lr = 1 })
    equal(next(require("cstorch.ordered_map").keys(plain.state[a])), nil)
  end)

  it("leaves a parameter without gradient alone", function()
    local a, b = with_grad(parameter { 1 }, { 1 }), parameter { 1 }
    local opt = optim.SGD({ a, b }, { lr = 0.5, momentum = 0.9, weight_decay = 1 })
    opt:step()
    equal({ a:item(), b:item(), opt.state[b].momentum_buffer:item() }, { 0, 1, 0 })
    opt:zero_grad()
    equal({ a.grad, b.grad }, {})
  end)

  it("calls the closure of a step, which may record gradients", function()
    local p = parameter { 2 }
    local opt = optim.SGD({ p }, { lr = 0.1 })
    local recorded
    local loss = opt:step(function()
      recorded = cstorch.is_grad_enabled()
      local loss = (p * p):sum()
      loss:backward()
      return loss
    end)
    equal({ recorded, loss:item() }, { true, 4 })
    harness.near(p:item(), 1.6, 1e-6)
    raises("expected a function or nothing, found 3", function() opt:step(3) end, "type")
  end)

  it("runs hooks in order and removes them by their handles", function()
    local p, log = with_grad(parameter { 1 }, { 1 }), {}
    local opt = optim.SGD({ p }, { lr = 1 })
    local function note(word) return function() log[#log + 1] = word end end
    opt:register_step_pre_hook(note "pre")
    local handle = opt:register_step_pre_hook(note "gone")
    opt:register_step_post_hook(note "post")
    opt:register_zero_grad_pre_hook(note "zero")
    opt:register_zero_grad_post_hook(note "zeroed")
    opt:register_load_state_dict_post_hook(note "loaded")
    handle:remove()
    opt:step()
    opt:zero_grad()
    opt:load_state_dict(opt:state_dict())
    equal(log, { "pre", "post", "zero", "zeroed", "loaded" })
    opt:register_zero_grad_pre_hook(function() return 5 end)
    raises("may return nil or a table, not 5", function() opt:zero_grad() end, "runtime")
  end)

  it("fills gradients with zeros on request, with a warning", function()
    local warned
    local p = with_grad(parameter { 1 }, { 1 })
    local opt = optim.SGD({ p }, { lr = 1 })
    cstorch.testing.reset()
    local before = cstorch.on_warning(function(text) warned = text end)
    opt:zero_grad { set_to_none = false }
    cstorch.on_warning(before)
    equal(p.grad:tolist(), { 0 })
    is_true(warned:find "changes the compiled graph")
  end)

  it("names what was changed since it was made", function()
    local function change(f, kind, text)
      local p = with_grad(parameter { 1 }, { 1 })
      local opt = optim.AdamW({ p })
      f(opt, opt.param_groups[1], p)
      raises(text, function() opt:step() end, kind)
    end
    change(function(_, group) group.amsgrad = true end, "value", "no tensor as state 'max_exp_avg_sq'")
    change(function(opt, _, p) opt.state[p].exp_avg = nil end, "value", "no tensor as state 'exp_avg'")
    change(function(_, group) group.params[2] = with_grad(parameter { 1 }, { 1 }) end, "value", "parameter 2 of group 1 was added later")
    change(function(opt, _, p) opt.state[p].exp_avg = 3 end, "value", "no tensor as state 'exp_avg'")
    local function three() return 3 end
    raises("expected a tensor or nil for 'exp_avg', found 3", function() optim.Lion({ parameter { 1 } }):visit_state(three) end, "type")
    change(function(_, group) group.lr = nil end, "value", "a group has no 'lr'")
    change(function(_, group) group.lr = "x" end, "type", "expected a number as lr, found 'x'")
    local opt = optim.SGD({ with_grad(parameter { 1 }, { 1 }) }, { lr = 1 })
    opt.param_groups[1].momentum = 0.9
    raises("no tensor as state 'momentum_buffer'", function() opt:step() end, "value")
  end)

  it("takes tensors as hyper-parameters", function()
    for _, name in ipairs { "ASGD", "RMSprop", "SGD", "Rprop" } do
      local p = with_grad(parameter { 1 }, { 1 })
      local one = cstorch.tensor(0.5)
      optim[name]({ p }, { lr = one, momentum = (name == "RMSprop" or name == "SGD") and one or nil }):step()
      is_true(p:item() < 1, name)
    end
  end)

  it("counts steps only when asked to", function()
    local p = parameter { 1 }
    equal(optim.NAdam({ p }):increment_global_step(p):item(), 1)
    local opt = optim.SGD({ p }, { lr = 1 })
    raises("SGD has no step counter", function() opt:increment_global_step(p) end, "runtime")
  end)

  it("applies functions and objects, and visits state", function()
    local p = parameter { 1, 2 }
    local opt = optim.Lion { p }
    opt:apply(function(self) self.mark = "f" end)
    equal(opt.mark, "f")
    opt:apply { apply = function(_, self) self.mark = "o" end }
    equal(opt.mark, "o")
    raises("expected a function or an object with 'apply'", function() opt:apply(1) end, "type")
    raises("found a ", function() opt:apply(opt) end, "type") -- whose `apply` would apply this one
    opt:visit_state(function(value) return value + 1 end)
    equal(opt.state[p].exp_avg:tolist(), { 1, 1 })
  end)

  it("names the state that follows a sparsity mask", function()
    local p = parameter { { 1, 2 } }
    equal(optim.AdamW({ p }):state_names_to_sparsify(), { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" })
    equal(optim.Muon({ p }):state_names_to_sparsify(), {})
  end)

  for name, case in pairs {
    ["an empty list"] = { "the list of parameters is empty", {}, "value" },
    ["one tensor"] = { "found one tensor; put it in { }", "tensor", "type" },
    ["a number among the parameters"] = { "parameter 2 of group 1 is 5, not a tensor", "mixed", "type" },
    ["a group without params"] = { "group 1 has no 'params'", { { lr = 1 } }, "value" },
    ["a string"] = { "expected a list such as model:parameters(), or of groups, found 'x'", "x", "type" },
  } do
    it("refuses " .. name, function()
      local p = parameter { 1 }
      local params = case[2] == "tensor" and p or case[2] == "mixed" and { p, 5 } or case[2]
      raises(case[1], function() optim.SGD(params, { lr = 1 }) end, case[3])
    end)
  end

  it("refuses a parameter that occurs twice", function()
    local p = parameter { 1 }
    raises("is already in group 1", function() optim.SGD({ { params = { p } }, { params = { p } } }, { lr = 1 }) end, "value")
  end)

  for _, name in ipairs(ALL) do
    it(name .. " saves and restores its state", function()
      local function make()
        local p = parameter { { 1, 2, 3 }, { 4, 5, 6 } }
        return p, optim[name]({ p }, { lr = 0.01 })
      end
      local p, opt = make()
      local q, other = make()
      for t = 1, 3 do
        with_grad(p, { { t, -1, 2 }, { 0.5, t, -t } })
        opt:step()
      end
      other:load_state_dict(opt:state_dict())
      q:requires_grad_(false):copy_(p)
      for _, pair in ipairs { { p, opt }, { q, other } } do
        with_grad(pair[1], { { 1, 1, -1 }, { 2, -2, 0.25 } })
        pair[2]:step()
      end
      equal(q:tolist(), p:tolist())
      for state_name, value in cstorch.items(opt.state[p]) do equal(other.state[q][state_name]:tolist(), value:tolist(), state_name) end
    end)

    it(name .. " refuses a negative rate, text, and unknown names", function()
      local params = { parameter { { 1, 2 } } }
      raises("lr must be >= 0, not -1", function() optim[name](params, { lr = -1 }) end, "value")
      raises("expected a number as lr, found 'x'", function() optim[name](params, { lr = "x" }) end, "type")
      raises("unknown keyword 'learning_rate'", function() optim[name](params, { learning_rate = 1 }) end, "type")
    end)
  end

  for _, case in ipairs {
    { "SGD", { lr = 1, nesterov = true }, "nesterov needs momentum > 0" },
    { "SGD", { lr = 1, momentum = -0.5 }, "momentum must be >= 0, not -0.5" },
    { "SGD", { lr = 1, momentum = 0.9, dampening = 0.1, nesterov = true }, "dampening 0" },
    { "AdamW", { betas = { 0.9, 1 } }, "element 2 of betas must be in [0, 1), not 1" },
    { "Adam", { eps = -1 }, "eps must be >= 0" },
    { "Adagrad", { lr_decay = -1 }, "lr_decay must be >= 0" },
    { "Adadelta", { rho = 1.5 }, "rho must be in [0, 1], not 1.5" },
    { "Adafactor", { lr = 1, clip_threshold = 2 }, "clip_threshold must be 1, not 2" },
    { "Adafactor", { lr = 1, beta1 = 0.9 }, "beta1 is not supported" },
    { "Adafactor", { relative_step = true }, "relative_step is not supported" },
    { "Adafactor", { lr = 1, relative_step = true }, "exclude each other" },
    { "Adafactor", { lr = 1, warmup_init = true }, "warmup_init needs relative_step" },
    { "Adafactor", { lr = 1, eps = { 1 } }, "expected a list of 2 numbers as eps, found a list of 1", "type" },
    { "NAdam", { momentum_decay = -1 }, "momentum_decay must be >= 0" },
    { "RMSprop", { alpha = -1 }, "alpha must be >= 0" },
    { "Muon", { momentum = 1 }, "momentum must be in [0, 1), not 1" },
    { "Lion", { betas = { 0.9 } }, "expected a list of 2 numbers as betas, found a list of 1", "type" },
    { "Lion", { betas = 0.9 }, "expected a list of 2 numbers as betas, found 0.9", "type" },
    { "SGD", { lr = 1, maximize = "yes" }, "expected true or false as maximize, found 'yes'", "type" },
    { "SGD", {}, "keyword 'lr' is missing", "type" },
  } do
    it(("%s refuses what its constructor must: %s"):format(case[1], case[3]), function()
      raises(case[3], function() optim[case[1]]({ parameter { { 1, 2 } } }, case[2]) end, case[4] or "value")
    end)
  end

  it("Adafactor without a rate fails at its first step only", function()
    local p = with_grad(parameter { 1 }, { 1 })
    local opt = optim.Adafactor { p }
    raises("there is no learning rate", function() opt:step() end, "value")
  end)

  it("Muon refuses parameters that are not matrices", function()
    raises("expected parameters with 2 or 4 dims, found 1", function() optim.Muon { parameter { 1, 2 } } end, "value")
  end)
end)

describe("cstorch: optimizer state dict", function()
  it("is refused where it asks for a step that the class does not compute", function()
    for name, flag in pairs { Adam = "maximize", AdamW = "maximize", NAdam = "decoupled_weight_decay" } do
      local optimizer = optim[name]({ parameter { 1, 2 } }, { lr = 0.1 })
      local state = optimizer:state_dict()
      state.param_groups[1][flag], state.param_groups[1].foreach = false, true
      optimizer:load_state_dict(state)
      state.param_groups[1][flag] = true
      raises(flag .. "=true, which " .. name .. " does not compute", function() optimizer:load_state_dict(state) end)
    end
  end)

  it("numbers parameters over all groups from 0", function()
    local groups = { { params = { parameter { 1 } } }, { params = { parameter { 2 }, parameter { 3 } } } }
    local opt = optim.SGD(groups, { lr = 0.1, momentum = 0.9 })
    local dict = opt:state_dict()
    equal({ dict.param_groups[1].params, dict.param_groups[2].params, dict.param_groups[1].lr }, { { 0 }, { 1, 2 }, 0.1 })
    is_true(dict.state[2].momentum_buffer and not dict.state[3])
  end)

  it("has names as keys in groups and in the state of a parameter", function()
    local opt = optim.SGD({ parameter { 1 } }, { lr = 0.1, momentum = 0.9 })
    for _, key in ipairs { 1, true } do
      local dict = opt:state_dict()
      raises("group 1 of the state dict: expected names as keys, found " .. tostring(key), function()
        opt:load_state_dict { param_groups = { { [key] = 5, params = { 0 } } } }
      end, "type")
      raises("the state of parameter 0: expected names as keys, found " .. tostring(key), function()
        opt:load_state_dict { param_groups = dict.param_groups, state = { [0] = { [key] = 5, momentum_buffer = cstorch.ones { 1 } } } }
      end, "type")
    end
    local dict = opt:state_dict()
    dict.param_groups[1][1] = 5
    raises("expected names as keys, found 1", function() opt:load_state_dict(dict) end, "type")
  end)

  it("loads hyper-parameters, and text in the place of integer keys", function()
    local p = parameter { 1, 2 }
    local opt = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 })
    opt:load_state_dict {
      state = { ["0"] = { momentum_buffer = cstorch.tensor { 3, 4 } } },
      param_groups = { { lr = cstorch.tensor(0.5), nesterov = true, params = { 0 } } },
    }
    equal(opt.state[p].momentum_buffer:tolist(), { 3, 4 })
    equal({ opt.param_groups[1].lr, opt.param_groups[1].nesterov, opt.param_groups[1].momentum }, { 0.5, true, 0.9 })
  end)

  it("turns steps of torch into powers of the betas", function()
    local p = parameter { 1 }
    local opt = optim.AdamW({ p }, { betas = { 0.5, 0.25 } })
    opt:load_state_dict {
      state = { [0] = { step = 3, exp_avg = cstorch.tensor { 1 }, exp_avg_sq = cstorch.tensor { 2 } } },
      param_groups = { { lr = 0.1, betas = { 0.5, 0.25 }, params = { 0 } } },
    }
    equal({ opt.state[p].beta1_power:item(), opt.state[p].beta2_power:item(), opt.state[p].step }, { 0.125, 0.015625 })
  end)

  it("turns steps of torch into the power of the next step: Adamax", function()
    local p = with_grad(parameter { 1 }, { 1 })
    local opt = optim.Adamax({ p }, { betas = { 0.5, 0.25 } })
    for _ = 1, 3 do opt:step() end
    local power, dict = opt.state[p].beta1_power:item(), opt:state_dict()
    dict.state[0].beta1_power, dict.state[0].step = nil, cstorch.tensor(3)
    opt:step()
    opt:load_state_dict(dict)
    equal({ opt.state[p].beta1_power:item(), opt.state[p].step }, { power, nil })
    dict.state[0].step = "x"
    raises("Adamax: the state dict has a step or betas that are no numbers", function() opt:load_state_dict(dict) end, "type")
  end)

  it("takes the L2 rate of Adam from weight_decay of torch", function()
    local opt = optim.Adam({ parameter { 1 } })
    opt:load_state_dict { state = {}, param_groups = { { weight_decay = 0.3, params = { 0 } } } }
    equal({ opt.param_groups[1].l2_regularization_rate, opt.param_groups[1].weight_decay }, { 0.3, 0 })
  end)

  --- An optimizer with a momentum of 1 for parameter "a", 2 for "b" and so on.
  local function named(names)
    local params = {}
    for k in ipairs(names) do params[k] = parameter { 1 } end
    local opt = optim.SGD({ { params = params, param_names = names } }, { lr = 0.1, momentum = 0.9 })
    for k, p in ipairs(params) do opt.state[p].momentum_buffer:fill_(names[k]:byte() - 96) end
    return opt
  end

  it("is matched by the names of parameters, where both sides have some", function()
    local path = harness.temp_dir() .. "/names.mdl"
    cstorch.save(named({ "a", "b", "c" }):state_dict(), path)
    for _, options in ipairs { {}, { map_location = "cpu" } } do
      local opt, found = named { "c", "x", "a" }, {}
      opt.param_groups[1].param_names[2] = "b"
      opt:load_state_dict(cstorch.load(path, options))
      for k, p in ipairs(opt.param_groups[1].params) do found[k] = opt.state[p].momentum_buffer:item() end
      equal({ found, opt.param_groups[1].param_names }, { { 3, 2, 1 }, { "c", "b", "a" } })
    end
    for text, names in pairs {
      ["group 1 of the state dict does not have the parameters of SGD, by its param_names: missing 'x'; unknown 'a', 'c'"] = { "b", "x" },
      ["two parameters of group 1 of SGD have the name 'b' in param_names"] = { "a", "b", "b" },
    } do
      raises(text, function() named(names):load_state_dict(cstorch.load(path)) end, "value")
    end
    local dict = named({ "a", "b" }):state_dict()
    dict.param_groups[1].param_names = { "a" }
    raises("the names of 2 parameters as param_names of group 1 of the state dict, found 1", function()
      named({ "a", "b" }):load_state_dict(dict)
    end, "type")
  end)

  it("may have no names, or be the only one with names", function()
    local dict = named({ "a", "b" }):state_dict()
    local opt = optim.SGD({ parameter { 1 }, parameter { 1 } }, { lr = 0.1, momentum = 0.9 })
    opt:load_state_dict(dict)
    equal(opt.param_groups[1].param_names, { "a", "b" })
    dict.param_groups[1].param_names = nil
    opt = named { "x", "y" }
    opt:load_state_dict(dict)
    equal({ opt.state[opt.param_groups[1].params[1]].momentum_buffer:item(), opt.param_groups[1].param_names }, { 1, { "x", "y" } })
  end)

  it("is refused where it has states of no parameter", function()
    local dict = named({ "a", "b" }):state_dict()
    for key, state in pairs {
      ["'a', 'b'"] = { a = dict.state[0], b = dict.state[1] }, ["'2'"] = { [0] = dict.state[0], [1] = dict.state[1], [2] = dict.state[1] },
    } do
      raises("states of parameters that are in none of its groups: " .. key, function()
        named({ "a", "b" }):load_state_dict { state = state, param_groups = dict.param_groups }
      end, "value")
    end
  end)

  it("without a state begins anew, in the same tensors, with a warning", fresh(function()
    local texts = {}
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local opt = named { "a", "b", "c" }
    local dict, tensors, found = opt:state_dict(), {}, {}
    dict.state[0], dict.state[2] = nil, nil
    local params = opt.param_groups[1].params
    for k, p in ipairs(params) do tensors[k] = opt.state[p].momentum_buffer end
    params[3].requires_grad = false
    opt:load_state_dict(dict)
    for k, p in ipairs(params) do found[k] = { opt.state[p].momentum_buffer:item(), rawequal(opt.state[p].momentum_buffer, tensors[k]) } end
    equal(found, { { 0, true }, { 2, true }, { 0, true } })
    local adafactor = optim.Adafactor({ with_grad(params[1], { 1 }) }, { lr = 0.1 })
    adafactor:step()
    adafactor:load_state_dict { state = {}, param_groups = { { params = { 0 } } } }
    equal(adafactor.state[params[1]].step:item(), 0)
    local plain = optim.SGD({ params[1] }, { lr = 0.1 })
    plain:load_state_dict { state = { [0] = { momentum_buffer = cbk.null } }, param_groups = { { momentum = 0, params = { 0 } } } }
    cstorch.on_warning(before)
    equal(texts, { "SGD: the state dict has no state for 1 of 3 parameters (0): they begin with the state of a new optimizer",
      "Adafactor: the state dict has no state for 1 of 1 parameters (0): they begin with the state of a new optimizer" })
  end))

  for text, case in pairs {
    ["Adafactor: beta1 is not supported"] = { "Adafactor", { beta1 = 0.9 } },
    ["Adafactor: relative_step is not supported"] = { "Adafactor", { relative_step = true } },
    ["Adafactor: clip_threshold must be 1, not 2"] = { "Adafactor", { clip_threshold = 2 } },
    ["AdamW: l2_regularization_rate must be 0, not 0.1"] = { "AdamW", { l2_regularization_rate = 0.1 } },
    ["Adam: correct_bias must be true"] = { "Adam", { correct_bias = false } },
    ["SGD: nesterov needs momentum > 0 and dampening 0"] = { "SGD", { nesterov = true } },
  } do
    it("and a group are refused where the constructor is: " .. text, function()
      local opt = optim[case[1]]({ parameter { 1 } }, { lr = 0.1 })
      local dict, before = opt:state_dict(), opt.param_groups[1][next(case[2])]
      for key, value in pairs(case[2]) do dict.param_groups[1][key] = value end
      raises(text, function() opt:load_state_dict(dict) end, "value")
      equal(opt.param_groups[1][next(case[2])], before)
      local group = { params = { parameter { 1 } }, lr = 0.1 }
      for key, value in pairs(case[2]) do group[key] = value end
      raises(text, function() optim[case[1]]({ group }, { lr = 0.1 }) end, "value")
    end)
  end

  it("drops state that its hyper-parameters do not need", function()
    local p = parameter { 1 }
    local dict = optim.AdamW({ p }):state_dict()
    local opt = optim.AdamW({ p }, { amsgrad = true })
    opt:load_state_dict(dict)
    equal({ opt.state[p].max_exp_avg_sq, opt.param_groups[1].amsgrad }, { nil, false })
  end)

  for name, case in pairs {
    ["another number of groups"] = { "has 2 parameter groups, SGD has 1", { param_groups = { { params = { 0 } }, { params = {} } } } },
    ["another number of parameters"] = { "group 1 of the state dict has 2 parameters", { param_groups = { { params = { 0, 1 } } } } },
    ["no groups"] = { "no 'param_groups' in it", {} },
    ["a number"] = { "expected the state dict of an optimizer", 5 },
    ["missing state"] = { "has no 'momentum_buffer', which SGD needs",
      { state = { [0] = { other = 1 } }, param_groups = { { params = { 0 } } } } },
    ["text as state"] = { "expected a tensor, found 'x'",
      { state = { [0] = { momentum_buffer = "x" } }, param_groups = { { params = { 0 } } } }, "type" },
  } do
    it("refuses " .. name, function()
      local opt = optim.SGD({ parameter { 1 } }, { lr = 0.1, momentum = 0.9 })
      raises(case[1], function() opt:load_state_dict(case[2]) end, case[3] or "value")
    end)
  end

  for name, options in pairs {
    AdamW = { lr = 0.1 }, Adam = {}, RMSprop = {}, Adagrad = {}, Adadelta = {}, Adamax = {}, NAdam = {}, RAdam = {}, Lamb = {},
  } do
    it("keeps squares of small gradients of half precision: " .. name, function()
      local values = {}
      for i, dtype in ipairs { "float16", "float32" } do
        local p = cstorch.nn.Parameter(cstorch.tensor({ 3, -2 }, { dtype = dtype }))
        local opt = optim[name]({ p }, options)
        for _ = 1, 6 do
          p.grad = cstorch.tensor({ 2 ^ -10, -2 ^ -11 }, { dtype = dtype })
          opt:step()
        end
        values[i] = p:to "float32"
      end
      is_true((values[1] - values[2]):abs():amax():item() < 0.01, tostring(values[1]))
    end)
  end

  it("scales by large parameters of half precision: Adafactor", function()
    local p = cstorch.nn.Parameter(cstorch.tensor({ { 300, 400 }, { 500, -300 } }, { dtype = "float16" }))
    p.grad = cstorch.ones({ 2, 2 }, { dtype = "float16" })
    optim.Adafactor({ p }, { lr = 0.01 }):step()
    for i, want in ipairs { 296, 396, 496, -304 } do harness.near(p:flatten():tolist()[i], want, 0.5) end
  end)

  it("changes nothing when a state dict does not fit", function()
    local a, b = parameter { 1 }, parameter { 2, 3 }
    local opt = optim.AdamW({ { params = a }, { params = b } }, { lr = 0.1 })
    local schedule = optim.lr_scheduler.ConstantLR(opt, { learning_rate = 0.25 })
    local function values()
      local groups = {}
      for g, group in ipairs(opt.param_groups) do
        groups[g] = { cstorch.value(group.lr), group.eps, group.amsgrad, group.extra or false }
      end
      return { groups, opt.state[a].exp_avg:tolist(), opt.state[a].exp_avg_sq:tolist(), opt.state[a].max_exp_avg_sq ~= nil }
    end
    local before = values()
    local fine = { exp_avg = cstorch.ones { 1 }, exp_avg_sq = cstorch.ones { 1 }, beta1_power = 0.5, beta2_power = 0.5 }
    local first = { lr = 0.5, eps = 0.25, amsgrad = true, extra = 1, params = { 0 } }
    for _, second in ipairs {
      { state = { exp_avg = cstorch.ones { 3 } }, message = "has no 'exp_avg_sq'" },
      { state = { exp_avg = cstorch.ones { 3 }, exp_avg_sq = cstorch.ones { 2 }, beta1_power = 1, beta2_power = 1 },
        message = "expected shape" },
      { group = { eps = "x" }, message = "expected a number as eps" },
      { group = { params = { "y" } }, message = "expected numbers as params" },
    } do
      local group = second.group or {}
      group.params = group.params or { 1 }
      raises(second.message, function()
        opt:load_state_dict { state = { [0] = fine, [1] = second.state }, param_groups = { first, group } }
      end)
      equal(values(), before)
    end
    equal(schedule:get_last_lr(), { 0.25, 0.25 })
  end)

  it("makes the state that loaded hyper-parameters need", function()
    local p = with_grad(parameter { 1 }, { 1 })
    local opt = optim.AdamW({ p })
    opt:load_state_dict { state = {}, param_groups = { { amsgrad = true, params = { 0 } } } }
    opt:step()
    is_true(opt.state[p].max_exp_avg_sq:item() > 0)
    local function load(group) optim.AdamW({ parameter { 1 } }):load_state_dict { param_groups = { group } } end
    raises("0-dim tensor as lr, found shape [2]", function() load { lr = cstorch.tensor { 1, 2 }, params = { 0 } } end, "value")
    raises("a list of 2 numbers as betas", function() load { betas = cstorch.tensor { 1, 2 }, params = { 0 } } end, "type")
  end)

  it("refuses another shape", function()
    local opt = optim.SGD({ parameter { 1 } }, { lr = 0.1, momentum = 0.9 })
    local dict = { state = { [0] = { momentum_buffer = cstorch.tensor { 1, 2 } } }, param_groups = { { params = { 0 } } } }
    raises("state 'momentum_buffer' of parameter 0: expected shape [1], found [2]", function() opt:load_state_dict(dict) end, "value")
  end)
end)

describe("cstorch: a custom optimizer", function()
  local function signum()
    local Signum = optim.Optimizer:subclass("Signum", { lr = cstorch.REQUIRED, momentum = 0.9, weight_decay = 0 })
    function Signum:init(params, kw)
      cstorch.check(kw.lr >= 0, "value", "Signum: lr must be >= 0, not %g", kw.lr)
      Signum.super.init(self, params, kw, { enable_global_step = true })
    end
    function Signum:preinitialize()
      for _, group in ipairs(self.param_groups) do
        for _, p in ipairs(group.params) do self.state[p].momentum_buffer = cstorch.zeros_like(p) end
      end
    end
    return Signum
  end

  it("works like the built-in ones", function()
    local Signum = signum()
    function Signum:step(closure)
      local loss = closure and closure()
      for _, group in ipairs(self.param_groups) do
        for _, p in ipairs(group.params) do
          if p.grad then
            self:increment_global_step(p)
            local m = self.state[p].momentum_buffer
            m:mul_(group.momentum):add_(p.grad * (1 - group.momentum))
            p:sub_((m:sign() + p * group.weight_decay) * group.lr)
          end
        end
      end
      return loss
    end
    local p = with_grad(parameter { 1, 1 }, { 5, -5 })
    local opt = optim.configure_optimizer { optimizer_type = "signum", params = { p }, lr = 0.25 }
    opt:step()
    equal(p:tolist(), { 0.75, 1.25 })
    equal(opt.state[p].step:item(), 1)
    is_true(opt.class == Signum)
  end)

  it("may keep numbers in its state", function()
    local Counted = optim.Optimizer:subclass("Counted", { lr = cstorch.REQUIRED })
    function Counted:preinitialize()
      for _, state in self:parameters() do state.n = 0 end
    end
    function Counted:step()
      for p, grad, state, group in self:gradients() do
        state.n = state.n + 1
        p:sub_(grad * group.lr)
      end
    end
    local p = with_grad(parameter { 1 }, { 1 })
    local opt = Counted({ p }, { lr = 0.25 })
    opt.state[p].n = 3
    local path = harness.temp_dir() .. "/counted.mdl"
    cstorch.save(opt:state_dict(), path)
    local with_tensor = { state = { [0] = { n = cstorch.tensor(3) } }, param_groups = { { params = { 0 } } } }
    for _, state in ipairs { opt:state_dict(), cstorch.load(path), with_tensor } do
      opt.state[p].n = 0
      opt:load_state_dict(state)
      equal(opt.state[p].n, 3)
    end
    raises("state 'n' of parameter 0: expected a number, found 'x'", function()
      opt:load_state_dict { state = { [0] = { n = "x" } }, param_groups = { { params = { 0 } } } }
    end, "type")
  end)

  it("must have step and preinitialize", function()
    local Signum = signum()
    raises("lacks the abstract method step", function() Signum({ parameter { 1 } }, { lr = 1 }) end, "type")
    local Empty = optim.Optimizer:subclass("Empty", {})
    raises("lacks the abstract method preinitialize, step", function() Empty { parameter { 1 } } end, "type")
  end)
end)

describe("cstorch: the rectifier of RAdam", function()
  it("is exact where its length has just become more than 5", function()
    local p, x, m, v = parameter { 0.5 }, 0.5, 0, 0
    local opt = optim.RAdam({ p }, { lr = 0.1 })
    for t = 1, 10 do
      local g = math.sin(t)
      with_grad(p, { g })
      opt:step()
      m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
      local u, rest = m / (1 - 0.9 ^ t), 1 - 0.999 ^ t
      local limit = 2 / (1 - 0.999) - 1
      local length = limit - 2 * t * 0.999 ^ t / rest
      if length > 5 then
        u = u * math.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length) * rest) / (math.sqrt(v) + 1e-6)
      end
      x = x - 0.1 * u
    end
    harness.near(p:item(), x, 1e-6)
  end)
end)
