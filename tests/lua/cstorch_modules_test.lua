-- Modules as containers of parameters, and what `save` keeps of tables.

local cbk = require "cbk"
local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local nn, optim = cstorch.nn, cstorch.optim

describe("cstorch: assigning to a module", function()
  it("keeps parameters and modules what they are", function()
    local model, list = nn.Linear(2, 2), nn.ModuleList { nn.ReLU(), nn.Tanh() }
    raises("'weight' must be an nn.Parameter or nil, not a tensor", function() model.weight = cstorch.ones { 2, 2 } end, "type")
    raises("expected an nn.Module, found 3", function() list["0"] = 3 end, "type")
    model.bias = nil
    equal(#model:parameters(), 1)
  end)

  it("replaces members of lists by position", function()
    local list, own = nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Identity()
    list[2] = own
    is_true(list[2] == own and list["1"] == own)
    equal(list(cstorch.tensor { -1, 2 }):tolist(), { 0, 2 })
    list["1"] = nn.Linear(2, 1)
    equal({ #list:parameters(), tostring(list[2]) }, { 2, "Linear(2, 1)" })
    raises("there is no module 4 to replace; the next new one is 3", function() list[4] = own end, "value")
    list[1] = 5
    raises("expected a module as item 1, found 5", function() list:parameters() end, "type")
  end)
end)

describe("cstorch: state dicts", function()
  it("are looped over in their order, and by pairs in any", function()
    local model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    local optimizer = cstorch.optim.Adam(model:parameters(), { lr = 0.1 })
    local path = harness.temp_dir() .. "/state.mdl"
    cstorch.save({ model = model:state_dict() }, path)
    local function keys(map)
      local list = {}
      for key in cbk.items(map) do list[#list + 1] = key end
      return list
    end
    local names = { "0.weight", "0.bias", "1.weight", "1.bias" }
    equal(keys(model:state_dict()), names)
    local found = {}
    for key in pairs(model:state_dict()) do found[#found + 1] = key end
    table.sort(found)
    equal(found, { "0.bias", "0.weight", "1.bias", "1.weight" })
    equal(keys(cstorch.load(path).model), names)
    equal(keys(cstorch.load(path, { map_location = "cpu" }).model), names)
    equal(keys(optimizer:state_dict().state), { 0, 1, 2, 3 })
    equal(#keys(optimizer.state[model[1].weight]), 4)
  end)
end)

describe("cstorch: a list of modules", function()
  local function names(module)
    local list = {}
    for name in module:named_parameters() do list[#list + 1] = name end
    return list
  end

  it("is one for # and ipairs", function()
    for _, list in ipairs { nn.ModuleList { nn.Linear(1, 1), nn.ReLU() }, nn.Sequential(nn.Linear(1, 1), nn.ReLU()) } do
      local seen = {}
      for i, module in ipairs(list) do seen[i] = module.class.name end
      equal({ #list, list:length(), seen, list[3] }, { 2, 2, { "Linear", "ReLU" }, nil })
    end
  end)

  it("grows and shrinks at its end", function()
    local list = nn.ModuleList {}
    for i = 1, 3 do list[#list + 1] = nn.Linear(i, 1, { bias = false }) end
    list:append(nn.Linear(4, 1, { bias = false }))
    list[#list] = nil
    equal(names(list), { "0.weight", "1.weight", "2.weight" })
    list[2] = nn.Linear(1, 1)
    equal(names(list), { "0.weight", "1.weight", "1.bias", "2.weight" })
    equal(#list:state_dict()["0.weight"]:tolist(), 1)
  end)

  it("runs modules with names of their own in their order", function()
    local list = nn.Sequential(nn.Linear(2, 2))
    list:add_module("act", nn.ReLU())
    cstorch.no_grad(function()
      list[1].weight:fill_(-1)
      list[1].bias:fill_(0)
    end)
    equal(list(cstorch.ones { 2 }):tolist(), { 0, 0 })
  end)
end)

describe("cstorch: a module at two places", function()
  it("has both names in the state dict, and its parameters once", function()
    local shared = nn.Linear(1, 2)
    local model, names = nn.Sequential(shared, shared), {}
    for name in cstorch.items(model:state_dict()) do names[#names + 1] = name end
    equal(names, { "0.weight", "0.bias", "1.weight", "1.bias" })
    equal(#model:parameters(), 2)
    model:load_state_dict(nn.Sequential(nn.Linear(1, 2), nn.Linear(1, 2)):state_dict())
  end)
end)

describe("cstorch: names of a module", function()
  local x, model = cstorch.ones { 2 }, nn.Sequential(nn.Linear(2, 2))
  local linear = model[1]
  for text, body in pairs {
    ["register_buffer: cannot make 'weight' a buffer, as Linear has a parameter"] = function() linear:register_buffer("weight", x) end,
    ["cannot make '0' a parameter, as Sequential has a module"] = function() model:register_parameter("0", nn.Parameter(x)) end,
    ["cannot make 'seen' a parameter, as Linear has a buffer"] = function() linear:register_parameter("seen", nn.Parameter(x)) end,
    ["cannot make 'bias' a module, as Linear has a parameter"] = function() linear:add_module("bias", nn.ReLU()) end,
    ["cannot make 'forward' a buffer, as Linear has a method"] = function() linear:register_buffer("forward", x) end,
    ["cannot make 'training' a buffer, as Linear has a field"] = function() linear:register_buffer("training", x) end,
  } do
    it("mean one thing: " .. text, function()
      linear:register_buffer("seen", x)
      raises(text, body, "value")
      local names = {}
      for name in cstorch.items(model:state_dict()) do names[#names + 1] = name end
      equal(names, { "0.weight", "0.bias", "0.seen" })
    end)
  end

  it("may get another value of the same kind", function()
    linear:register_buffer("seen", x + 1)
    linear:register_parameter("bias", nn.Parameter(x))
    model:add_module("0", linear)
    equal({ linear.seen:tolist(), linear.bias:tolist() }, { { 2, 2 }, { 1, 1 } })
  end)
end)

describe("cstorch: a state dict of a model", function()
  it("is checked as a whole before anything is written", function()
    local model = nn.Linear(2, 2)
    local before, fine = model.weight:tolist(), cbk.tensor({ 1, 2, 3, 4 }, { dtype = "float32" }):reshape { 2, 2 }
    for _, dtype in ipairs { "int16", "complex64" } do
      raises(("load_state_dict: 'bias': cannot compute with dtype '%s'"):format(dtype), function()
        model:load_state_dict { weight = fine, bias = cbk.tensor({ 0, 0 }, { dtype = dtype, shape = { 2 } }) }
      end, "type")
      equal(model.weight:tolist(), before)
    end
  end)

  it("has names as keys", function()
    local model = nn.Linear(2, 2)
    for _, key in ipairs { 1, true } do
      local state = { weight = model.weight, bias = model.bias, [key] = model.bias, foo = model.weight }
      raises("load_state_dict: expected names as keys, found " .. tostring(key), function() model:load_state_dict(state) end, "type")
    end
    local state = cbk.dict { foo = 1 }
    state[1] = 2
    raises("expected names as keys, found 1", function() model:load_state_dict(state, { strict = false }) end, "type")
  end)

  it("says what does not fit where that is allowed", function()
    local warned
    local before = cstorch.on_warning(function(text) warned = text end)
    local model = nn.Linear(2, 2)
    local state = { weight = cstorch.full({ 2, 2 }, 7), foo = model.weight, bar = model.weight }
    equal(model:load_state_dict(state, { strict = false }), { missing_keys = { "bias" }, unexpected_keys = { "bar", "foo" } })
    equal({ model.weight:tolist(), warned }, { { { 7, 7 }, { 7, 7 } } })
    model:load_state_dict({ module_weight = model.weight }, { strict = false })
    cstorch.on_warning(before)
    is_true(warned:find "nothing is loaded: Linear: the state dict does not fit: missing 'bias', 'weight'; unknown 'module_weight'")
  end)
end)

describe("cstorch: save", function()
  it("takes what load gave, with changes", function()
    local path, model = harness.temp_dir() .. "/state.mdl", nn.Linear(2, 1)
    cstorch.save({ model = model:state_dict(), step = 3 }, path)
    for _, options in ipairs { false, { map_location = "cpu" } } do
      local state = cstorch.load(path, options or nil)
      state.step = state.step + 1
      state.model.bias = cstorch.full({ 1 }, state.step)
      cstorch.save(state, path)
    end
    local state = cstorch.load(path)
    equal({ state.step, cstorch.tensor(state.model.bias):item() }, { 5, 5 })
    equal(cstorch.tensor(state.model.weight):tolist(), model.weight:tolist())
    raises("save: expected a table such as", function() cstorch.save(model, path) end, "type")
  end)

  it("loses nothing of a table that is no list", function()
    local path = harness.temp_dir() .. "/tables.mdl"
    cstorch.save({ list = { 1, 2 }, holes = { 1, 2, nil, 4 }, zero = { [0] = 5, [1] = 6 }, mixed = { 7, x = 8 } }, path)
    local root = cstorch.load(path)
    equal(cbk.kind(root.list), "list")
    equal({ root.holes[4], root.zero[0], root.zero[1], root.mixed[1], root.mixed.x }, { 4, 5, 6, 7, 8 })
    raises("keys are strings and numbers", function() cstorch.save({ [true] = 1 }, path) end, "type")
  end)

  it("keeps integer keys of ordered maps, also of 1 to n: they number parameters", function()
    local path = harness.temp_dir() .. "/numbers.mdl"
    local a, b = nn.Parameter(cstorch.ones { 1 }), nn.Parameter(cstorch.ones { 1 })
    local optimizer = optim.SGD({ { params = a, momentum = 0 }, { params = b, momentum = 0.9 } }, { lr = 0.1 })
    optimizer.state[b].momentum_buffer:fill_(7)
    cstorch.save(optimizer:state_dict(), path)
    for _, options in ipairs { {}, { map_location = "cpu" } } do
      local state = cstorch.load(path, options)
      cstorch.save(state, path)
      equal(cstorch.load(path).state[1].momentum_buffer:tolist(), { 7 })
      optimizer:load_state_dict(state)
      equal(optimizer.state[b].momentum_buffer:item(), 7)
    end
  end)

  it("keeps a group without parameters", function()
    local path = harness.temp_dir() .. "/empty.mdl"
    local optimizer = optim.SGD({ { params = { nn.Parameter(cstorch.ones { 1 }) } }, { params = {} } }, { lr = 0.1 })
    cstorch.save(optimizer:state_dict(), path)
    for _, options in ipairs { {}, { map_location = "cpu" } } do optimizer:load_state_dict(cstorch.load(path, options)) end
    equal(#optimizer.param_groups[2].params, 0)
  end)

  it("refuses what is nested too deeply, and what is no value", function()
    local path, deep = harness.temp_dir() .. "/deep.mdl", { 1 }
    for _ = 1, 20000 do deep = { deep } end
    raises("tables are nested more than 100 deep", function() cstorch.save({ deep = deep }, path) end, "value")
    raises("'a': a thread cannot be stored", function() cstorch.save({ a = coroutine.create(print) }, path) end, "value")
  end)

  it("says that this script replaced the file that its tensors are in", function()
    local path = harness.temp_dir() .. "/self.mdl"
    cstorch.save({ a = cstorch.randn { 1000 } }, path)
    local state = cstorch.load(path)
    local in_memory = cstorch.load(path, { map_location = "cpu" })
    cstorch.save(state, path)
    raises("before this script replaced that file; load it with { map_location", function() cstorch.save({ a = state.a }, path) end,
      "runtime")
    cstorch.save({ a = in_memory.a }, path)
    cstorch.save({ a = cstorch.load(path).a }, path)
  end)
end)

describe("cstorch: save on the CSX", function()
  it("takes what is on the host at any time, and weights in closures", fresh(function()
    local path, model = harness.temp_dir() .. "/host.mdl", nn.Linear(2, 1)
    cstorch.compile(model, { backend = "CSX" })
    cstorch.save({ step = 1, x = cstorch.ones { 2 } }, path)
    equal(cstorch.load(path).step, 1)
    raises("call save in a function made with cstorch.checkpoint_closure", function() cstorch.save(model:state_dict(), path) end, "runtime")
  end))
end)

describe("cstorch: a checkpoint of torch", function()
  it("has state dicts that are OrderedDicts", function()
    local path, model = harness.temp_dir() .. "/torch.pt", nn.Linear(2, 1)
    local weight, bias = cbk.tensor({ 1, 2 }, { dtype = "float32" }):reshape { 1, 2 }, cbk.tensor({ 3 }, { dtype = "float32" })
    local state = cbk.dict({ { "weight", weight }, { "bias", bias } }, "ordereddict")
    cbk.create(path, { root = cbk.dict { model = state } }):commit()
    for _, options in ipairs { {}, { map_location = "cpu" } } do
      model:load_state_dict(cstorch.load(path, options).model)
      equal({ model.weight:tolist(), model.bias:tolist() }, { { { 1, 2 } }, { 3 } })
    end
  end)
end)
