-- Lists all names in a pickle that are not plain data. Nothing in it is executed.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local weights = require "converters.conversion.weights"

local pickles = {}

-- Functions that return a function by its name. Python's enums are pickled with them; so are programs.
local LOOKUPS = { ["builtins.getattr"] = true, ["operator.attrgetter"] = true, ["operator.methodcaller"] = true }

local DISTRIBUTED = "Open the folder with the parts of all ranks, or save whole tensors: get_model_state_dict with full_state_dict=True "
  .. "(torch.distributed.checkpoint.state_dict)"
local WEIGHTS_ALONE = "`cbk copy --weights` copies the weights alone"
local HARMLESS = "--allow-records leaves this finding out; cbk runs nothing of it"

---What is wrong with a global that is not plain data.
---@param global { name: string, kind: string }
---@return string
local function text_of(global)
  local name = fold.shown(global.name)
  if global.name == "?" then return "it names a function that it puts together while it is read" end
  if global.kind == "record" then
    local is_class = global.name:find "%f[^.]_*%u[^.]*$" ~= nil
    return is_class and ("it asks for the class %s"):format(name) or ("it asks for %s, which is not plain data"):format(name)
  end
  return (LOOKUPS[global.name] and "it asks for %s, which gets any function by its name"
    or "it asks for %s, which can run code or touch files"):format(name)
end

---The globals of a file that are not plain data; empty for a pickle inside another format.
---@param path string
---@return { name: string, kind: string, offset: integer }[]
local function named_in(path)
  local fine, globals = pcall(cbk.pickle.globals, path)
  local list = {}
  for _, global in ipairs(fine and globals or {}) do
    if global.kind ~= "plain" then list[#list + 1] = global end
  end
  return list
end

local function add(found, rule, path, global, advice)
  local text = ("%s (byte %s of the pickle)"):format(text_of(global), numbers.grouped(global.offset))
  found:add(rule, path, nil, text, { advice = advice })
end

---Adds why a file was refused: the names in its pickles.
---@param path string
---@param why string
---@param found Findings
function pickles.refused(path, why, found)
  local list = named_in(path)
  for _, global in ipairs(list) do add(found, "unsafe-global", path, global) end
  if #list == 0 then found:add("unsafe-global", path, nil, why) end
end

---Adds the objects beside the weights of a file that is read.
---@param path string
---@param root any   as `Checkpoint:raw_root` returns it
---@param found Findings
function pickles.records(path, root, found)
  local list, is_distributed = named_in(path), false
  for _, global in ipairs(list) do is_distributed = is_distributed or global.name:find "^torch%.distributed%." ~= nil end
  local advice = is_distributed and DISTRIBUTED or weights.has(root) and WEIGHTS_ALONE or HARMLESS
  for _, global in ipairs(list) do add(found, "record", path, global, advice) end
end

return pickles
