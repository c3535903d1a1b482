-- A checkpoint in another one's format: converted lazily, in memory. Only what the comparison reads is computed.

local cbk = require "cbk"
local contents = require "converters.conversion.contents"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local errors = require "cbk.errors"
local left_out = require "cbk.recognise.left_out"
local recognise = require "cbk.recognise"
local ways = require "cbk.recognise.ways"
local kinds = require "converters.engine.kinds"
local warnings = require "cbk.warnings"
local real_values = require "cbk.cli.real_values"

local through = {}

---@class DiffSide
---@field path string
---@field checkpoint Checkpoint
---@field config? string
---@field format? string     as the user has named it
---@field option? string     with which
---@field identity? Identity

---@param side DiffSide
local function identified(side)
  side.identity = side.identity or recognise.checkpoint(side.path, side.checkpoint, side)
  return side.identity
end

---The format of a checkpoint, as `cbk convert` names it.
---@param side DiffSide
---@param model string|nil   as the user has named it
---@return string
local function format_of(side, model)
  local own = model and ways.own_layout(side.checkpoint, model)
  if own then return own end
  local found = identified(side)
  if found.holds then
    cbk.fail("unsupported", ("cannot compare '%s' as a model: %s"):format(side.path, found.reason),
      { advice = "compare it without --model" })
  end
  if #found.layouts > 0 then
    cbk.fail("usage", ("'%s' fits the layouts %s and %s alike; name both formats with --src-fmt and --tgt-fmt"):format(side.path,
      found.format, table.concat(found.layouts, ", ")))
  end
  return found.format
end

---A job with its config converted, and the tensors that the model does not have, by their names in the file.
---@param side DiffSide
---@param tgt string
---@param args table   model, src_fmt
---@param only string|nil
---@return Job, Dict others
local function job_of(side, tgt, args, only)
  local own = { checkpoint_file = side.path, model = args.model, src_fmt = args.src_fmt, config = side.config, tgt_fmt = tgt }
  left_out.detect(own, function() return side.checkpoint end, only)
  local config = own.own_config or own.config and cbk.config.load(converters.config_file(own.config))
  if own.src_fmt == "cs-auto" then own.src_fmt = ways.auto_format(side.checkpoint, own.model, tgt, config, own.config) end
  local route, others = converters.route(own.model, own.src_fmt, tgt), cbk.dict()
  local input, _, own_config = ways.input(side.checkpoint, route, config)
  local weights, place = input.source, converters.catalogue.release(route.src) and "model." or ""
  if kinds.is_dict(weights, "model") then weights = weights.model end
  local job = converters.job(route, input, { seed = 0, take_unmatched = function(key)
    others[place .. key] = weights[key]
  end })
  converters.config(own.model, job, own_config)
  return job, others
end

---The tree of a checkpoint converted to `tgt`, and the tensors that the model does not have, by their names in the file. Warns of tensors
---that are left out or changed; what is lost of the config is in no tensor.
---@param side DiffSide
---@param tgt string
---@param args table   model, src_fmt
---@param only string|nil
---@return any root, Dict others
local function converted(side, tgt, args, only)
  local fine, job, others = warnings.quietly(job_of, side, tgt, args, only)
  if not fine then error(job, 0) end
  return converters.convert.checkpoint(job, job.source), others
end

---The model's part of a tree (in a Model Zoo checkpoint, the part below "model"), and other tensors.
local function model_part(root, others)
  local out = cbk.dict()
  if kinds.is_dict(root) and kinds.is_dict(root, "model") then
    out.model = root.model
  elseif not kinds.is_dict(root) then
    return root
  else
    for key, value in cbk.items(root) do out[key] = value end
  end
  for key, tensor in cbk.items(others or {}) do out[key] = tensor end
  return out
end

---Whether B is converted rather than A: conversions to Hugging Face add tensors that not every file has, such as masks.
local function is_other_converted(a, b, format_b)
  if a.config or not identified(b).config then return false end
  return format_b == "hf" or not identified(a).config
end

---The tree of a checkpoint that is not converted, without what a trainer has put around a model that is not in a release's layout.
---@param side DiffSide
---@param format string
local function plain(side, format)
  local root = real_values(side.checkpoint, side.path)
  if converters.catalogue.release(format) or not kinds.is_dict(root) then return root end
  if converters.catalogue.is_own_layout(format) then
    local fine, inner = warnings.quietly(contents.of_layout, root)
    return fine and inner.root or root
  end
  local found = identified(side)
  return #found.contents.taken > 0 and not found.quantised:is_quantised() and found.contents.root or root
end

---The models in two checkpoints of one format, if a trainer has put something around one of them; nil otherwise.
---@param a DiffSide
---@param b DiffSide
---@return any|nil root_a, any root_b
---@return string what
local function models_inside(a, b)
  local of_a, of_b = identified(a), identified(b)
  local has_around = #of_a.contents.taken + #of_b.contents.taken > 0
  if not has_around or of_a.quantised:is_quantised() or of_b.quantised:is_quantised() then return nil end
  return model_part(of_a.contents.root), model_part(of_b.contents.root), "the models inside"
end

---The trees of two checkpoints of one model in one format: B's, or A's. In one format already: the models inside.
---@param a DiffSide
---@param b DiffSide
---@param args table   model, src_fmt, tgt_fmt, converter, sandbox
---@return any root_a, any root_b
---@return string what   "a.safetensors as cs-2.4"
function through.trees(a, b, args)
  local only = converters.load(args.converter, args.sandbox)
  if args.model and not converters.catalogue.find(args.model) then
    cbk.fail("usage", ("there is no model '%s'; %s"):format(args.model, converter_list.advice(args.model, converters.catalogue.names())))
  end
  a.format, a.option, b.format, b.option = args.src_fmt, "--src-fmt", args.tgt_fmt, "--tgt-fmt"
  local format_a, format_b = args.src_fmt or format_of(a, args.model), args.tgt_fmt or format_of(b, args.model)
  if format_a == format_b then
    local root_a, root_b, what = models_inside(a, b)
    if root_a then return root_a, root_b, what end
    cbk.fail("usage", ("both checkpoints are in the format %s; compare them without --model, or name their formats with "
      .. "--src-fmt and --tgt-fmt"):format(format_a))
  end
  local is_swapped = is_other_converted(a, b, format_b)
  local from, to, tgt = a, b, format_b
  if is_swapped then from, to, tgt = b, a, format_a end
  local own = { model = args.model, src_fmt = from.format }
  local fine, root, others = pcall(converted, from, tgt, own, only)
  if not fine then error(errors.put_in(root, "cannot compare through a converter"), 0) end
  local one, other = model_part(root, others), model_part(plain(to, tgt))
  local what = ("%s as %s"):format(cbk.shown(from.path), tgt)
  if is_swapped then return other, one, what end
  return one, other, what
end

return through
