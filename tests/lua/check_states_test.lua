-- `cbk check`: shapes of an optimizer's states against each other, and against the weights that their numbers mean.

local cbk = require "cbk"
local harness = require "harness"
local states = require "cbk.check.states"
local describe, it, equal, has, lacks = harness.describe, harness.it, harness.equal, harness.has, harness.lacks

local NUMBER, WEIGHT = 9, "layers.2.2.weight" -- [4, 6]

---@return Dict
local function layers()
  local model = cbk.dict { { "emb.weight", cbk.full({ 10, 4 }, 1) } }
  for i = 0, 3 do
    for _, part in ipairs { { "0.weight", { 6, 4 } }, { "0.bias", { 6 } }, { "2.weight", { 4, 6 } } } do
      model[("layers.%d.%s"):format(i, part[1])] = cbk.full(part[2], i)
    end
  end
  return model
end

---A checkpoint of Adam with the states of each weight, by its number in the order of `names`.
local function checkpoint(model, names, slots)
  local state, params = cbk.dict(), cbk.list()
  for i, name in ipairs(names or cbk.keys(model)) do
    local shape = model[name]:shape()
    params[i] = i - 1
    state[i - 1] = slots and slots(shape) or cbk.dict { { "step", cbk.tensor(7) }, { "exp_avg", cbk.full(shape, 1) },
      { "exp_avg_sq", cbk.full(shape, 1) } }
  end
  local groups = cbk.list { cbk.dict { { "lr", 0.1 }, { "params", params } } }
  return cbk.dict { { "model", model }, { "optimizer", cbk.dict { { "state", state }, { "param_groups", groups } } } }
end

local function mistakes(root)
  local out = {}
  states.check(root, function(path, text, severity) out[#out + 1] = (severity and severity .. " " or "") .. path .. ": " .. text end)
  return out
end

local function with_shape(shape, ...)
  local root = checkpoint(layers())
  for _, name in ipairs { ... } do root.optimizer.state[NUMBER][name] = cbk.full(shape, 1) end
  return root
end

local function with_weight(name, shape)
  local root = checkpoint(layers())
  root.model[name] = cbk.full(shape, 1)
  return root
end

local function of_weight(number, own, name, shape)
  local out = {}
  for i, slot in ipairs { "exp_avg", "exp_avg_sq" } do
    out[i] = ("optimizer.state.%d.%s: the optimizer's state has the shape %s, and its weight '%s' %s; the states of all other parameters "
      .. "fit in the model's order"):format(number, slot, own, name, shape)
  end
  return out
end

describe("cbk check of optimizer states", function()
  it("reports the one weight whose states have another shape", function()
    equal(mistakes(with_weight(WEIGHT, { 4, 7 })), of_weight(NUMBER, "[4, 6]", WEIGHT, "[4, 7]"))
    equal(mistakes(with_weight(WEIGHT, { 6, 4 })), of_weight(NUMBER, "[4, 6]", WEIGHT, "[6, 4]"))
    equal(mistakes(with_weight("emb.weight", { 11, 4 })), of_weight(0, "[10, 4]", "emb.weight", "[11, 4]"))
    equal(mistakes(with_shape({ 4, 7 }, "exp_avg", "exp_avg_sq")), of_weight(NUMBER, "[4, 7]", WEIGHT, "[4, 6]"))
  end)

  it("reports states of one parameter that contradict each other, also without a model", function()
    local root = with_shape({ 4, 7 }, "exp_avg")
    local expected = { "optimizer.state.9.exp_avg: it has the shape [4, 7], and 'exp_avg_sq' of the same parameter [4, 6]" }
    equal(mistakes(root), expected)
    root.model = nil
    equal(mistakes(root), expected)
  end)

  it("is an error of the command", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/m.pt", { root = with_weight(WEIGHT, { 4, 7 }) }):commit()
    local status, out = harness.cbk(dir, "check", "m.pt", "--only", "state")
    equal(status, 1)
    has(out, "error    m.pt: optimizer.state.9.exp_avg: the optimizer's state has the shape [4, 6], and its weight")
    has(out, "2 errors")
  end)

  it("advises to leave out the states under the names that they have", function()
    local dir, root = harness.temp_dir(), with_shape({ 4, 7 }, "exp_avg")
    cbk.create(dir .. "/optimizer.pt", { root = root.optimizer }):commit()
    local _, out = harness.cbk(dir, "check", "optimizer.pt", "--only", "state")
    has(out, "(`cbk copy --exclude 'state.*'`)")
  end)

  it("reports a mistake once where the states have names", function()
    local dir, root = harness.temp_dir(), with_shape({ 4, 7 }, "exp_avg")
    root.optimizer.param_groups[1].param_names = cbk.list(cbk.keys(root.model))
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local _, out = harness.cbk(dir, "check", "m.pt", "--only", "state")
    has(out, "1 error (only state): ")
  end)

  it("reports the one parameter without a state, as a note where none of its kind has one", function()
    local root = checkpoint(layers())
    local function lacking(severity, number)
      return { ("%s optimizer.state.%d: the optimizer has no state of this parameter, and has one of 12 of the 13 in its group: it was "
        .. "lost, or the parameter is frozen or unused"):format(severity, number) }
    end
    root.optimizer.state[NUMBER] = nil
    equal(mistakes(root), lacking("warning", NUMBER))
    local dir = harness.temp_dir()
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local status, out = harness.cbk(dir, "check", "m.pt", "--only", "state")
    equal(status, 1)
    has(out, "warning  m.pt: optimizer.state.9 (of layers.2.2.weight): the optimizer has no state")
    root.optimizer.state[NUMBER] = cbk.dict()
    equal(mistakes(root), lacking("warning", NUMBER))
    root.model = nil
    equal(mistakes(root), lacking("warning", NUMBER))
    root = checkpoint(layers())
    root.optimizer.state[0] = nil
    equal(mistakes(root), lacking("note", 0))
  end)

  it("notes several parameters without states, and leaves groups without any, and small ones", function()
    local root = checkpoint(layers())
    root.optimizer.state[NUMBER], root.optimizer.state[NUMBER - 1] = nil, nil
    equal(#mistakes(root), 1)
    for number = 0, 4 do root.optimizer.state[number] = nil end
    equal(mistakes(root), {})
    root.optimizer.state = cbk.dict()
    equal(mistakes(root), {})
    root = checkpoint(cbk.dict { { "a.0.w", cbk.full({ 2 }, 1) }, { "a.1.w", cbk.full({ 2 }, 1) } })
    root.optimizer.state[1] = nil
    equal(mistakes(root), {})
  end)

  it("lists and checks files with NaN in place of a parameter's number or name, or as a key", function()
    local dir, nan = harness.temp_dir(), -(0 / 0) -- the sign of Python's
    cbk.fs.write(dir .. "/c.yaml", "model:\n  name: gpt2\n")
    local function check(change, state)
      local root = checkpoint(layers())
      change(root, root.optimizer.param_groups[1])
      cbk.create(dir .. "/m.pt", { root = root, overwrite = true }):commit()
      for _, words in ipairs { { "ls", "m.pt" }, { "check", "m.pt" }, { "stats", "m.pt" }, { "diff", "m.pt", "m.pt" } } do
        local _, out, err = harness.cbk(dir, unpack(words))
        lacks(err, "is NaN")
        lacks(err, ".lua")
        if words[1] == "check" then has(out, state or "") end
      end
      local _, _, err = harness.cbk(dir, "upgrade", "m.pt", "--model", "gpt2", "--from", "cs-1.8", "--to", "cs-2.5", "--config", "c.yaml",
        "-o", "n.mdl")
      lacks(err, "is nil")
      return err
    end
    check(function(_, group) group.params[1] = nan end, "nan: the optimizer has no state of this parameter")
    check(function(_, group)
      group.params[1] = nan
      group.param_names = cbk.list(cbk.keys(layers()))
    end)
    check(function(_, group)
      group.param_names = cbk.list()
      for i = 1, #group.params do group.param_names[i] = nan end
    end)
    has(check(function(root) root[nan] = cbk.full({ 3 }, 1) end), "a key at the top level is NaN")
    has(check(function(root) root.model[nan] = cbk.full({ 3 }, 1) end), "a key below 'model' is NaN")
    check(function(root) root.optimizer.state[nan] = cbk.dict() end)
  end)

  it("reports what one parameter has lost, or has in another shape", function()
    local root = checkpoint(layers())
    root.optimizer.state[NUMBER].exp_avg_sq = nil
    local expected = { "optimizer.state.9.exp_avg_sq: the optimizer's state is missing, which 12 other parameters have" }
    equal(mistakes(root), expected)
    root.optimizer.state[NUMBER].exp_avg_sq = cbk.null
    equal(mistakes(root), expected)
    root = checkpoint(layers())
    for _, name in ipairs { "exp_avg", "exp_avg_sq" } do root.optimizer.state[2][name] = cbk.full({ 5 }, 1) end
    equal(mistakes(root), of_weight(2, "[5]", "layers.0.0.bias", "[6]"))
  end)

  it("reports states of no parameter, several lost ones, and that all are lost", function()
    local root = checkpoint(layers())
    root.optimizer.state[99] = cbk.deep_copy(root.optimizer.state[3])
    equal(mistakes(root), { "warning optimizer.state.99: the state belongs to no parameter of the groups in param_groups" })
    root = checkpoint(layers())
    for _, number in ipairs { 4, 5, 6 } do root.optimizer.state[number] = nil end
    equal(mistakes(root), { "note optimizer.state: the optimizer has no state of 3 of the 13 parameters in a group: 4, 5, 6; they were "
      .. "lost, or the parameters are frozen or unused" })
    root = checkpoint(layers())
    root.optimizer.state, root.global_step = cbk.dict(), 7
    equal(mistakes(root), {}) -- an SGD without momentum has none
    root.optimizer.param_groups[1].betas = cbk.list { 0.9, 0.99 }
    equal(mistakes(root), { "warning optimizer.state: the optimizer has no states, and the checkpoint is of step 7: they were lost, or "
      .. "left out" })
    root.global_step = 0
    equal(mistakes(root), {})
  end)

  it("leaves alone what has another order, or does not say which weight it belongs to", function()
    local model = layers()
    equal(mistakes(checkpoint(model)), {})
    local names = cbk.keys(model)
    names[2], names[3] = names[3], names[2]
    equal(mistakes(checkpoint(model, names)), {})
    local root = with_weight(WEIGHT, { 4, 7 })
    root.model["buffer.weight"] = cbk.full({ 4, 7 }, 1)
    equal(mistakes(root), {})
    equal(mistakes(with_weight(WEIGHT, { 24 })), {})
    equal(mistakes(with_weight(WEIGHT, { 5, 7 })), {})
    root = with_weight(WEIGHT, { 4, 7 })
    root.model["layers.1.2.weight"] = cbk.full({ 4, 7 }, 1)
    equal(mistakes(root), {})
  end)

  it("leaves alone optimizers that keep less than a number for each element", function()
    local function novograd(shape) return cbk.dict { { "exp_avg", cbk.full(shape, 1) }, { "exp_avg_sq", cbk.tensor(1) } } end
    local function by_row(shape) return cbk.dict { { "exp_avg", cbk.full(shape, 1) }, { "exp_avg_sq", cbk.full({ shape[1], 1 }, 1) } } end
    local function projected(shape)
      local own = { 2, shape[2] }
      return cbk.dict { { "exp_avg", cbk.full(own, 1) }, { "exp_avg_sq", cbk.full(own, 1) } }
    end
    for _, slots in ipairs { novograd, by_row, projected } do equal(mistakes(checkpoint(layers(), nil, slots)), {}) end
  end)
end)
