-- What an optimizer's state says of parameters, from release to release: it follows the model's names, and what is lost is named.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local fields = require "converters.engine.fields"
local harness = require "harness"
local rules = require "converters.engine.rules"
local sparsity = require "converters.modelzoo.sparsity"
local actions = require "converters.vocabulary.actions"
local tiny = require "tiny"
local upgrade = require "cbk.upgrade"

local convert = converters.convert
local describe, it, equal = harness.describe, harness.it, harness.equal

local function tensor(n) return conversion.counted({ 2 }, n) end
local function shaped(weight, n) return conversion.counted(weight:shape(), n) end

---A tiny model of a release with an optimizer that knows its parameters by name.
---@return Dict config, Dict root
local function model_of(name, format, change)
  for _, way in ipairs(tiny.ways()) do
    if way.name == name and way.format == format then
      local config, root
      conversion.warnings(function() config, root = conversion.run(name, "hf", format, tiny.model(way)) end)
      local names, state, masks, model = cbk.list(), cbk.dict(), cbk.dict(), cbk.dict()
      for i, key in ipairs(cbk.keys(root.model)) do
        local own = change and change(key) or key
        model[key], model[key .. "_mask"] = root.model[key], shaped(root.model[key], -i)
        names[i], state[own] = own, cbk.dict { exp_avg = shaped(root.model[key], i) }
        masks[own] = cbk.dict { mask = shaped(root.model[key], -i) }
      end
      root.model = model
      root.optimizer = cbk.dict { state = state, param_groups = cbk.list { cbk.dict { lr = 0.5, params = names } } }
      return config, root, masks, names
    end
  end
  error(name .. " has no " .. format)
end

local function with_model(key) return "model." .. key end

describe("the optimizer's state between releases", function()
  for _, one in ipairs {
    { "gpt2", "cs-2.0", "cs-2.9", "position_embeddings.weight", "position_embeddings.embed.weight" },
    { "gpt2", "cs-2.1", "cs-1.9", "position_embeddings.embed.weight", "position_embeddings.weight" },
    { "bert", "cs-1.8", "cs-2.1", "position_embeddings.weight", "position_embeddings.embed.weight" },
    { "bert-qa", "cs-2.0", "cs-2.4", "position_embeddings.weight", "position_embeddings.embed.weight" },
    { "t5", "cs-2.0", "cs-2.9", "relative_attention_bias.weight", "position_embed_helper.relative_attention_bias.weight" },
    { "llama", "cs-1.9", "cs-2.9" },
  } do
    local name, src, tgt, old, new = unpack(one)
    for _, change in ipairs { false, with_model } do
      it(("%s, %s to %s%s"):format(name, src, tgt, change and ", below 'model'" or ""), function()
        local config, root = model_of(name, src, change)
        local out
        local warnings = conversion.warnings(function() config, out = conversion.run(name, src, tgt, config, root) end)
        for _, text in ipairs(warnings) do assert(not text:find("optimizer", 1, true), text) end
        local state, params, count, renamed = out.optimizer.state, out.optimizer.param_groups[1].params, 0, 0
        equal({ cbk.count(state), cbk.count(params), cbk.count(out.model) },
      { cbk.count(root.optimizer.state), cbk.count(root.optimizer.param_groups[1].params), cbk.count(root.model) })
        for i, key in cbk.items(params) do
          assert(state[key] ~= nil, key)
          local weight = change and key:gsub("^model%.", "") or key
          assert(out.model[weight] ~= nil and out.model[weight .. "_mask"] ~= nil, weight)
          local before = root.optimizer.param_groups[1].params[i]
          assert(cbk.equal(state[key].exp_avg, root.optimizer.state[before].exp_avg), key)
          count = count + 1
          if old and before:sub(-#old) == old and key:sub(-#new) == new and before ~= key then renamed = renamed + 1 end
        end
        equal(count, cbk.count(root.model) / 2)
        assert(renamed > 0 == (old ~= nil), renamed)
      end)
    end
  end

  it("stays if the model is written twice, or its tensors change, with a warning", function()
    local config = cbk.dict { model = cbk.dict { model_name = "llama", a = 1 } }
    local root = cbk.dict { model = cbk.dict { w = tensor(0), v = tensor(1) } }
    local groups = cbk.list { cbk.dict { params = cbk.list { "v" } } }
    root.optimizer = cbk.dict { state = cbk.dict { w = cbk.dict { step = 1 } }, param_groups = groups }
    local out
    local warnings = conversion.warnings(function() config, out = conversion.run("dpo", "cs-2.1-no-dpo", "cs-2.1-dpo", config, root) end)
    assert(cbk.equal(out.optimizer, root.optimizer))
    equal(warnings[#warnings],
      "the optimizer's state keeps names of parameters that the new model lacks or has split: w, v")

    local converter = { keys = rules.keys { { "w", "u", actions.transpose }, { "*" } }, config = fields.config { { "*" } } }
    local job = { model = { model = "made" }, zoo_name = "made", seed = 0,
      path = { { converter = converter, side = "left", src = "cs-2.0", tgt = "cs-2.1" } } }
    warnings = conversion.warnings(function()
      root.model = cbk.dict { w = conversion.counted({ 2, 3 }, 0), v = tensor(1) }
      convert.config(job, cbk.dict { model = cbk.dict { a = 1 } })
      out = convert.checkpoint(job, root)
    end)
    equal(cbk.keys(out.optimizer.state), { "u" })
    equal(warnings, { "these parameters are converted, but their state in the optimizer is kept as it is: w" })
  end)

  it("may have its parameters in tuples", function()
    local config, root, _, names = model_of("gpt2", "cs-2.0")
    local old, new = "embedding_layer.position_embeddings.weight", "embedding_layer.position_embeddings.embed.weight"
    root.optimizer.param_groups = cbk.tuple { cbk.dict { lr = 0.5, params = cbk.tuple(names), param_names = cbk.tuple { old } } }
    local _, out = conversion.run("gpt2", "cs-2.0", "cs-2.9", config, root)
    local groups, found = out.optimizer.param_groups, 0
    equal({ cbk.kind(out.optimizer, "param_groups"), cbk.kind(groups[1], "params") }, { "tuple", "tuple" })
    for i, key in cbk.items(groups[1].params) do
      equal(key, names[i] == old and new or names[i])
      found = found + (key == new and 1 or 0)
    end
    equal({ found, groups[1].param_names[1], groups[1].lr }, { 1, new, 0.5 })
  end)

  it("by position is reported if the model gains or loses parameters", function()
    local said = "the optimizer's state refers to parameters by position, but the new model %s: it is kept as it is, and later "
      .. "positions now mean different parameters"
    for what, set in pairs {
      ["lacks w"] = { rules.drop.left("w", "it is old"), { "*" } },
      ["lacks w and adds q, k"] = { { "w", { "q", "k" }, actions.split(2) }, { "*" } },
      [""] = { { "w", "u", also_right = "again" }, { "*" } },
    } do
      local job = { model = { model = "made" }, zoo_name = "made", seed = 0, path = {
        { converter = { keys = rules.keys(set), config = fields.config { { "*" } } }, side = "left", src = "cs-2.0", tgt = "cs-2.1" } } }
      local root = cbk.dict { model = cbk.dict { w = conversion.counted({ 2, 3 }, 0), v = tensor(1) } }
      root.optimizer = cbk.dict { state = cbk.dict(), param_groups = cbk.list { cbk.dict { params = cbk.list { 0, 1 } } } }
      local out, positions = nil, {}
      for _, text in ipairs(conversion.warnings(function()
        convert.config(job, cbk.dict { model = cbk.dict { a = 1 } })
        out = convert.checkpoint(job, root)
      end)) do
        if text:find("by position", 1, true) then positions[#positions + 1] = text end
      end
      assert(cbk.equal(out.optimizer, root.optimizer))
      equal(positions, what ~= "" and { said:format(what) } or {})
    end
  end)

  it("by position stays as it is", function()
    local config, root = model_of("gpt2", "cs-2.0")
    root.optimizer = cbk.dict { param_groups = cbk.list { cbk.dict { params = cbk.list { 0, 1 } } } }
    root.optimizer.state = cbk.dict { { 0, cbk.dict { step = 1 } }, { 1, cbk.dict { step = 2 } } }
    local _, out = conversion.run("gpt2", "cs-2.0", "cs-2.9", config, root)
    assert(cbk.equal(out.optimizer, root.optimizer))
  end)
end)

describe("the optimizer's sparsity", function()
  local said = "the masks and steps of the optimizer's sparsity are moved to the model; other fields are left out: "
  local mask = cbk.dict { mask = tensor(0) }
  local place = "optimizer.sparsity."
  for what, one in pairs {
    ["nothing is lost"] = { { state = { a = mask }, step = 3 }, nil },
    ["null is nothing"] = { { state = { a = mask }, kind = cbk.null } },
    ["what a state has beside its mask"] = { { state = { a = cbk.dict { mask = tensor(0), regrow = 1 } } }, place .. "state.a.regrow" },
    ["of layers in one"] = {
      { state = { ["l.0.w"] = cbk.dict { regrow = 1 }, ["l.1.w"] = cbk.dict { regrow = 1 } } }, place .. "state.l.{0,1}.w.regrow",
    },
    ["what is no state"] = { { state = { a = 5 } }, place .. "state.a" },
    ["fields beside"] = { { state = { a = mask }, kind = "RigL" }, place .. "kind" },
    ["of groups"] = {
      { param_groups = { { param_names = { "a" }, sparsity = { step = 1, init = "x" }, update = 3 } } },
      place .. "param_groups.0.update, " .. place .. "param_groups.0.sparsity.init",
    },
    ["a group without names"] = {
      { param_groups = { { params = { 0 }, sparsity = { step = 1 } } } }, place .. "param_groups.0.sparsity.step",
    },
    ["a group that is none"] = { { param_groups = { { params = { "a" }, sparsity = 5 } } }, place .. "param_groups.0.sparsity" },
    ["that is none"] = { 5, "optimizer.sparsity" },
  } do
    it(what, function()
      local function tree(value)
        if type(value) ~= "table" then return value end
        local out = #value > 0 and cbk.list() or cbk.dict()
        for key, inner in pairs(value) do out[key] = tree(inner) end
        return out
      end
      local root = cbk.dict { model = cbk.dict { a = tensor(1) }, optimizer = cbk.dict { lr = 1, sparsity = tree(one[1]) } }
      local warnings = conversion.warnings(sparsity.move, root, "2.1", "2.2")
      equal(warnings, { one[2] and said .. one[2] })
      equal(root.optimizer, { lr = 1 })
    end)
  end

  it("names its groups' parameters as the optimizer does, and says what it takes the place of", function()
    local groups = cbk.list { cbk.dict { params = cbk.list { "a" }, sparsity = cbk.dict { step = 4 } } }
    local root = cbk.dict { model = cbk.dict { a = tensor(0), a_mask = tensor(1) }, sparsity = cbk.dict { old = 1 } }
    root.optimizer = cbk.dict { sparsity = cbk.dict { state = cbk.dict { a = mask }, param_groups = groups } }
    local warnings = conversion.warnings(sparsity.move, root, "2.1", "2.2")
    equal(root.sparsity, { sparsity = { a = { index = 4 } } })
    equal(warnings, { said .. "sparsity, model.a_mask" })
  end)

  it("puts no mask where no weight is", function()
    for _, name in ipairs { "b", "model.b", 0 } do
      local state = cbk.dict()
      state[name] = mask
      local root = cbk.dict { model = cbk.dict { a = tensor(1) }, optimizer = cbk.dict { sparsity = cbk.dict { state = state } } }
      harness.raises("the mask would be lost", function() sparsity.move(root, "2.1", "2.2") end)
    end
  end)

  for _, change in ipairs { false, with_model } do
    local below = change and ", below 'model'" or ""
    it("is no step without a change of tensors, follows the new names, and loses nothing" .. below, function()
      local config, root, masks, names = model_of("gpt2", "cs-2.0", change)
      for key in cbk.items(root.model) do
        if key:find "_mask$" then root.model[key] = nil end
      end
      root.optimizer.sparsity = cbk.dict { state = masks, step = 2,
        param_groups = cbk.list { cbk.dict { param_names = names, sparsity = cbk.dict { step = 1 } } } }
      local job = conversion.job("gpt2", "cs-2.0", "cs-2.9")
      local out
      equal(conversion.warnings(function()
        convert.config(job, config)
        equal(#job.copies, 7)
        out = convert.checkpoint(job, root)
      end), {})
      for key in cbk.items(out.model) do
        if not key:find "_mask$" then
          assert(out.model[key .. "_mask"] ~= nil and out.sparsity.sparsity[change and change(key) or key].index == 1, key)
        end
      end
      equal(cbk.count(out.model), 2 * #names)
      equal(cbk.count(out.sparsity.sparsity), #names)
    end)
  end

  it("is a step of its own where it moves into the model", function()
    local config, job = model_of("gpt2", "cs-2.0"), conversion.job("gpt2", "cs-2.1", "cs-2.2")
    local root = cbk.dict { model = cbk.dict { w = tensor(0) } }
    root.optimizer = cbk.dict { sparsity = cbk.dict { state = cbk.dict { w = mask } } }
    convert.config(job, config)
    equal(job.copies, { "cs-2.1 -> cs-2.2" })
    convert.checkpoint(job, root)
    equal(job.copies, {})
    local done = upgrade.run({ checkpoint = { root = root } }, config, upgrade.job("gpt2", "cs-2.1", "cs-2.2"))
    equal(done.parts[1].lines[1], "w_mask (from the optimizer's state)")
  end)
end)

---Converts a checkpoint of a model of one's own from 2.4 to 2.5 by a table of these rules.
---@param weights table<string, Tensor>
---@return integer code, Checkpoint|nil made, string said
local function by_own_rules(weights, names, rule_texts)
  local dir, model, states = harness.temp_dir(), cbk.dict(), cbk.dict()
  for i, name in ipairs(names) do
    model[name] = weights[name]
    local parameter = not name:find "_mask$" and name
    if parameter then
      states[name] = cbk.dict { { "exp_avg", conversion.counted(weights[name]:shape(), 100 * i) },
        { "exp_avg_sq", conversion.counted(weights[name]:shape(), 1000 * i) } }
    end
  end
  local root = cbk.dict { { "model", model }, { "optimizer", cbk.dict { { "state", states },
    { "param_groups", cbk.list { cbk.dict { { "lr", 0.5 }, { "params", cbk.list(cbk.keys(states)) } } } } } },
    { "__metadata__", cbk.list { cbk.dict { { "version", "2.4.0" }, { "model_name", "mine" },
      { "params", cbk.dict { { "model", cbk.dict { { "hidden_size", 4 } } } } } } } } }
  cbk.create(dir .. "/m.mdl", { root = root }):commit()
  cbk.fs.write(dir .. "/params.yaml", "trainer: {init: {model: {name: mine, hidden_size: 4}}}\n")
  cbk.fs.write(dir .. "/mine.lua", ([[
    local cbk, rules, fields = require "cbk", require "converters.engine.rules", require "converters.engine.fields"
    local actions, layouts = require "converters.vocabulary.actions", require "converters.vocabulary.layouts"
    local scaled = actions.pair("split and scaled", function(t)
      local a, b = unpack(t:split(t:shape()[1] / 2, 0))
      return { a * 0.5, b }
    end, function(parts) return cbk.cat({ parts[1] * 2, parts[2] }, 0) end, { parts = 2 })
    local before = { forward = function(n) return n - 1 end, backward = function(n) return n + 1 end }
    return { { model = "mine", { "cs-2.4", "cs-2.5", config = fields.config { { "*" } }, keys = rules.keys { %s, { "*" } } } } }
  ]]):format(rule_texts))
  local code, out, err = harness.cbk(dir, "convert", "m.mdl", "--converter", "mine.lua", "--model", "mine", "--src-fmt", "cs-2.4", "--to",
    "cs-2.5", "--config", "params.yaml", "-o", "new")
  local path = dir .. "/new/m_to_cs-2.5.mdl"
  return code, cbk.fs.exists(path) and cbk.open(path) or nil, out .. err
end

describe("states and masks beside weights that a table computes with", function()
  for name, action in pairs { times = "layouts.times(0.5)", plus = "layouts.plus(1)" } do
    it("a mask is refused: " .. name, function()
      local code, made, said = by_own_rules({ ["a.weight"] = conversion.counted({ 4, 4 }, 0),
        ["a.weight_mask"] = conversion.counted({ 4, 4 }, 0) }, { "a.weight", "a.weight_mask" },
        ('{ "a.weight", "b.weight", %s }'):format(action))
      equal({ code, made }, { 1 })
      harness.has(said, "cannot convert the mask of 'b.weight': the table computes with the elements of the weight")
    end)
  end

  it("masks of several dtypes follow weights that are split", function()
    local flags = cbk.full({ 4, 4 }, 1, { dtype = "bool" })
    local names = { "a.weight", "a.weight_mask", "d.weight", "d.weight_mask" }
    local code, made, said = by_own_rules({ ["a.weight"] = conversion.counted({ 4, 4 }, 0), ["a.weight_mask"] = flags,
      ["d.weight"] = conversion.counted({ 4, 4 }, 0), ["d.weight_mask"] = conversion.counted({ 4, 4 }, 5) }, names,
      '{ "a.weight", { "b.weight", "c.weight" }, actions.split(2) }, { "d.weight", { "e.weight", "f.weight" }, actions.split(2) }')
    equal(code, 0, said)
    equal(made.root.model["b.weight_mask"].dtype, "bool")
    equal(made.root.model["f.weight_mask"]:tolist(), conversion.counted({ 4, 4 }, 5):slice(0, 2, 4):tolist())
  end)

  it("a mask with a rule of its own is converted", function()
    local mask = conversion.counted({ 4, 4 }, 0)
    local code, made, said = by_own_rules({ ["a.weight"] = conversion.counted({ 4, 4 }, 0), ["a.weight_mask"] = mask },
      { "a.weight", "a.weight_mask" }, '{ "a.weight", "b.weight", layouts.times(0.5) }, { "a.weight_mask", "b.weight_mask" }')
    equal(code, 0, said)
    equal(made.root.model["b.weight_mask"]:tolist(), mask:tolist())
  end)

  it("the state of a weight that is split stays under its name, with a warning", function()
    local code, made, said = by_own_rules({ ["a.weight"] = conversion.counted({ 4, 4 }, 0) }, { "a.weight" },
      '{ "a.weight", { "b.weight", "c.weight" }, scaled }')
    equal(code, 0, said)
    harness.has(said, "keeps names of parameters that the new model lacks or has split: a.weight")
    equal(cbk.keys(made.root.optimizer.state), { "a.weight" })
  end)

  it("the state of a pruned parameter is not that of the one that takes its name", function()
    local code, made, said = by_own_rules({ ["l.0.w"] = conversion.counted({ 2 }, 0), ["l.1.w"] = conversion.counted({ 3 }, 0),
      ["l.2.w"] = conversion.counted({ 4 }, 0) }, { "l.0.w", "l.1.w", "l.2.w" },
      'rules.drop.left("l.0.w", "the first layer is pruned"), { "l.N.w", "l.N.w", number = before }')
    equal(code, 0, said)
    harness.has(said, "of parameters that the new model lacks is left out, as others have their names now: l.0.w")
    local optimizer = made.root.optimizer
    equal(cbk.keys(optimizer.state), { "l.0.w", "l.1.w" })
    equal({ optimizer.state["l.0.w"].exp_avg:shape(), optimizer.state["l.1.w"].exp_avg:shape() }, { { 3 }, { 4 } })
    equal(cbk.totable(optimizer.param_groups[1].params), { "l.0.w", "l.1.w" })
  end)
end)
