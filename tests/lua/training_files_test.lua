-- Training checkpoints: the optimizer's states and the masks of sparse weights, against the weights that they belong to.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local sparsity = require "converters.modelzoo.sparsity"
local tiny = require "tiny"

local describe, it, equal, has, lacks = harness.describe, harness.it, harness.equal, harness.has, harness.lacks

local WEIGHT = "transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight"

---A tiny GPT-2 of a release with AdamW's states.
---@param change? fun(states: Dict, root: Dict)
---@return string dir   with m.mdl and c.yaml
---@return Dict root
local function training_files(format, change)
  local dir, found = harness.temp_dir(), nil
  for _, way in ipairs(tiny.ways()) do
    if way.name == "gpt2" and way.format == format then found = way end
  end
  local config, root
  conversion.warnings(function() config, root = conversion.run("gpt2", "hf", format, tiny.model(found)) end)
  local states, names = cbk.dict(), cbk.list()
  for key, weight in cbk.items(root.model) do
    names[#names + 1] = key
    states[key] = cbk.dict { step = 3, exp_avg = weight * 0.5, exp_avg_sq = cbk.full(weight:shape(), 0.25) }
  end
  root.optimizer = cbk.dict { state = states, param_groups = cbk.list { cbk.dict { lr = 0.5, params = names } } }
  if change then change(states, root) end
  cbk.config.save(config, dir .. "/c.yaml")
  cbk.create(dir .. "/m.mdl", { root = root }):commit()
  return dir, root
end

local function of_state(name) return ("optimizer.state.%s%s"):format(WEIGHT, name and "." .. name or "") end

describe("Training files: states of the optimizer", function()
  for what, one in pairs {
    ["as they should be"] = { function() end },
    ["of another shape"] = { function(states) states[WEIGHT].exp_avg = cbk.full({ 2, 3 }, 1) end,
      "error    m.mdl: " .. of_state "exp_avg" .. ": the optimizer's state has the shape [2, 3], and its weight [" },
    ["of one element"] = { function(states) states[WEIGHT].exp_avg_sq = cbk.full({ 1 }, 1) end,
      "error    m.mdl: " .. of_state "exp_avg_sq" .. ": the optimizer's state has the shape [1], and its weight [" },
    ["that are missing"] = { function(states) states[WEIGHT].exp_avg = nil end,
      "error    m.mdl: " .. of_state "exp_avg" .. ": the optimizer's state is missing, which other parameters have" },
    ["of no weight"] = { function(states) states.stranger = states[WEIGHT] end,
      "warning  m.mdl: optimizer.state.stranger: the model has no weight 'stranger'" },
    ["with negative squares"] = { function(states) states[WEIGHT].exp_avg_sq = states[WEIGHT].exp_avg_sq * -1 end,
      "error    m.mdl: " .. of_state "exp_avg_sq" .. ": it is never negative, and here its smallest element is -0.25" },
    ["with one negative square"] = { function(states)
      local part = states[WEIGHT].exp_avg_sq
      states[WEIGHT].exp_avg_sq = cbk.cat({ part:slice(0, 0, 1), part:slice(0, 1, part:shape()[1]) * -2 }, 0)
    end, "error    m.mdl: " .. of_state "exp_avg_sq" .. ": it is never negative, and here its smallest element is -0.5" },
    ["below 'model'"] = { function(states, root)
      states["model." .. WEIGHT], states[WEIGHT] = states[WEIGHT], nil
      states["model." .. WEIGHT].exp_avg = cbk.full({ 7 }, 1)
      root.optimizer.param_groups = nil
    end, "error    m.mdl: optimizer.state.model." .. WEIGHT .. ".exp_avg: the optimizer's state has the shape [7], and its weight [" },
    ["of an optimizer that is not known"] = { function(states)
      for _, entry in cbk.items(states) do
        entry.qmap1, entry.v_mean, entry.d = cbk.full({ 256 }, 1), cbk.full({}, 1), cbk.full({ 41 }, 1)
      end
    end },
    ["of two optimizers in one group"] = { function(states, root)
      for key, entry in cbk.items(states) do
        if #root.model[key]:shape() == 2 then states[key] = cbk.dict { momentum_buffer = entry.exp_avg } end
      end
    end },
    ["by numbers that are text"] = { function(states, root)
      for i, key in ipairs(cbk.keys(states)) do states[tostring(i - 1)], states[key] = states[key], nil end
      root.optimizer.param_groups = nil
    end },
    ["of rows and columns"] = { function(states, root)
      for key, entry in cbk.items(states) do
        local shape = root.model[key]:shape()
        if #shape == 2 then
          entry.exp_avg_sq = nil
          entry.exp_avg_sq_row, entry.exp_avg_sq_col = cbk.full({ shape[1] }, 1), cbk.full({ shape[2] }, 1)
        end
      end
    end },
    ["of columns that are too long"] = { function(states)
      states[WEIGHT].exp_avg_sq_col = cbk.full({ 77 }, 1)
    end, "error    m.mdl: " .. of_state "exp_avg_sq_col" .. ": the optimizer's state has the shape [77], and its weight [" },
  } do
    it("checks those " .. what, function()
      local dir = training_files("cs-2.4", one[1])
      local status, out, err = harness.cbk(dir, "check", "m.mdl", "--config", "c.yaml")
      equal(err, "")
      if one[2] then
        equal(status, 1)
        has(out, one[2])
      else
        lacks(out, "optimizer.state")
      end
    end)
  end

  it("refuses those of another shape in an upgrade, and says how to go on", function()
    local dir = training_files("cs-2.2", function(states) states[WEIGHT].exp_avg = cbk.full({ 2, 3 }, 1) end)
    local status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", "cs-2.2", "--tgt-fmt", "cs-2.4",
      "--config", "c.yaml", "-o", "out")
    equal(status, 1)
    has(err, of_state "exp_avg" .. ": the optimizer's state has the shape [2, 3], and its weight [")
    has(err, "copy the checkpoint with --exclude 'optimizer.state.*'")
    equal((harness.cbk(dir, "copy", "m.mdl", "n.mdl", "--exclude", "optimizer.state.*")), 0)
    equal((harness.cbk(dir, "convert", "n.mdl", "--model", "gpt2", "--src-fmt", "cs-2.2", "--tgt-fmt", "cs-2.4", "--config", "c.yaml",
      "-o", "out")), 0)
  end)
end)

describe("Training files: versions of the file format", function()
  it("a copy that an old release cannot read is named", function()
    local dir = training_files("cs-2.4")
    local text = "'a.mdl' is H5 0.4, and the copy is H5 0.5, which releases up to 2.4 cannot read: pass --h5-version 0.4 for them"
    local status, _, err = harness.cbk(dir, "copy", "m.mdl", "a.mdl", "--h5-version", "0.4")
    equal({ status, err }, { 0, "" })
    has(select(3, harness.cbk(dir, "copy", "a.mdl", "b.mdl")), text)
    equal(select(3, harness.cbk(dir, "copy", "a.mdl", "c.mdl", "--h5-version", "0.5")), "")
    equal(select(3, harness.cbk(dir, "copy", "m.mdl", "d.mdl")), "")
    lacks(select(3, harness.cbk(dir, "copy", "a.mdl", "e.pt")), "H5")
  end)
end)

describe("Training files: names of parameters", function()
  it("that the model lacks are named by a conversion", function()
    local dir = training_files("cs-2.2", function(states)
      states.stranger, states.other = states[WEIGHT], states[WEIGHT]
    end)
    local status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", "cs-2.2", "--tgt-fmt", "cs-2.4", "--config",
      "c.yaml", "-o", "out")
    equal(status, 0)
    has(err, "the optimizer has states of parameters that the model lacks: other, stranger; they are kept as they are")
  end)

  it("that a copy renames in keys alone are named", function()
    local dir = training_files("cs-2.4")
    local status, _, err = harness.cbk(dir, "copy", "m.mdl", "n.mdl", "--rename", ".norm1.=.norm_a.")
    equal(status, 0)
    has(err, "--rename changes no names within lists, so 2 parameters of the optimizer have no weight now: "
      .. "transformer_decoder.layers.0.norm1.bias, transformer_decoder.layers.0.norm1.weight; leave it out with --exclude 'optimizer.*'")
    for _, more in ipairs { { "--exclude", "optimizer.*" }, { "--include", "optimizer.*" } } do
      local fine, _, said = harness.cbk(dir, "copy", "m.mdl", "o.mdl", "--overwrite", "--rename", ".norm1.=.norm_a.", unpack(more))
      equal({ fine, said }, { 0, "" })
    end
  end)
end)

describe("Training files: masks of sparse weights", function()
  ---Half of a weight's rows.
  local function mask_of(weight, dtype)
    local shape = weight:shape()
    local half = shape[1] / 2
    local rest = { unpack(shape) }
    rest[1] = half
    return cbk.cat({ cbk.full(rest, 1), cbk.full(rest, 0) }, 0):to(dtype)
  end

  for what, one in pairs {
    ["in the optimizer's state"] = { "cs-2.1", "float32", function(root, mask)
      root.optimizer.sparsity = cbk.dict { state = cbk.dict { { WEIGHT, cbk.dict { mask = mask } } } }
    end },
    ["beside it"] = { "cs-2.4", "bool", function(root, mask) root.model[WEIGHT .. "_mask"] = mask end },
  } do
    it(("applies a mask %s towards Hugging Face"):format(what), function()
      local want
      local dir = training_files(one[1], function(_, root)
        local mask = mask_of(root.model[WEIGHT], one[2])
        one[3](root, mask)
        want = (root.model[WEIGHT] * mask:to "float32"):tolist()
      end)
      local status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", one[1], "--tgt-fmt", "hf", "--config",
        "c.yaml", "-o", "out")
      equal(status, 0)
      has(err, "the masks of 1 weight are applied, as the model does: " .. WEIGHT)
      local made = cbk.open(dir .. "/out/m_to_hf").root
      equal(made["transformer.h.0.mlp.c_fc.weight"]:transpose(0, 1):tolist(), want)
    end)
  end

  it("keeps the tie of a weight that has two names, and one mask", function()
    local EMBEDDING = "embedding_layer.word_embeddings.weight"
    for _, format in ipairs { "cs-2.1", "cs-2.4" } do
      local want
      local dir = training_files(format, function(_, root)
        local weight, own = root.model[EMBEDDING], cbk.dict { step = 1 }
        root.model["lm_head.weight"] = weight
        local mask = cbk.cat({ cbk.full({ 1, weight:shape()[2] }, 0), cbk.full({ weight:shape()[1] - 1, weight:shape()[2] }, 1) }, 0)
        want = (weight * mask):tolist()
        if format == "cs-2.4" then
          root.model[EMBEDDING .. "_mask"] = mask
        else -- by a number, whose name a group has
          own.state = cbk.dict { { 0, cbk.dict { mask = mask } } }
          own.param_groups = cbk.list { cbk.dict { params = cbk.list { 0 }, param_names = cbk.list { EMBEDDING } } }
          root.optimizer.sparsity = own
        end
      end)
      local status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", format, "--tgt-fmt", "hf", "--config",
        "c.yaml", "-o", "out")
      equal(status, 0)
      lacks(err, "though the config ties them")
      local made = cbk.open(dir .. "/out/m_to_hf").root
      equal({ made["transformer.wte.weight"]:tolist(), made["lm_head.weight"]:tolist() }, { want, want })
    end
  end)

  it("stays in the optimizer's state up to 2.1, and is named where an older release does not look for it", function()
    local dir = training_files("cs-2.0", function(_, root)
      root.optimizer.sparsity = cbk.dict { state = cbk.dict { { WEIGHT, cbk.dict { mask = mask_of(root.model[WEIGHT], "bool") } } } }
    end)
    local function to(src, tgt, folder)
      local status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", src, "--tgt-fmt", tgt, "--config",
        "c.yaml", "-o", folder)
      equal(status, 0, err)
      return cbk.open(("%s/%s/m_to_%s.mdl"):format(dir, folder, tgt)).root, err
    end
    local _, _, said = harness.cbk(dir, "copy", "m.mdl", "n.mdl", "--exclude", "optimizer.*")
    has(said, ("are not in the copy: 1 mask, such as 'optimizer.sparsity.state.%s.mask'; keep them with --exclude 'optimizer.state.*'")
      :format(WEIGHT))
    equal(select(3, harness.cbk(dir, "copy", "m.mdl", "o.mdl", "--exclude", "optimizer.state.*")), "")
    equal(#sparsity.in_optimizer(cbk.open(dir .. "/o.mdl").root), 1)
    local made = to("cs-2.0", "cs-2.1", "a")
    equal(made.model[WEIGHT .. "_mask"], nil)
    assert(made.optimizer.sparsity.state[WEIGHT].mask)
    dir = training_files("cs-2.2", function(_, root) root.model[WEIGHT .. "_mask"] = mask_of(root.model[WEIGHT], "bool") end)
    local _, err = to("cs-2.2", "cs-2.1", "b")
    has(err, ("release 2.1 has the masks of sparse weights in the optimizer's state: those beside the weights, such as '%s_mask', stay")
      :format(WEIGHT))
  end)

  it("is no unknown tensor for check, and has its weight's shape", function()
    local dir = training_files("cs-2.4", function(_, root) root.model[WEIGHT .. "_mask"] = mask_of(root.model[WEIGHT], "bool") end)
    local _, out = harness.cbk(dir, "check", "m.mdl", "--config", "c.yaml")
    lacks(out, "_mask")
    dir = training_files("cs-2.4", function(_, root) root.model[WEIGHT .. "_mask"] = cbk.full({ 2, 2 }, 1) end)
    local status
    status, out = harness.cbk(dir, "check", "m.mdl", "--config", "c.yaml")
    equal(status, 1)
    has(out, "model." .. WEIGHT .. "_mask: expected [")
    local err
    status, _, err = harness.cbk(dir, "convert", "m.mdl", "--model", "gpt2", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--config", "c.yaml",
      "-o", "out")
    equal(status, 1)
    has(err, ("the mask 'model.%s_mask' has the shape [2, 2], and its weight ["):format(WEIGHT))
  end)
end)
