-- cbk identify: which model, class, format and release a checkpoint is of

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local identify = require "cbk.identify"

local parser = cli.parser("identify", "Find out which model, class, format and release checkpoints are of, and why.", [[
The config beside a checkpoint is found by itself: config.json, or the YAML that belongs to it. The
last line is the command that converts the checkpoint.

Exit code: 0 found, 1 some checkpoint fits no model, 2 wrong usage.

examples:
  cbk identify model.safetensors
  cbk identify runs/llama --json
  cbk identify checkpoint_1000.mdl --config params.yaml]])
parser:argument("file", "a checkpoint, an index.json of shards, or a folder"):argname("FILE"):args "+"
parser:option("--config", "its config (default: the one beside it); with one FILE only"):argname "CONFIG"
cli.converter_options(parser)
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()
if args.config and #args.file > 1 then cli.usage_error("identify", "--config is the config of one checkpoint; give one FILE") end

converters.load(args.converter, args.sandbox)

---The value of an option for a shell.
local function quoted(text)
  if text:find "^[%w_./:@%%+=-]+$" then return text end
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

---@param path string
---@param found Identity
---@return string|nil
local function command_of(path, found)
  if not found.model then return nil end
  local target = found.format == "hf" and "cs-current" or "hf"
  return ("cbk convert %s --to %s%s"):format(quoted(path), target, found.config and " --config " .. quoted(found.config) or "")
end

---@param path string
---@param found Identity
local function as_json(path, found)
  local function value(one) return one == nil and cbk.null or one end
  return cbk.dict {
    { "model", value(found.model) }, { "format", found.format }, { "class", value(found.class) }, { "release", value(found.release) },
    { "config", value(found.config) }, { "why", cbk.list(found.why) }, { "command", value(command_of(path, found)) },
  }
end

local function print_found(path, found)
  if #args.file > 1 then print(cbk.shown(path) .. ":") end
  local others = #found.others > 0 and (" (or %s)"):format(table.concat(found.others, ", ")) or ""
  print(("model    %s%s"):format(found.model or "unknown", others))
  print("format   " .. found.format)
  if found.class then print("class    " .. found.class) end
  if found.release then print("release  " .. found.release) end
  print("config   " .. cbk.shown(found.config or "none found"))
  for i, line in ipairs(found.why) do print((i == 1 and "why      " or "         ") .. cbk.shown(line)) end
  local command = command_of(path, found)
  if command then print("convert  " .. cbk.shown(command)) end
end

local results, all_known = cbk.list(), true
for i, path in ipairs(args.file) do
  local found = identify.checkpoint(path, cli.open(path, args), args.config)
  results[i] = as_json(path, found)
  if not args.json then print_found(path, found) end
  all_known = all_known and found.model ~= nil
end
if args.json then cli.print_json(#args.file == 1 and results[1] or results) end
os.exit(all_known and 0 or 1)
