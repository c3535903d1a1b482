-- Modules as containers of parameters, and what `save` keeps of tables.

local cbk = require "cbk"
local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local nn = cstorch.nn

describe("cstorch: assigning to a module", function()
  it("keeps parameters and modules what they are", function()
    local model, list = nn.Linear(2, 2), nn.ModuleList { nn.ReLU(), nn.Tanh() }
    raises("'weight' must be an nn.Parameter or nil, not a tensor", function() model.weight = cstorch.ones { 2, 2 } end, "type")
    raises("'0' must be a module or nil, not 3", function() list["0"] = 3 end, "type")
    model.bias = nil
    equal(#model:parameters(), 1)
  end)

  it("replaces members of lists by position", function()
    local list, own = nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Identity()
    list[2] = own
    is_true(list[2] == own and list["1"] == own and rawget(list, 2) == nil)
    raises("there is no module 3 to replace", function() list[3] = own end, "value")
    raises("expected a module as item 1, found 5", function() list[1] = 5 end, "type")
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

describe("cstorch: save", function()
  it("loses nothing of a table that is no list", function()
    local path = harness.temp_dir() .. "/tables.mdl"
    cstorch.save({ list = { 1, 2 }, holes = { 1, 2, nil, 4 }, zero = { [0] = 5, [1] = 6 }, mixed = { 7, x = 8 } }, path)
    local root = cstorch.load(path)
    equal(cbk.kind(root.list), "list")
    equal({ root.holes[4], root.zero[0], root.zero[1], root.mixed[1], root.mixed.x }, { 4, 5, 6, 7, 8 })
    raises("keys are strings and numbers", function() cstorch.save({ [true] = 1 }, path) end, "type")
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
