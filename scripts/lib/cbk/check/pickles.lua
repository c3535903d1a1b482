-- Lists all names in a pickle that are not plain data. Nothing in it is executed.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"

local pickles = {}

-- Modules whose classes only hold data, though cbk does not read them as records. Their functions may do anything:
-- typing.get_type_hints evaluates texts.
local OF_DATA = {
  "abc", "builtins", "dataclasses", "enum", "ipaddress", "numbers", "pathlib", "string", "typing", "zoneinfo",
  "torch.distributed._shard", "torch.distributed._tensor", "torch.distributed.device_mesh", "torch.distributed.fsdp",
  "torch.distributed.tensor",
}

-- Single names that are data: values of Python, buffers in memory, and states of random number generators.
local DATA = {}
for name in ([[builtins.slice builtins.type functools.partial types.SimpleNamespace types.MappingProxyType
  types.GenericAlias types.UnionType operator.itemgetter _io.BytesIO _io.StringIO io.BytesIO io.StringIO array.array
  array._array_reconstructor random.Random numpy.ma.core._mareconstruct numpy.random._pickle.__randomstate_ctor
  numpy.random._pickle.__generator_ctor numpy.random._pickle.__bit_generator_ctor]]):gmatch "%S+" do
  DATA[name] = true
end

-- Functions that return a function by its name. Python's enums are pickled with them; so are programs.
local LOOKUPS = { ["builtins.getattr"] = true, ["operator.attrgetter"] = true, ["operator.methodcaller"] = true }

local DISTRIBUTED = "Save whole tensors instead of each process's part: get_model_state_dict with full_state_dict=True "
  .. "(torch.distributed.checkpoint.state_dict)"
local WEIGHTS_ALONE = "Save the weights alone, as safetensors or with torch.save(model.state_dict())"

---Whether a name is a class with instances that only hold data: its last part begins with a capital letter, no earlier part does.
---@param name string
local function is_class_of_data(name)
  for _, module in ipairs(OF_DATA) do
    local rest = name:sub(1, #module + 1) == module .. "." and name:sub(#module + 2)
    if rest and rest:find "^[%l%d_.]*%u[%w_]*$" and not rest:find "%u.*%." then return true end
  end
  return DATA[name] == true
end

---@param global { name: string, kind: string }
local function is_harmless(global) return global.kind == "record" or is_class_of_data(global.name) end

---What is wrong with a global that is not plain data.
---@param global { name: string, kind: string }
---@return string
local function text_of(global)
  local name = fold.shown(global.name)
  if global.name == "?" then return "it names a function that it puts together while it is read" end
  if is_harmless(global) then
    local is_class = global.name:find "%f[^.]%u[^.]*$" ~= nil
    return is_class and ("it asks for the class %s"):format(name) or ("it asks for %s, which is not plain data"):format(name)
  end
  return (LOOKUPS[global.name] and "it asks for %s, which gets any function by its name"
    or "it asks for %s, which can run code or touch files"):format(name)
end

---The advice; nil: that of the rule. A file that names a dangerous function must not be read at all.
---@param list { name: string, kind: string }[]   all that are not plain data
---@return string|nil
local function advice_on(list)
  local only_records, is_distributed = true, false
  for _, global in ipairs(list) do
    if not is_harmless(global) then return nil end
    only_records = only_records and global.kind == "record"
    is_distributed = is_distributed or global.name:find "^torch%.distributed%." ~= nil
  end
  return only_records and "If you trust the author, read its instances as their attributes with --allow-records"
    or is_distributed and DISTRIBUTED or WEIGHTS_ALONE
end

---@param path string
---@param why string   why the file was refused
---@param found Findings
---@return boolean only_records   all names are classes that may be read as records
function pickles.check(path, why, found)
  local fine, globals = pcall(cbk.pickle.globals, path)
  local only_records, list = true, {}
  for _, global in ipairs(fine and globals or {}) do
    if global.kind ~= "plain" then
      list[#list + 1] = global
      only_records = only_records and global.kind == "record"
    end
  end
  local advice = advice_on(list)
  for _, global in ipairs(list) do
    local text = ("%s (byte %s of the pickle)"):format(text_of(global), numbers.grouped(global.offset))
    found:add("unsafe-global", path, nil, text, { advice = advice })
  end
  if #list == 0 then found:add("unsafe-global", path, nil, why) end -- a pickle inside another format
  return #list > 0 and only_records
end

return pickles
