-- The base of all modules: fields that hold parameters, buffers and modules are registered in the order in which they are assigned.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local kept = require "cstorch.kept"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local naming = require "cbk.naming"
local ordered_map = require "cstorch.ordered_map"
local parameter = require "cstorch.nn.parameter"
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"
local text = require "cstorch.text"

local check, show = errors.check, errors.show

---@class cstorch.nn.Module : cstorch.Class   The base class of layers and models. A subclass defines init and forward.
---@field training boolean   true at first; `eval` makes it false, for this module and those in it
local Module = class.Object:subclass "Module"

Module.noun = "model"
Module.set_by_init = "_parameters"

local REGISTRIES = { "_parameters", "_buffers", "_modules" }

--- The registry that has the name, if any.
local function registry_of(module, name)
  for _, registry in ipairs(REGISTRIES) do
    local entries = rawget(module, registry)
    if entries and entries[name] ~= nil then return entries end
  end
end

--- The registry that a value belongs to.
local function registry_for(module, value)
  if parameter.is(value) then return module._parameters end
  if class.is_a(value, Module) then return module._modules end
end

function Module:__index(name)
  local entries = registry_of(self, name)
  if entries then return entries[name] end
  return class.member(self, name)
end

--- A recorded step would read the old tensor in each replay.
local function check_not_recorded(module, name)
  check(not session.trace, "runtime", "%s: the buffer '%s' was replaced inside of a compiled step, which is replayed over the same "
    .. "tensors; write into it: t:copy_(…), mul_, add_", module.class.name, name)
end

function Module:__newindex(name, value)
  if rawget(self, "_parameters") == nil then
    local needs_init = parameter.is(value) or class.is_a(value, Module)
    check(not needs_init, "runtime", "%s: call %s.super.init(self) before assigning '%s'", self.class.name, self.class.name, tostring(name))
    return class.assign(self, name, value)
  end
  local old, new = registry_of(self, name), registry_for(self, value)
  if old and value ~= nil and not new then
    local is_buffer = old == self._buffers
    check(not is_buffer or tensors.is_tensor(value), "type", "%s: the buffer '%s' must be a tensor, not %s", self.class.name, name,
      show(value))
    check(is_buffer, "type", "%s: '%s' must be %s or nil, not %s%s", self.class.name, name,
      old == self._parameters and "an nn.Parameter" or "a module", show(value),
      old == self._parameters and "; to change its values, use copy_ in no_grad" or "")
    if not rawequal(value, old[name]) then check_not_recorded(self, name) end
    new = old
  end
  if old and old ~= new then old[name] = nil end
  if new then
    new[name] = value
    self.class.fields[name] = true -- it may become nil
  else
    class.assign(self, name, value)
  end
end

---Runs when the module is called. Each module that is called must define its own.
function Module:forward()
  errors.raise("runtime", "%s has no forward: define function %s:forward(…)", self.class.name, self.class.name)
end

--- Keeps what the step that was recorded used of this module, so that later changes are noticed. The body may have changed fields itself.
function Module:_note_kept(trace)
  kept.note_fields(trace, self)
  for _, registry in ipairs(REGISTRIES) do
    for name in ordered_map.items(self[registry]) do
      kept.note(trace, self[registry], name, ("%s.%s"):format(self.class.name, tostring(name)))
    end
  end
end

function Module:__call(...)
  if session.trace then session.trace.modules[self] = true end
  return self:forward(...)
end

---The text between the parentheses of tostring.
---@return string
function Module:extra_text() return "" end -- luacheck: no unused args

function Module:__tostring()
  local lines = {}
  for name, child in ordered_map.items(self:_children()) do
    lines[#lines + 1] = ("  (%s): %s"):format(name, (tostring(child):gsub("\n", "\n  ")))
  end
  local what = self.class.name .. "(" .. self:extra_text()
  return #lines == 0 and what .. ")" or what .. "\n" .. table.concat(lines, "\n") .. "\n)"
end

---Call this before assigning anything.
function Module:init()
  rawset(self, "_parameters", ordered_map.new())
  rawset(self, "_buffers", ordered_map.new())
  rawset(self, "_modules", ordered_map.new())
  rawset(self, "_transient", {})
  rawset(self, "training", true)
end

--- The modules in this one by name, in their order.
function Module:_children() return self._modules end

local NOUNS = { _parameters = "parameter", _buffers = "buffer", _modules = "module" }

--- What the name means in `module`, without the entries of `registry`.
local function other_meaning(module, name, registry)
  for _, other in ipairs(REGISTRIES) do
    if other ~= registry and module[other][name] ~= nil then return NOUNS[other] end
  end
  if rawget(module, name) ~= nil then return "field" end
  return type(module.class[name]) == "function" and "method" or nil
end

--- Fails if a name is invalid, or used for something else: a checkpoint would lose one of the two.
local function check_name(module, what, name, registry)
  check(type(name) == "string" and name ~= "", "type", "%s: expected a name, found %s", what, show(name))
  local taken = other_meaning(module, name, registry)
  check(not taken, "value", "%s: cannot make '%s' a %s, as %s has a %s of this name; choose another name", what, name, NOUNS[registry],
    module.class.name, taken)
end

---Registers a parameter under a name that need not be an identifier.
---@param name string
---@param p cstorch.Tensor
function Module:register_parameter(name, p)
  check_name(self, "register_parameter", name, "_parameters")
  check(parameter.is(p), "type", "register_parameter('%s'): expected an nn.Parameter, found %s", name, show(p))
  self._parameters[name] = p
end

---Registers a tensor that is not a parameter. It moves with the module, and is in its state dict unless `persistent` is false.
---@param name string
---@param tensor cstorch.Tensor
---@param options? { persistent: boolean }   default true
function Module:register_buffer(name, tensor, options)
  check_name(self, "register_buffer", name, "_buffers")
  options = keywords.complete("register_buffer", { persistent = true }, options)
  check(tensors.is_tensor(tensor), "type", "register_buffer('%s'): expected a tensor, found %s", name, show(tensor))
  if self._buffers[name] then check_not_recorded(self, name) end
  self._buffers[name] = tensor
  self._transient[name] = options.persistent == false or nil
end

---Registers a module under a name.
---@param name string
---@param module cstorch.nn.Module
function Module:add_module(name, module)
  check_name(self, "add_module", name, "_modules")
  check(class.is_a(module, Module), "type", "add_module('%s'): expected an nn.Module, found %s", name, show(module))
  self._modules[name] = module
end

--- Calls visit(name, module) for this module and all in it, each once.
local function walk(module, prefix, seen, visit)
  if seen[module] then return end
  seen[module] = true
  visit(prefix, module)
  for name, child in ordered_map.items(module:_children()) do
    walk(child, prefix == "" and name or prefix .. "." .. name, seen, visit)
  end
end

--- An iterator over a list of { name, value }.
local function pairs_of(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return list[i][1], list[i][2] end
  end
end

--- { name, value, module, own name } of the entries of a registry of all modules.
local function entries_of(module, registry, keeps_duplicates)
  local list, seen = {}, {}
  walk(module, "", {}, function(prefix, one)
    for name, value in ordered_map.items(one[registry]) do
      if keeps_duplicates or not seen[value] then
        list[#list + 1] = { prefix == "" and name or prefix .. "." .. name, value, one, name }
      end
      seen[value] = true
    end
  end)
  return list
end

---This module, named "", and all modules in it.
---@return fun(): string?, cstorch.nn.Module?
function Module:named_modules()
  local list = {}
  walk(self, "", {}, function(name, module) list[#list + 1] = { name, module } end)
  return pairs_of(list)
end

---Parameters of this module and those in it, each once.
---@return fun(): string?, cstorch.Tensor?
function Module:named_parameters() return pairs_of(entries_of(self, "_parameters")) end

---@return fun(): string?, cstorch.Tensor?
function Module:named_buffers() return pairs_of(entries_of(self, "_buffers")) end

---Parameters of this module and those in it as a list, each once.
---@return cstorch.Tensor[]
function Module:parameters()
  local list = {}
  for _, p in Module.named_parameters(self) do list[#list + 1] = p end
  return list
end

--- { name, tensor } of parameters and buffers in the order of the modules; tied ones and shared modules under all their names.
local function state_entries(module)
  local list, open = {}, {}
  local function add_all(prefix, one)
    if open[one] then return end -- it contains itself
    open[one] = true
    for name, value in ordered_map.items(one._parameters) do list[#list + 1] = { prefix .. name, value } end
    for name, value in ordered_map.items(one._buffers) do
      if not one._transient[name] then list[#list + 1] = { prefix .. name, value } end
    end
    for name, child in ordered_map.items(one:_children()) do add_all(prefix .. name .. ".", child) end
    open[one] = nil
  end
  add_all("", module)
  return list
end

---Names to parameters and persistent buffers, over the same memory.
---@return table<string, cstorch.Tensor>
function Module:state_dict()
  local state, views = ordered_map.new(), {}
  for _, entry in ipairs(state_entries(self)) do
    views[entry[2]] = views[entry[2]] or entry[2]:detach()
    state[entry[1]] = views[entry[2]]
  end
  return state
end

---@class cstorch.nn.Misfits   Names that only one side has, in order.
---@field missing_keys string[]      the module's
---@field unexpected_keys string[]   the state dict's

---@param wanted table<string, cstorch.Tensor>   the module's
---@return cstorch.nn.Misfits
local function misfits_of(wanted, state)
  local missing, unexpected = {}, {}
  for name in pairs(wanted) do
    if state[name] == nil then missing[#missing + 1] = name end
  end
  for name in ordered_map.items(state) do
    if wanted[name] == nil then unexpected[#unexpected + 1] = name end
  end
  table.sort(missing)
  table.sort(unexpected)
  return { missing_keys = missing, unexpected_keys = unexpected }
end

---Names that only one side has, as one message or nil.
---@param misfits cstorch.nn.Misfits
local function message_of(module, misfits, wanted)
  local missing, unexpected, parts = misfits.missing_keys, misfits.unexpected_keys, {}
  if #missing > 0 then parts[#parts + 1] = "missing " .. text.some(missing) end
  if #unexpected > 0 then
    parts[#parts + 1] = "unknown " .. text.some(unexpected) .. errors.suggestion(unexpected[1], naming.sorted(wanted))
  end
  if #parts > 0 then return ("%s: the state dict does not fit: %s"):format(module.class.name, table.concat(parts, "; ")) end
end

---Copies values into parameters and buffers. They are tensors, or lazy ones of a checkpoint.
---@param state table                   name to tensor
---@param options? { strict: boolean }  default true: a name that only one side has is an error
---@return cstorch.nn.Misfits
function Module:load_state_dict(state, options)
  check(keywords.is_map(state), "type", "load_state_dict: expected a map of names to tensors, found %s", show(state))
  options = keywords.complete("load_state_dict", { strict = true }, options)
  loaded.check_names(state, "load_state_dict")
  local wanted, entries = {}, state_entries(self)
  for _, entry in ipairs(entries) do wanted[entry[1]] = entry[2] end
  local misfits = misfits_of(wanted, state)
  local problem = message_of(self, misfits, wanted)
  check(not problem or options.strict == false, "runtime", "%s", problem)
  if problem and #misfits.missing_keys == #entries then
    errors.warn("load_state_dict: no name of the state dict is one of the module's, so nothing is loaded: " .. problem)
  end
  for _, entry in ipairs(entries) do
    local value = state[entry[1]]
    if value ~= nil then
      loaded.check_tensor(value, ("load_state_dict: '%s'"):format(entry[1]))
      check(shapes.same(entry[2], value), "runtime", "load_state_dict: '%s' has shape %s, the state dict %s", entry[1],
        shapes.text(entry[2]), shapes.text(value))
    end
  end
  tensors.no_grad(function()
    for _, entry in ipairs(entries) do
      local value = state[entry[1]]
      if value ~= nil then entry[2]:copy_(tensors.placed_like(value, entry[2])) end
    end
  end)
  return misfits
end

---Sets `training` of this module and all in it.
---@param mode? boolean   default true
---@return cstorch.nn.Module self
function Module:train(mode)
  check(mode == nil or type(mode) == "boolean", "type", "train: expected true or false, found %s", show(mode))
  walk(self, "", {}, function(_, module) rawset(module, "training", mode ~= false) end)
  return self
end

---@return cstorch.nn.Module self
function Module:eval() return Module.train(self, false) end

---Removes the gradients of all parameters.
function Module:zero_grad()
  for _, p in Module.named_parameters(self) do p.grad = nil end
end

---Calls `fn(module)` for all modules in this one, then for it; or `fn:apply(self)` of an object that has this method: of a sparsity.
---@param fn fun(module: cstorch.nn.Module)|cstorch.sparse.Static
---@return cstorch.nn.Module self
function Module:apply(fn)
  if type(fn) == "table" and class.has(fn, "apply") and not class.is_a(fn, Module) then
    fn:apply(self)
    return self
  end
  check(type(fn) == "function", "type", "apply: expected a function or a sparsity, found %s", show(fn))
  for _, child in ordered_map.items(self:_children()) do child:apply(fn) end
  fn(self)
  return self
end

return Module
