-- cbk identify: detect the model, class, format and release of a checkpoint

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local shell_word = require "cbk.cli.shell_word"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local recognise = require "cbk.recognise"
local ways = require "cbk.recognise.ways"

local parser = cli.parser("identify", "Detect the model, class, format and release of checkpoints, and say why.", [[
The config beside a checkpoint is config.json, or a YAML file: the one of the same name, the one of
the same conversion (both end in _to_cs-2.5), or the only one that no conversion wrote. The last line
is the command that converts the checkpoint, if its config exists and it can be converted.

Exit status: 0 found, 1 some checkpoint fits no model, or it or its config cannot be read, 2 wrong usage.

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

cli.confine(args)
local only = converters.load(args.converter, args.sandbox)

---@param path string
---@param found Identity
---@param target string
---@return string
local function command_of(path, found, target)
  local is_own = catalogue.is_own_layout(found.format)
  local model = #found.others > 0 and not only and " --model " .. shell_word(found.model) or ""
  local options = args.converter and " --converter " .. shell_word(args.converter) or ""
  if args.sandbox then options = options .. " --sandbox" end
  if args.allow_records then options = options .. " --allow-records" end
  for _, folder in ipairs(args.allow_external or {}) do options = options .. " --allow-external " .. shell_word(folder) end
  if args.max_expansion then options = ("%s --max-expansion %.0f"):format(options, args.max_expansion) end
  if is_own then model = model .. " --src-fmt " .. found.format end
  local config = found.config and " --config " .. shell_word(found.config) or "" -- it may be in the checkpoint
  return ("cbk convert %s --to %s%s%s%s"):format(shell_word(path), target, model, config, options)
end

---@param found Identity
---@param command string|nil
local function as_json(found, command)
  local function value(one) return one == nil and cbk.null or one end
  return cbk.dict {
    { "model", value(found.model) }, { "others", cbk.list(found.others) }, { "format", value(not found.container and found.format or nil) },
    { "last_format", value(found.last) },
    { "class", value(found.class) }, { "release", value(found.release) }, { "config", value(found.config) },
    { "quantised", value(found.quantised and found.quantised:as_json()) }, { "why", cbk.list(found.why) }, { "command", value(command) },
  }
end

local function print_found(found, command)
  local print_line = cli.printer()
  local others = #found.others > 0 and (" (or %s)"):format(table.concat(found.others, ", ")) or ""
  print_line(("model    %s%s"):format(found.model or found.holds and "none" or "unknown", others))
  local alike = #found.layouts > 0 and (" (or %s)"):format(table.concat(found.layouts, ", ")) or ""
  local in_dict = found.container and not found.holds and ", with the weights in a dict 'model'" or ""
  print_line("format   " .. (found.container and found.container .. in_dict or found.format .. (found.last and " … " .. found.last or "")
    .. alike))
  if found.class then print_line("class    " .. found.class) end
  local weights = found.quantised and found.quantised:summary()
  if weights then print_line("weights  " .. cbk.shown(weights)) end
  if found.release then print_line("release  " .. found.release) end
  local none = found.problem and "none that can be used" or "none found"
  local own = found.has_own_config and not found.problem and "in the checkpoint's __metadata__"
  if not found.holds then print_line("config   " .. cbk.shown(found.config or own or none)) end
  for i, line in ipairs(found.why) do print_line((i == 1 and "why      " or "         ") .. cbk.shown(line)) end
  if command then print_line("convert  " .. cbk.shown(command)) end
end

---@param path string
---@return Identity found, string|nil command
local function look(path)
  local checkpoint = cli.open(path, args)
  local found, config, own = recognise.checkpoint(path, checkpoint, { config = args.config })
  config = config or not found.problem and own or nil
  local target, why_none = ways.target(found, checkpoint, config)
  if why_none then found.why[#found.why + 1] = why_none end
  local layout, other, count = nil, nil, nil
  if not found.model and only then layout, other, count = ways.own_layout(checkpoint, only) end
  if layout then
    found.model, found.format, found.container = only, layout, nil
    found.why = { ("the rules of %s fit all %d keys"):format(cbk.quote(args.converter), count) }
    target = other
  elseif not found.model and only then -- it may have no class
    found.model = only
    target = ways.target(found, checkpoint, config)
    found.model = target and only or nil
    if target then
      found.container = nil
      found.why[#found.why + 1] = ("it can be converted with %s, the only model of '%s'"):format(only, args.converter)
    end
  end
  return found, target and command_of(path, found, target)
end

local results, all_known = cbk.list(), true
for i, path in ipairs(args.file) do
  if #args.file > 1 and not args.json then print(cbk.shown(path) .. ":") end
  local fine, found, command = pcall(look, path)
  if not fine and #args.file == 1 then error(found, 0) end
  if fine then
    results[i] = as_json(found, command)
    if not args.json then print_found(found, command) end
  else
    local message = errors.text(found)
    results[i] = cbk.dict { error = message }
    if not args.json then print("error    " .. cbk.shown(message)) end
  end
  all_known = all_known and fine and found.model ~= nil and not found.is_broken
end
if args.json then cli.print_json(#args.file == 1 and results[1] or results) end
os.exit(all_known and 0 or 1)
