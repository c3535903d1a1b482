-- The keys, the checkpoint and the config that `cbk rules` compares with the tables of a converter.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local composite = require "cbk.converters.composite"
local config_beside = require "cbk.recognise.config_beside"
local contents = require "converters.conversion.contents"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local names = require "cbk.recognise.names"
local quantised = require "cbk.quantised"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local covered = {}

local MOST_TEXT = 2 ^ 28 -- of a list of keys
local MOST_KEYS = 150000 -- of a checkpoint; the largest models have 100,000

---The parts of a composite whose folders are in this one.
---@param folder string
---@param list Table[]
local function parts_in(folder, list)
  for _, one in ipairs(list) do
    local parts = one.converter.components
    local are_there = parts ~= nil
    for _, part in ipairs(parts or {}) do are_there = are_there and cbk.fs.is_dir(cbk.fs.join(folder, part.left)) end
    if are_there then return parts end
  end
end

---Reads piece by piece: Lua makes room for all that it is asked for.
---@return string|nil
local function text_of(file)
  local pieces, size = {}, 0
  repeat
    local piece = file:read(2 ^ 16)
    pieces[#pieces + 1], size = piece, size + #(piece or "")
  until not piece or size >= MOST_TEXT
  return (#pieces > 0 or file:read "*a" ~= nil) and table.concat(pieces) or nil
end

---Whether all tables are of layouts of a user's own, whose checkpoints are read as `cbk convert` does.
---@param list Table[]
local function only_own_layouts(list)
  for _, one in ipairs(list) do
    if not catalogue.has_own_layout(one.converter) then return false end
  end
  return #list > 0
end

---@param list Table[]
local function any_has_config(list)
  for _, one in ipairs(list) do
    if not one.own.without_config then return true end
  end
  return false
end

---The tensors of a checkpoint as the table of most of its keys reads them.
---@param checkpoint Checkpoint
---@param list Table[]
---@param config Dict|nil
---@return Dict
local function tensors_of_layout(checkpoint, list, config)
  local best, least
  for _, one in ipairs(list) do
    for _, side in ipairs { "left", "right" } do
      local strangers = contents.strangers(one.keys, side)
      local tensors = contents.of_layout(checkpoint.root, strangers, config).root
      local count = strangers(cbk.keys(tensors))
      if not least or count < least then best, least = tensors, count end
    end
  end
  return best
end

---The keys of the checkpoint, or of the list, that the command line names; nil if it names none.
---@param args table   of `cbk rules`
---@param list Table[]
---@param config Dict|nil
---@return string[]|nil
---@return JobInput|nil   of a checkpoint, or of its parts
function covered.keys(args, list, config)
  local parts = args.checkpoint and parts_in(args.checkpoint, list)
  if parts then
    local input = composite.open(args.checkpoint, parts, args)
    return names.keys_of(input.source), input
  elseif args.checkpoint then
    local checkpoint = cli.open(args.checkpoint, args)
    local count = #cbk.leaf_rows(checkpoint:raw_root())
    if count > MOST_KEYS then
      cbk.fail("value", ("'%s' has %d keys; at most %d can be compared with rules"):format(args.checkpoint, count, MOST_KEYS))
    end
    if only_own_layouts(list) then
      local tensors = tensors_of_layout(checkpoint, list, config)
      return cbk.keys(tensors), { source = tensors, deduplicated = converters.input(checkpoint).deduplicated,
        quantised = quantised.find(tensors, config):problem() }
    end
    local input = converters.input(checkpoint)
    local weights = quantised.find(kinds.is_dict(input.source, "model") and input.source.model or input.source, config)
    local fine, source, plain = pcall(dequantised.model, input.source, config, "cannot convert the checkpoint")
    if fine then input.source, input.config = source, plain else input.quantised = errors.text(source) end
    return (weights:names(names.keys_of(input.source))), input
  end
  if not args.keys then return nil end
  local file, why = io.open(args.keys, "rb") -- which may be a pipe
  local text = file and text_of(file)
  if not text then cbk.fail("io", ("cannot read the keys in '%s': %s"):format(args.keys, why or "it is not a text")) end
  if text:find("\0", 1, true) then
    cbk.fail("value", ("'%s' is not a text with one key per line; give a checkpoint without --keys"):format(args.keys))
  end
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\r?\n" do
    local key = line:match "^%s*([^#%s]%S*)"
    if key then out[#out + 1] = key end
  end
  if #out == 0 then cbk.fail("value", ("'%s' has no keys; write one per line"):format(args.keys)) end
  return out
end

---The config beside the checkpoint, or the one that it keeps, as `cbk convert` finds it.
---@return string|nil path, Dict|nil kept
local function config_of_checkpoint(args)
  local checkpoint = cli.open(args.checkpoint, args)
  local is_hf = not kinds.is_dict(checkpoint.root, "model")
  local path = config_beside.of(args.checkpoint, checkpoint, is_hf).path
  return path, not path and not is_hf and zoo_checkpoint.params(checkpoint.root) or nil
end

---The config that the command line names, or those of a composite's parts; of a round trip, also one beside the checkpoint.
---@param args table   changed: config, config_is_found
---@param list Table[]
---@return Dict|nil
function covered.config(args, list)
  local is_wanted = args.round_trip and args.checkpoint and not args.config
  if is_wanted and not parts_in(args.checkpoint, list) and any_has_config(list) then
    local path, kept = config_of_checkpoint(args)
    if kept then return kept end
    args.config, args.config_is_found = path, path ~= nil
  end
  local parts = args.config and parts_in(args.config, list)
  return parts and composite.load_configs(args.config, parts, args) or args.config and cbk.config.load(args.config) or nil
end

return covered
