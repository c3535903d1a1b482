-- The whole surface with wrong arguments: whatever a script passes, an error is one of cstorch and names what was called.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, is_true = harness.describe, harness.it, harness.is_true
local nn, optim, utils = cstorch.nn, cstorch.optim, cstorch.utils
local lr, wd = optim.lr_scheduler, optim.weight_decay_scheduler

local KINDS = { value = true, type = true, runtime = true, assertion = true }

local function silent() end

--- What every function and method is called with, after an object if there is one. `n` counts arguments that are nil, too.
local function wrong_arguments()
  local loop = {}
  loop[1] = loop
  local list = { { n = 0 }, { n = 2 } }
  local ones = cstorch.ones { 2 }
  for _, one in ipairs { "x", "", 3, -1, 0.5, 0 / 0, {}, { "x" }, { x = 1 }, loop, true, silent, cbk.dict { x = 1 }, ones } do
    list[#list + 1] = { n = 1, one }
    list[#list + 1] = { n = 2, one, one }
    list[#list + 1] = { n = 3, cstorch.ones { 2, 2 }, one, one }
  end
  return list
end

--- Calls that a test must not make: they write into the folder of the tests, or end what comes after.
local SKIPPED = {
  ["cstorch.save"] = true, ["cstorch.utils.SummaryWriter"] = true, ["cstorch.on_warning"] = true, ["cstorch.testing"] = true,
  ["cstorch.class"] = true, ["SummaryWriter:add_tensor"] = true, ["SummaryWriter:add_scalar"] = true,
}

local function text_of(arguments)
  local texts = {}
  for i = 1, arguments.n do texts[i] = tostring(arguments[i]) end
  return "(" .. table.concat(texts, ", ") .. ")"
end

--- Checks the error of one call, if there is one: `names` has what its message may name.
local function check_call(what, names, fn, arguments)
  local fine, problem = pcall(fn, unpack(arguments, 1, arguments.n))
  harness.checked() -- some take anything
  if fine then return end
  local call = what .. text_of(arguments)
  is_true(type(problem) == "table" and KINDS[problem.kind], call .. " raised: " .. tostring(problem))
  local message = problem.message
  is_true(type(message) == "string" and not message:find "attempt to" and not message:find "%f[%w]nil value", call .. ": " .. message)
  local is_named = false
  for _, name in ipairs(names) do is_named = is_named or message:lower():find(name:lower(), 1, true) ~= nil end
  is_true(is_named, call .. " does not name it: " .. message)
end

local function silently(body)
  cstorch.testing.reset()
  local before = cstorch.on_warning(function() end)
  local fine, problem = pcall(body)
  cstorch.testing.reset()
  cstorch.on_warning(before)
  if not fine then error(problem, 0) end
end

local function is_class(value) return type(value) == "table" and rawget(value, "object_metatable") ~= nil end

--- Keywords of a class and other words that its errors may use for what is wrong.
local function names_of_class(class)
  local names = { class.name, "contains itself", class.name:find "^Transformer" and "MultiheadAttention" or nil }
  for name in pairs(class.keywords or {}) do names[#names + 1] = name end
  return names
end

--- Words of messages for functions that pass on their argument.
local WORDS = {
  configure_lr_scheduler = { "learning_rate", "optimizer", "schedule" }, configure_scheduler = { "optimizer" },
  trace = { "compile_step" }, load = { "open" }, value = { "item()" }, where = { "shapes" }, lazily = { "a formula" },
  backend = { "backend" }, compile_step = { "step" },
  F = { "shape", "dim", "extent", "id ", "dtype", "label", "class" },
}

local function check_function(what, value, words)
  local names = { what:match "([%w_]+)$", "contains itself" }
  for _, word in ipairs(WORDS[names[1]] or {}) do names[#names + 1] = word end
  for _, word in ipairs(words or {}) do names[#names + 1] = word end
  for _, arguments in ipairs(wrong_arguments()) do
    silently(function() check_call(what, is_class(value) and names_of_class(value) or names, value, arguments) end)
  end
end

describe("cstorch: wrong arguments of", function()
  for name, module in pairs {
    ["cstorch"] = cstorch, ["cstorch.nn"] = nn, ["cstorch.nn.functional"] = nn.functional, ["cstorch.nn.utils"] = nn.utils,
    ["cstorch.optim"] = optim, ["cstorch.optim.lr_scheduler"] = lr, ["cstorch.optim.weight_decay_scheduler"] = wd,
    ["cstorch.amp"] = cstorch.amp, ["cstorch.metrics"] = cstorch.metrics, ["cstorch.utils"] = utils, ["cstorch.utils.data"] = utils.data,
    ["cstorch.sparse"] = cstorch.sparse,
  } do
    local members = {}
    for member in pairs(module) do members[#members + 1] = member end
    for member in pairs(getmetatable(module).parts or {}) do
      if rawget(module, member) == nil then members[#members + 1] = member end
    end
    for _, member in ipairs(members) do
      local what, value = name .. "." .. member, module[member]
      local is_called = type(value) == "function" or is_class(value)
      if is_called and not SKIPPED[what] then
        it(what, function() check_function(what, value, name:find "functional" and WORDS.F or nil) end)
      end
    end
  end
end)

local function model() return nn.Linear(2, 2) end
local function optimizer() return optim.AdamW(model():parameters(), { lr = 0.1 }) end
local function linear_lr(of) return lr.LinearLR(of, { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 4 }) end
local function loader() return utils.data.DataLoader(function() return { cstorch.ones { 2, 2 } } end, { num_steps = 2 }) end

--- What makes objects of the library, by their names in messages.
local MAKERS = {
  tensor = function() return cstorch.ones { 2, 2 } end, Linear = model, Sequential = function() return nn.Sequential(nn.ReLU()) end,
  ModuleList = function() return nn.ModuleList {} end, MultiheadAttention = function() return nn.MultiheadAttention(2, 1) end,
  TransformerDecoderLayer = function() return nn.TransformerDecoderLayer(2, 1) end, AdamW = optimizer,
  SGD = function() return optim.SGD(model():parameters(), { lr = 1 }) end, LinearLR = function() return linear_lr(optimizer()) end,
  SequentialLR = function()
    local of = optimizer()
    return lr.SequentialLR(of, { schedulers = { linear_lr(of) }, milestones = {} })
  end,
  ScalePerParamLR = function()
    local of = optimizer()
    return lr.ScalePerParamLR(of, { scheduler = linear_lr(of) })
  end,
  GradScaler = function() return cstorch.amp.GradScaler { loss_scale = "dynamic" } end,
  AccuracyMetric = function() return cstorch.metrics.AccuracyMetric "a" end,
  MeanIOUMetric = function() return cstorch.metrics.MeanIOUMetric("b", { num_classes = 2 }) end,
  AUCMetric = function() return cstorch.metrics.AUCMetric "c" end, DataLoader = loader,
  DataExecutor = function() return utils.data.DataExecutor(loader()) end, StepRange = function() return utils.StepRange(0, 4) end,
  ShardedSampler = function() return utils.data.ShardedSampler { dataset_size = 4 } end,
  SummaryReader = function() return utils.SummaryReader "/tmp" end,
  Progress = function() return utils.Progress { batch_size = 1, print = silent } end,
  Static = function()
    local sparsity = cstorch.sparse.Static { sparsity = 0.5 }
    sparsity:apply(model())
    return sparsity
  end,
}

--- The public methods of an object.
local function methods_of(object)
  local names, class = {}, type(object) == "userdata" and { methods = getmetatable(object).methods } or object.class
  if class.methods then
    for name in pairs(class.methods) do names[name] = true end
    return names
  end
  while class do
    for name, value in pairs(class) do
      if type(value) == "function" and not name:find "^_" then names[name] = true end
    end
    class = class.super
  end
  return names
end

--- What an error of a method may name beside it.
local SHAPED = { "shape", "dim", "extent", "element", "list", "dtype", "backward", "gradient", "device", "value", "in place", "index" }
--- Methods that the library or a subclass calls.
local HOOKS = {
  closed_form = true, validate = true, check_arguments = true, preinitialize = true, check_group = true, convert_group = true,
  convert_state = true, mean_of_ratios = true, confusion = true, parts = true,
}
local STATIC = { zeros = true, scalar = true, subclass = true, set_value_lambda = true, isinstance = true }

local function check_method(kind, name)
  local words = { name, kind, (name:gsub("_$", "")) }
  for _, word in ipairs(kind == "tensor" and SHAPED or { "expected", "found" }) do words[#words + 1] = word end
  -- what init passes on to that of a base
  for _, word in ipairs(name == "init" and { "keyword", "contains itself", "MultiheadAttention" } or {}) do words[#words + 1] = word end
  silently(function()
    local object = MAKERS[kind]()
    for _, arguments in ipairs(wrong_arguments()) do
      check_call(kind .. ":" .. name, words, function(...) return object[name](object, ...) end, arguments)
      if not STATIC[name] then check_call(kind .. "." .. name, words, object[name], arguments) end
    end
  end)
end

describe("cstorch: wrong arguments of methods of", function()
  for kind, make in pairs(MAKERS) do
    it(kind, function()
      for name in pairs(methods_of(make())) do
        if not SKIPPED[kind .. ":" .. name] and not HOOKS[name] then check_method(kind, name) end
      end
    end)
  end

  it("all kinds, whose misspelt names are errors", function()
    for kind, make in pairs(MAKERS) do
      local object = make()
      for name in pairs(methods_of(object)) do
        local fine, problem = pcall(function() return object[name .. "q"] end)
        is_true(not fine and type(problem) == "table" and problem.kind == "value", kind .. ": " .. name)
        is_true(problem.message:find(kind, 1, true), problem.message)
      end
    end
  end)
end)
cstorch.testing.reset()
