-- The parameters of an optimizer's states: their names from the model's order and shapes, and the tables that show them.

local cbk = require "cbk"
local harness = require "harness"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"
local describe, it, equal, has, lacks, is_true = harness.describe, harness.it, harness.equal, harness.has, harness.lacks, harness.is_true

---A model of some layers: names with their shapes, in order.
local function layers(count, parts)
  local model = cbk.dict()
  for i = 0, count - 1 do
    for _, part in ipairs(parts) do model[("layers.%d.%s"):format(i, part[1])] = cbk.full(part[2], i) end
  end
  return model
end

---A checkpoint whose optimizer has the named parameters of each group.
---@param groups { names: string[], decay: number|nil }[]
local function checkpoint(model, groups, slots)
  local state, list, number = cbk.dict(), cbk.list(), 0
  for g, group in ipairs(groups) do
    local params = cbk.list()
    for i, name in ipairs(group.names) do
      params[i] = number
      state[number] = slots and slots(model[name]) or cbk.dict { { "exp_avg", model[name] * 2 }, { "step", cbk.tensor(7) } }
      number = number + 1
    end
    list[g] = cbk.dict { { "lr", 0.1 }, { "weight_decay", group.decay or 0 }, { "params", params } }
  end
  return cbk.dict { { "model", model }, { "optimizer", cbk.dict { { "state", state }, { "param_groups", list } } } }
end

---The names of a model's keys that a pattern fits, in order.
local function fitting(model, is_wanted)
  local out = {}
  for name in cbk.items(model) do
    if is_wanted(name) then out[#out + 1] = name end
  end
  return out
end

local function names_of(root)
  local found = optimizers.find(root)
  equal(#found, 1)
  local out = {}
  for number, name in pairs(found[1].names) do out[number + 1] = name end
  return out, found[1].is_guess
end

local function is_bias(name) return name:find "bias" ~= nil end

describe("Names of an optimizer's parameters", function()
  local PARTS = { { "a.weight", { 4, 2 } }, { "a.bias", { 4 } }, { "norm.weight", { 4 } }, { "norm.bias", { 4 } } }

  it("follow the groups, which PyTorch counts one after the other", function()
    local model = layers(3, PARTS)
    local decayed = fitting(model, function(name) return name:find "a%.weight" ~= nil end)
    local plain = fitting(model, function(name) return name:find "a%.weight" == nil end)
    local names, is_guess = names_of(checkpoint(model, { { names = decayed, decay = 0.1 }, { names = plain } }))
    local wanted = { unpack(decayed) }
    for _, name in ipairs(plain) do wanted[#wanted + 1] = name end
    equal({ names, is_guess }, { wanted, false })
  end)

  it("put biases where nothing decays, if shapes allow more than one way, and say so", function()
    local model = layers(3, PARTS)
    local plain = fitting(model, is_bias)
    local decayed = fitting(model, function(name) return not is_bias(name) end)
    for _, order in ipairs { { 1, 2 }, { 2, 1 } } do
      local groups = { { names = decayed, decay = 0.1 }, { names = plain } }
      local names, is_guess = names_of(checkpoint(model, { groups[order[1]], groups[order[2]] }))
      local wanted = {}
      for _, g in ipairs(order) do
        for _, name in ipairs(groups[g].names) do wanted[#wanted + 1] = name end
      end
      equal({ names, is_guess }, { wanted, true })
    end
  end)

  it("leave out buffers and frozen weights", function()
    local model = layers(3, { { "a.weight", { 4, 2 } }, { "a.mask", { 2, 2 } }, { "b.weight", { 5 } } })
    equal((names_of(checkpoint(model, { { names = fitting(model, function(name) return not name:find "mask" end) } }))),
      fitting(model, function(name) return not name:find "mask" end))
  end)

  it("are found where a state dict is an OrderedDict, as PyTorch writes it", function()
    local model = layers(2, { { "a.weight", { 4, 2 } }, { "a.bias", { 4 } } })
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    root.model = cbk.dict({}, "ordereddict")
    for name, tensor in cbk.items(model) do root.model[name] = tensor end
    equal(names_of(root), cbk.keys(model))
  end)

  it("are found in a list of optimizers, as Lightning writes it", function()
    local model = layers(2, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    local found = optimizers.find(cbk.dict { { "state_dict", model }, { "optimizer_states", cbk.list { root.optimizer } } })
    equal({ #found, found[1].path, found[1].names[1] }, { 1, "optimizer_states.0", "layers.0.a.bias" })
  end)

  it("count tied tensors once", function()
    local dir, model = harness.temp_dir(), layers(2, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    local head = cbk.dict { { "first", model["layers.0.a.weight"] } }
    for name, weight in cbk.items(model) do head[name] = weight end
    root.model = head
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local names = names_of(cbk.open(dir .. "/a.pt"):raw_root())
    equal({ #names, names[1], names[2] }, { 8, "first", "layers.0.a.bias" })
  end)

  it("come from param_names, or are the keys", function()
    local model = layers(2, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    local group = root.optimizer.param_groups[1]
    group.param_names = cbk.list { "x", "y", unpack(cbk.keys(model), 3) }
    equal(names_of(root)[2], "y")
    local state = cbk.dict { { "layers.0.w", cbk.dict { { "exp_avg", cbk.full({ 2 }, 1) } } } }
    local lines = {}
    optimizer_table.print(optimizers.find(cbk.dict { { "optimizer", cbk.dict { { "state", state }, { "param_groups", cbk.list() } } } })[1],
      function(line) lines[#lines + 1] = line end)
    has(table.concat(lines, "\n"), "  parameter   shape\n  layers.0.w  [2]")
  end)

  it("are unknown where shapes or counts do not fit", function()
    local model = layers(3, PARTS)
    local names = cbk.keys(model)
    local root = checkpoint(model, { { names = names } })
    root.optimizer.state[3].exp_avg = cbk.full({ 9 }, 1)
    equal(names_of(root), {})
    root = checkpoint(model, { { names = names } })
    root.model = layers(2, PARTS)
    equal(names_of(root), {})
    root.model = nil
    equal(names_of(root), {})
  end)

  it("are found for large models without deep recursion, and given up where there are too many ways", function()
    local model = layers(3000, PARTS)
    equal(#names_of(checkpoint(model, { { names = cbk.keys(model) } })), 12000)
    local parts = {}
    for i = 1, 30 do parts[i] = { ("part_%s.weight"):format(string.char(96 + i)), { 4, 2 } } end
    model = layers(2, parts)
    local names, is_guess = names_of(checkpoint(model, { { names = cbk.keys(model) } }))
    equal({ #names, is_guess }, { 60, false })
    local many = cbk.dict()
    for i = 1, 60 do many[("w_" .. string.char(97 + i % 26)):rep(1 + i / 26)] = cbk.full({ 2 }, i) end
    local all = cbk.keys(many)
    local first, second = { unpack(all, 1, #all / 2) }, { unpack(all, #all / 2 + 1) }
    equal(select(2, names_of(checkpoint(many, { { names = first }, { names = second } }))), true)
  end)
end)

describe("Tables of an optimizer", function()
  local PARTS = { { "a.weight", { 4, 2 } }, { "a.bias", { 4 } } }

  local function listed(root, ...)
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local status, out, err = harness.cbk(dir, "ls", "a.pt", ...)
    equal(status, 0, err)
    return out, dir
  end

  it("fold states by the names of parameters", function()
    local model = layers(12, PARTS)
    local out = listed(checkpoint(model, { { names = cbk.keys(model), decay = 0.1 } }))
    has(out, "optimizer.state  24 parameters, 48 tensors, 672 B\n  each has exp_avg float32, step float32 []\n")
    is_true(out:find "\n  layers.{0..11}.a.weight +0, 2, … 22  %[4, 2%]\n  layers.{0..11}.a.bias +1, 3, … 23  %[4%]\n", out)
    has(out, "optimizer.param_groups  1 group of 24 parameters\n  lr            0.1\n  weight_decay  0.1\n")
    lacks(out, "exp_avg_sq")
  end)

  it("say which states a parameter has, where not all have the same", function()
    local model = layers(2, PARTS)
    local out = listed(checkpoint(model, { { names = cbk.keys(model) } }, function(weight)
      local is_matrix = #weight:shape() == 2
      return cbk.dict { { is_matrix and "row" or "full", weight * 1 } }
    end))
    is_true(out:find "\n  layers.{0,1}.a.weight +0, 2 +%[4, 2%] +row float32\n  layers.{0,1}.a.bias +1, 3 +%[4%] +full float32\n", out)
  end)

  it("have numbers alone where there is no model", function()
    local model = layers(2, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    local out = listed(root.optimizer)
    has(out, "\nstate  4 parameters, 8 tensors, 112 B\n")
    is_true(out:find "\n  number  shape\n  0, 2    %[4, 2%]\n  1, 3    %[4%]\nparam_groups  1 group", out)
  end)

  it("are those of `show`, and of a key that is an optimizer or its states", function()
    local model = layers(12, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model), decay = 0.1 } })
    local folded, groups = "\n +layers.{0..11}.a.bias +1, 3, … 23  %[4%]\n", "optimizer.param_groups  1 group of 24 parameters\n"
    local out, dir = listed(root, "optimizer")
    is_true(out:find(folded) and out:find(groups, 1, true), out)
    for key, has_groups in pairs { optimizer = true, ["optimizer.state"] = false } do
      local shown = select(2, harness.cbk(dir, "show", "a.pt", key))
      is_true(shown:find(folded), shown)
      equal(shown:find(groups, 1, true) ~= nil, has_groups)
    end
    lacks((listed(root, "optimizer.state")), "param_groups")
  end)

  it("leave a chosen part, and --all, as they are", function()
    local model = layers(2, PARTS)
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    has(listed(root, "--all"), "exp_avg")
    has((listed(root, "optimizer.state.1")), "optimizer.state.1  2 tensors")
  end)
end)

describe("cbk diff of two steps", function()
  it("has the model's tensors first, one line a state, and the hyper-parameters that changed", function()
    local dir = harness.temp_dir()
    local function save(name, factor, rate)
      local model = cbk.dict()
      for i = 0, 2 do model[("layers.%d.w"):format(i)] = cbk.full({ 2 }, i + factor) end
      local root = checkpoint(model, { { names = cbk.keys(model), decay = 0.1 } })
      root.optimizer.param_groups[1].lr, root.scale = rate, cbk.tensor(factor)
      if factor == 2 then root.model["layers.1.w"] = cbk.tensor { 0 / 0, 1 / 0 } end
      cbk.create(dir .. "/" .. name, { root = root }):commit()
    end
    save("a.pt", 1, 0.5)
    save("b.pt", 2, 0.25)
    local status, out = harness.cbk(dir, "diff", "a.pt", "b.pt")
    equal(status, 1)
    local first = out:find("different tensors (3):", 1, true)
    local state = out:find("different states, optimizer.state (3):", 1, true)
    local rate = out:find("different hyper-parameters, optimizer.param_groups (1):\n  key   A    B\n  0.lr  0.5  0.25\n", 1, true)
    local value = out:find("different values (1):\n  key    A  B\n  scale  1  2\n", 1, true)
    is_true(first and state and rate and value and first < state and state < rate and rate < value, out)
    is_true(out:find "\n  model.layers.{0..2}.w +3 +0.5 +[%d.]+  1 +NaN in B only: 1, infinite: 1 ", out)
    local narrow = select(2, harness.cbk_with("COLUMNS=80", dir, "diff", "a.pt", "b.pt"))
    is_true(narrow:find "\n  model.layers.{0..2}.w[^\n]*\n      NaN in B only: 1, infinite: 1\n", narrow)
    is_true(out:find "\n  exp_avg  +3  +0.5  +[%d.]+  layers.0.w ", out)
    local every = select(2, harness.cbk(dir, "diff", "a.pt", "b.pt", "--all"))
    has(every, "model.layers.1.w: 2 of 2 elements differ (100 %), max abs inf, max rel inf")
    has(every, "NaN in B only: 1, infinite: 1")
    local _, json = harness.cbk(dir, "diff", "a.pt", "b.pt", "--json")
    has(json, '"max_rel": "inf"')
    local function table_with(...) return select(2, harness.cbk_with("COLUMNS=60", dir, "diff", "a.pt", "b.pt", ...)) end
    has(table_with("--top", "1"), "\n      NaN in B only: 1, infinite: 1\n  (too narrow") -- not counted as a line
    for order, column in pairs { rel = "rel norm", cosine = "cosine", elements = "differ", abs = "max abs" } do
      local titles = 0
      for line in table_with("--sort", order):gmatch "[^\n]+" do
        titles = titles + ((line:find "^  tensor " or line:find "^  state ") and line:find(column, 1, true) and 1 or 0)
      end
      equal(titles, 2, order)
    end
  end)
end)

describe("cbk check of an optimizer", function()
  it("names the parameter of a state", function()
    local dir, model = harness.temp_dir(), cbk.dict { { "layers.0.w", cbk.tensor { 1, 2 } }, { "layers.1.w", cbk.tensor { 3, 4 } } }
    local root = checkpoint(model, { { names = cbk.keys(model) } })
    root.optimizer.state[1].exp_avg = cbk.tensor { 0 / 0, 1 }
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local status, out = harness.cbk(dir, "check", "a.pt")
    equal(status, 1)
    has(out, "a.pt: optimizer.state.1.exp_avg (of layers.1.w): 1 of 2 elements is NaN")
    has(select(2, harness.cbk(dir, "check", "a.pt", "--json")), '"parameter": "layers.1.w"')
  end)
end)

describe("cbk ls with --shape or --dtype", function()
  it("lists only those of an optimizer's tensors, too", function()
    local dir, model = harness.temp_dir(), cbk.dict { { "layers.0.w", cbk.tensor { 1, 2 } }, { "layers.1.w", cbk.tensor { 3, 4 } } }
    cbk.create(dir .. "/a.pt", { root = checkpoint(model, { { names = cbk.keys(model) } }) }):commit()
    has(select(2, harness.cbk(dir, "ls", "a.pt")), "optimizer.param_groups  1 group")
    has(select(2, harness.cbk(dir, "ls", "a.pt", "--dtype", "float16")), "3\n0 tensors, 0 elements, 0 B\n")
    local _, out = harness.cbk(dir, "ls", "a.pt", "--shape", "2")
    has(out, "optimizer.state.{0,1}.exp_avg  2 ×")
    lacks(out, "step")
    lacks(out, "param_groups")
  end)
end)

describe("cbk ls with a glob of an optimizer", function()
  it("shows it as a table, if all of it is chosen", function()
    local dir, model = harness.temp_dir(), cbk.dict { { "layers.0.w", cbk.tensor { 1, 2 } }, { "layers.1.w", cbk.tensor { 3, 4 } } }
    cbk.create(dir .. "/a.pt", { root = checkpoint(model, { { names = cbk.keys(model) } }) }):commit()
    for _, glob in ipairs { "optimizer.*", "opt*" } do
      local _, out = harness.cbk(dir, "ls", "a.pt", glob)
      has(out, "layers.{0,1}.w")
      has(out, "optimizer.param_groups  1 group")
    end
    lacks(select(2, harness.cbk(dir, "ls", "a.pt", "optimizer.state.0*")), "param_groups")
  end)

  it("says whose states some numbers are", function()
    local dir, model = harness.temp_dir(), cbk.dict()
    for i = 0, 3 do model[("layers.%d.w"):format(i)] = cbk.tensor { i, 2 } end
    cbk.create(dir .. "/a b.pt", { root = checkpoint(model, { { names = cbk.keys(model) } }) }):commit()
    for _, words in ipairs { { "optimizer.state.1" }, { "optimizer.state.1.exp_avg" }, { "--all", "optimizer.state.1" },
      { "optimizer.state.1", "--shape", "2" } } do
      has(select(2, harness.cbk(dir, "ls", "a b.pt", unpack(words))), "\noptimizer.state.1 is the state of layers.1.w\n")
    end
    local _, out = harness.cbk(dir, "ls", "a b.pt", "*.{1,2,3}.exp_avg")
    has(out, "\noptimizer.state.1 is the state of layers.1.w\noptimizer.state.2 is the state of layers.2.w\noptimizer.state.3 is")
    has(select(2, harness.cbk(dir, "ls", "a b.pt", "*.exp_avg")), "\n`cbk ls 'a b.pt' optimizer.state` shows whose states these are\n")
    for _, glob in ipairs { "optimizer", "layers.*", "optimizer.param_groups.*" } do
      lacks(select(2, harness.cbk(dir, "ls", "a b.pt", glob)), "is the state of")
    end
  end)
end)

describe("cbk show of an optimizer", function()
  it("names a part once", function()
    local dir, model = harness.temp_dir(), cbk.dict { { "w", cbk.tensor { 1, 2 } } }
    cbk.create(dir .. "/a.pt", { root = checkpoint(model, { { names = cbk.keys(model) } }) }):commit()
    is_true(select(2, harness.cbk(dir, "show", "a.pt", "optimizer.state")):find "^optimizer%.state  1 parameter[^\n]*\n  each has")
    is_true(select(2, harness.cbk(dir, "show", "a.pt", "optimizer")):find "^optimizer  dict\n  optimizer%.state  1 parameter")
  end)
end)

describe("cbk show of a part", function()
  it("reads it as NumPy does", function()
    local dir = harness.temp_dir()
    local w = cbk.tensor { { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, 10, 11 } }
    local root = cbk.dict { { "w", w }, { "a[0]", cbk.tensor { 5 } }, { "n", 3 },
      { "f", cbk.tensor({ 1, 123456.789 }, { dtype = "float32" }) }, { "c", cbk.full({ 2 }, 0, { dtype = "complex64" }) } }
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local function show(key)
      local status, out, err = harness.cbk(dir, "show", "a.pt", key)
      return status == 0 and out or err
    end
    for part, wanted in pairs { ["[1, 2]"] = "  6\n", ["[-1,-1]"] = "  11\n", ["[0:2, 1]"] = "  [1, 5]\n", ["[:, 3]"] = "  [ 3,  7, 11]\n",
      ["[2]"] = "  [ 8,  9, 10, 11]\n", ["[0, ::2]"] = "  [0, 2]\n", ["[::2, 1:4:2]"] = "  [[ 1,  3],\n   [ 9, 11]]\n",
      ["[..., 0]"] = "  [0, 4, 8]\n", ["[1, ..., -1]"] = "  7\n", ["[1:99999999999999999999, 0]"] = "  [4, 8]\n" } do
      has(show("w" .. part), wanted)
    end
    has(show "w[1, 2]", 'in Lua: ckpt["w"][2][3]\n')
    equal(cbk.open(dir .. "/a.pt").w[2][3], 6)
    has(show "a[0]", "[5]") -- a key of that name comes first
    has(show "f[1]", "\n  123456.789\n") -- with all digits of a float32
    has(show "c[0]", "complex numbers are not printed; `cbk export FILE KEY -o KEY.npy` writes them")
    has(show "w[3, 0]", "position 3 is outside of dim 0 of 'w', which has 3; positions count from 0")
    has(show "w[99999999999999999999]", "position 99999999999999999999 is outside of dim 0")
    has(show "w[500:600]", "'500:600' selects nothing of dim 0 of 'w', which has 3 positions; positions count from 0, and the end")
    has(show "w[2:1]", "'2:1' selects nothing of dim 0 of 'w'")
    has(show "w[:, 1:1]", "'1:1' selects nothing of dim 1 of 'w'")
    has(show "w[0, 0, 0]", "'w' has 2 dims, not 3")
    for _, part in ipairs { "[a]", "[1.5]", "[::0]", "[::-1]", "[]", "[..., ...]", "[1 2]", "[1:2 3]" } do
      has(show("w" .. part), ("cannot read the part '%s' of 'w': a part takes whole numbers, start:stop:step and '...'"):format(part))
    end
    has(show "w[0, 0, 0, ...]", "'w' has 2 dims, not 3")
    has(show "[ab][1]", "no key of 'a.pt' matches '[ab][1]'")
    has(show "[nw]", "n  int")
    has(show "n[0]", "'n' is not a tensor (int)")
    has(show "v[0]", "there is no 'v[0]' in 'a.pt'")
    local _, json = harness.cbk(dir, "show", "--json", "a.pt", "w[1, 0:2]")
    has(json, '"shape": [')
  end)

  it("may be of the only value, and brackets are between the parts of a key, too", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.npy", { root = cbk.dict { { "a", cbk.tensor { { 0, 1 }, { 2, 3 } } } } }):commit()
    has(select(2, harness.cbk(dir, "show", "a.npy", "[1,0]")), "a[1,0]  float32 []\n  2\n")
    local groups = cbk.list { cbk.dict { { "lr", 0.5 }, { "params", cbk.list { 0 } } } }
    local state = cbk.dict { { 0, cbk.dict { { "exp_avg", cbk.tensor { 5, 6 } } } } }
    cbk.create(dir .. "/o.pt", { root = cbk.dict { { "state", state }, { "param_groups", groups } } }):commit()
    local function show(key)
      local status, out, err = harness.cbk(dir, "show", "o.pt", key)
      return status == 0 and out or err
    end
    has(show "param_groups[0]", "param_groups.0  dict\n  Dict (2 entries)\n    lr: 0.5\n")
    has(show "param_groups[0]['lr']", "param_groups.0.lr  float\n  0.5\n")
    has(show "state[0].exp_avg[1]", "state.0.exp_avg[1]  float32 []\n  6\n")
    has(show "optimizer.param_groups[0]", "there is no 'optimizer.param_groups[0]' in 'o.pt'; did you mean 'param_groups.0'?")
    has(show "optimizer.param_groups", "did you mean 'param_groups'?")
    for _, words in ipairs { { "ls", "o.pt", "state[0]" }, { "export", "o.pt", "state[0]", "-o", "x.npz" },
      { "copy", "o.pt", "x.pt", "--include", "state[0]" }, { "stats", "o.pt", "--key", "state[0]" } } do
      has(select(3, harness.cbk(dir, unpack(words))), "did you mean 'state.0'?")
    end
    has(select(3, harness.cbk(dir, "stats", "o.pt", "state[0]")), "there is no file 'state[0]'; a key is chosen with --key 'state.0'")
    for _, words in ipairs { { "state.0.exp_avg[0]" }, { "--key", "state.0.exp_avg[0]" } } do
      has(select(3, harness.cbk(dir, "stats", "o.pt", unpack(words))),
        "'state.0.exp_avg[0]' is a part of a tensor: `cbk show o.pt 'state.0.exp_avg[0]'` prints its statistics")
    end
  end)

  it("are those of all tensors that a glob matches", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "h.0.w", cbk.tensor { { 0, 1 }, { 2, 3 } } }, { "h.1.w", cbk.tensor { { 4, 5 }, { 6, 7 } } }, { "n.w", 3 } }
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local _, out = harness.cbk(dir, "show", "a.pt", "*.w[0, 1]", "--no-stats")
    has(out, 'h.0.w[0, 1]  float32 []\n  1\n  in Lua: ckpt["h.0.w"][1][2]\n\nh.1.w[0, 1]  float32 []\n  5\n')
    has(select(3, harness.cbk(dir, "show", "a.pt", "*.v[0]")), "no key of 'a.pt' matches '*.v[0]'")
    has(select(3, harness.cbk(dir, "show", "a.pt", "*.w[0, 1, 0]")), "'h.0.w' has 2 dims, not 3")
  end)
end)

describe("Items of lists", function()
  it("count from 0 in keys, and are indices in Lua", function()
    local dir = harness.temp_dir()
    local list = cbk.list { cbk.dict { { "a", 1 }, { "b", cbk.list { cbk.dict { { "c", 2 } } } } }, cbk.dict { { "a", 2 } } }
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { "x", list } } }):commit()
    has(select(2, harness.cbk(dir, "show", "a.pt", "x")), "    0: Dict")
    has(select(2, harness.cbk(dir, "-e", 'cbk.open("a.pt").x')), "  [1]: Dict")
  end)

  it("that are many plain values fill lines, or are cut in the middle inside of others", function()
    local dir = harness.temp_dir()
    local numbers = cbk.list()
    for i = 1, 200 do numbers[i] = i end
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { "x", numbers }, { "y", cbk.dict { { "z", numbers } } } } }):commit()
    local out = select(2, harness.cbk(dir, "show", "a.pt", "x"))
    has(out, "\n    1, 2, 3, 4,")
    has(out, "199, 200\n")
    for line in out:gmatch "[^\n]+" do is_true(#line <= 100) end
    has(select(2, harness.cbk(dir, "show", "a.pt", "y")), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, … 200] (200 items)")
    local named = cbk.dict { { "a_name_of_parameters", numbers }, { "short", cbk.list { 1, 2, 3 } },
      { "texts", cbk.list { ("a"):rep(70), ("b"):rep(70) } } }
    local text = require("cbk.inspect").text(named, { columns = 60 })
    has(text, "  a_name_of_parameters: [1, 2, 3, 4, 5, … 200] (200 items)\n  short: [1, 2, 3]")
    for columns = 50, 120 do
      for line in require("cbk.inspect").text(named, { columns = columns }):gmatch "[^\n]+" do
        is_true(cbk.terminal.columns(line) <= columns, line)
      end
    end
  end)
end)
