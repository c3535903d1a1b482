-- What users get wrong: every error is one of cstorch, with a kind, a message, and the place in the script.

local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local nn, optim = cstorch.nn, cstorch.optim
local F, data = nn.functional, cstorch.utils.data

local x, p = cstorch.ones { 2, 3 }, cstorch.tensor({ 1, 2 }, { requires_grad = true })
local ids, model = cstorch.tensor({ 0, 1 }, { dtype = "int64" }), nn.Linear(3, 2)
local function rows() return { cstorch.ones { 2, 3 } } end

--- kind, part of the message, what raises it
local CASES = {
  { "runtime", "shapes [2, 3] and [4] do not fit", function() return x + cstorch.ones { 4 } end },
  { "type", "bad argument #2 to '+' (tensor or number expected, got nil)", function() return x + nil end },
  { "type", "tostring(t)", function() return x .. "a" end },
  { "type", "t:numel() counts elements", function() return #x end },
  { "type", "t:select(dim, i)", function() return x[1] end },
  { "type", "is not a function", function() return x(1) end },
  { "runtime", "a:lt(b)", function() return x < x end },
  { "value", "'reshape'", function() return x:rehsape { 1 } end },
  { "value", "'dtype'", function() return x.dtyp end },
  { "type", "cannot be assigned", function() x.foo = 1 end },
  { "type", "'tensor:reshape' (list of integers expected, got number)", function() return x:reshape(3, 2) end },
  { "type", "did you mean 'keepdim'", function() return x:sum(0, { keepdims = true }) end },
  { "type", "'tensor:sum' is a method; call it with a colon", function() return x.sum() end },
  { "value", "dim 7 does not exist", function() return x:sum(7) end },
  { "type", "list of tensors expected", function() return cstorch.cat(x) end },
  { "type", "item 2 of the list of tensors is a number", function() return cstorch.cat { x, 1 } end },
  { "type", "expected numbers in the list, found a string", function() return cstorch.tensor { 1, "a" } end },
  { "value", "not nested evenly: one of length 1 at depth 1", function() return cstorch.tensor { { 1, 2 }, { 3 } } end },
  { "type", "did you mean 'requires_grad'", function() return cstorch.tensor({ 1 }, { requires_gard = true }) end },
  { "type", "no_grad: expected a function", function() cstorch.no_grad() end },
  { "value", "did you mean 'tensor'", function() return cstorch.tensr end },
  { "value", "did you mean 'AdamW'", function() return optim.AdmW end },
  { "runtime", "needs a tensor of one element", function() p:backward() end },
  { "runtime", "does not depend on anything", function() x:sum():backward() end },
  { "runtime", "was run through this graph before", function()
    local loss = (p * p):sum()
    loss:backward()
    loss:backward()
  end },
  { "runtime", "was changed in place after it was used", function()
    local y = p * 1
    local loss = (y * y):sum()
    y:add_(1)
    loss:backward()
  end },
  { "runtime", "cstorch.no_grad(function()", function() p:add_(1) end },
  { "runtime", "clone() it before", function() cstorch.ones({ 1 }):expand({ 3 }):add_(1) end },
  { "type", "did you mean 'alpha'", function() x:add_(1, { alhpa = 1 }) end },
  { "type", "relu: expected a tensor, found nil", function() F.relu() end },
  { "type", "softmax: expected a tensor, found 'x'", function() F.softmax "x" end },
  { "type", "mse_loss: expected a tensor, found 1", function() F.mse_loss(1, 2) end },
  { "value", "p must be in [0, 1], not 'a'", function() F.dropout(x, { p = "a" }) end },
  { "type", "labels must be whole numbers", function() F.cross_entropy(x, cstorch.tensor { 1, 2 }) end },
  { "value", "not in [0, 2)", function() F.embedding(ids + 5, x) end },
  { "value", "dropout_p must be in [0, 1), not 1", function() F.scaled_dot_product_attention(x, x, x, { dropout_p = 1 }) end },
  { "value", "a cap must be greater than 0, not 0", function() F.scaled_dot_product_attention(x, x, x, { cap = 0 }) end },
  { "type", "did you mean 'causal'", function() F.scaled_dot_product_attention(x, x, x, { is_causal = true }) end },
  { "type", "unknown keyword 'bais'; did you mean 'bias'", function() nn.Linear(1, 2, { bais = true }) end },
  { "type", "expected a list of modules { a, b }", function() nn.ModuleList(model, model) end },
  { "value", "width must be a whole number", function() nn.MultiheadAttention() end },
  { "type", "expected q as a tensor [batch, length, width], found [2, 3]", function() nn.MultiheadAttention(8, 4)(x) end },
  { "type", "as in model:parameters()", function() model.parameters() end },
  { "type", "load_state_dict: 'weight': expected a tensor, found 'a'", function()
    model:load_state_dict { weight = "a", bias = cstorch.ones { 2 } }
  end },
  { "runtime", "missing 'bias'", function() model:load_state_dict { weight = cstorch.ones { 2, 3 } } end },
  { "type", "apply: expected a function", function() model:apply(3) end },
  { "type", "expected a list of parameters as params of group 1, found 3", function() optim.SGD({ { params = 3 } }, { lr = 1 }) end },
  { "type", "params of group 1, found a table with the key 'w'", function()
    optim.SGD({ { params = { w = model.weight } } }, { lr = 1 })
  end },
  { "value", "item 2 of the list of parameters as params of group 1 is nil", function()
    optim.SGD({ { params = { model.bias, nil, model.weight } } }, { lr = 1 })
  end },
  { "type", "groups, found a table with the key 'head'", function()
    optim.SGD({ { params = { model.bias } }, head = { params = { model.weight } } }, { lr = 1 })
  end },
  { "type", "clip_grad_norm_: expected a list of parameters, found a Linear", function() nn.utils.clip_grad_norm_(model, 1) end },
  { "type", "clip_grad_value_: expected a list of parameters, found a table", function()
    nn.utils.clip_grad_value_(model:state_dict(), 1)
  end },
  { "type", "clip_grad_norm_: expected a list of parameters, found a table with the key 'w'", function()
    nn.utils.clip_grad_norm_({ w = model.weight }, 1)
  end },
  { "type", "optimizer:zero_grad()", function() optim.SGD(model:parameters(), { lr = 1 }).zero_grad() end },
  { "type", "for i, batch in loader:iter() do", function()
    local loader = data.DataLoader(rows, { num_steps = 1 })
    loader()
  end },
  { "type", "loader:iter()", function() data.DataLoader(rows, { num_steps = 1 }).iter() end },
  { "type", "model_dir must be a string, not 3", function() cstorch.configure { model_dir = 3 } end },
  { "type", "mount_dirs must be a list of strings, not 'x'", function() cstorch.configure { mount_dirs = "x" } end },
  { "type", "python_paths must be a list of strings, but 3 is in it", function() cstorch.configure { python_paths = { 3 } } end },
  { "value", "num_csx must be a whole number from 1 to 2048, not 1e+300", function() cstorch.configure { num_csx = 1e300 } end },
  { "value", "num_workers_per_csx must be a whole number from 1 to 1024", function() cstorch.configure { num_workers_per_csx = 2e3 } end },
  { "type", "cannot order a table with a boolean as a key", function() optim.configure_scheduler(nil, { [true] = {} }) end },
  { "type", "cannot order a table with a table as a key", function() optim.SGD({ { [{}] = 1 } }, { lr = 1 }) end },
  { "value", "the form 'key=value'", function() cstorch.configure { job_labels = { "a" } } end },
  { "type", "a function cannot be stored ('a')", function() cstorch.save({ a = print }, "x.mdl") end },
  { "type", "save its state_dict()", function() cstorch.save({ a = model }, "x.mdl") end },
  { "type", "load: expected the path", function() cstorch.load() end },
  { "type", "Embedding: unknown keyword 'padding_idx'", function() nn.Embedding(2, 2, { padding_idx = 0 }) end },
  { "type", "ReLU: expected at most 0 arguments, found 1", function() nn.ReLU(true) end },
  { "type", "Dropout: expected at most 1 arguments, found 3", function() nn.Dropout(0.1, nil, true) end },
  { "type", "clip_grad_norm_: unknown keyword 'norm_type'", function() nn.utils.clip_grad_norm_({ x }, 1, { norm_type = 1 }) end },
  { "type", "linear: expected a keyword table", function() nn.functional.linear(x, x, nil, 3) end },
  { "type", "unknown option 'retain_graph'", function() x:sum():backward(nil, { retain_graph = true }) end },
  { "type", "unknown option 'dtype'", function() x:softmax(0, { dtype = "float64" }) end },
  { "type", "bad argument #2 to 'tensor:to' (unknown option 'copy')", function() x:to("int32", { copy = true }) end },
  { "type", "it does not take so many arguments", function() x:transpose(0, 1, 2) end },
  { "type", "unknown option 'a'", function() cstorch.cat({ x, x }, 0, { a = 1 }) end },
  { "type", "unknown option 'beta'; known: alpha", function() x:add(x, { beta = 2 }) end },
  { "type", "tensors have no '%'; the remainder is x - (x / y):floor() * y", function() return x % 2 end },
  { "value", "flatten: the first dim 1 comes after the last, 0", function() cstorch.ones({ 2, 3 }):flatten(1, 0) end },
}

describe("cstorch: errors", function()
  for _, case in ipairs(CASES) do
    it(("of the kind %s: %s"):format(case[1], case[2]), function()
      cstorch.testing.reset()
      local fine, problem = pcall(case[3])
      is_true(not fine and type(problem) == "table", "an error: " .. tostring(problem))
      is_true(problem.message:find(case[2], 1, true), problem.message)
      equal(problem.kind, case[1])
      is_true(problem.where and problem.where:find "cstorch_errors_test%.lua:%d+$", "the place: " .. tostring(problem.where))
    end)
  end
end)

--- The error of a step on the CSX.
local function in_step(body)
  cstorch.testing.reset()
  local compiled = cstorch.compile(nn.Linear(3, 2), { backend = "CSX" })
  local step = cstorch.compile_step(function(batch) return body(compiled, batch) end)
  local fine, problem = pcall(function()
    for _, batch in data.DataLoader(rows, { num_steps = 2 }):iter() do step(batch) end
  end)
  cstorch.testing.reset()
  return not fine and problem or {}
end

describe("cstorch: errors in a step on the CSX", function()
  local host = cstorch.ones {}
  for text, body in pairs {
    ["cannot be used together"] = function(net, batch) return net(batch) + host end,
    ["cannot be read inside of a compiled step"] = function(net, batch) return net(batch):sum():item() end,
    ["cstorch.step_closure"] = function(net, batch) return net(batch):tolist() end,
    ["keep to tensors"] = function(net, batch) return tostring(net(batch)) end,
    ["nothing would be computed"] = function(net, batch) net(batch) end,
    ["was run through this graph before"] = function(net, batch)
      local loss = net(batch):sum()
      loss:backward()
      loss:backward()
      return loss
    end,
  } do
    it("say: " .. text, function()
      local problem = in_step(body)
      equal(problem.kind, "runtime")
      is_true(problem.message:find(text, 1, true), problem.message)
    end)
  end
end)
