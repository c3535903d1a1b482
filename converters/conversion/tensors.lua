-- One table's key rules over the tensors of one model, checked by the classes of both sides.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local fit_checks = require "converters.engine.fit_checks"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local patterns = require "converters.engine.patterns"
local releases = require "converters.engine.releases"
local rules = require "converters.engine.rules"
local state_dict = require "converters.engine.state_dict"
local ties = require "converters.engine.ties"

local tensors = {}

---@class TensorsToConvert
---@field converter Converter
---@field configs { left: Dict, right: Dict }
---@field side Side         that is read
---@field src string        formats
---@field tgt string
---@field source Dict
---@field reads string      the prefix of its keys in the source checkpoint, for messages
---@field writes string     the same of the target
---@field fit_of fun(side: Side, has: StateDict): Fit|nil   how tensors fit the class of their side; nil if it has none

---@class TensorOptions
---@field seed? integer
---@field deduplicated? boolean   the file has each tensor under one name
---@field is_refused? boolean     keys without a rule are an error, so that missing weights need no report
---@field view? fun(key: string, value: any): any, string?
---@field trace? fun(record: KeyRecord)
---@field doubt fun(text: string)   gets what the output lacks, or has without need

---@class ConvertedTensors
---@field out Dict
---@field unmatched string[]   keys without a rule
---@field lacking table         missing weights (fit_checks.lacking)
---@field shapes integer[][]    of the tensors among `unmatched`
---@field moves table<string, KeyMove>
---@field invented InventedTensor[]   of random numbers
---@field read? Fit             nil: no class describes what is read
---@field written? Fit

---The shapes of the tensors of some keys.
---@param has StateDict
---@param names string[]
---@return integer[][]
function tensors.shapes_of(has, names)
  local out = {}
  for _, name in ipairs(names) do out[#out + 1] = has.shapes[name] end
  return out
end

---The checkpoint with those further names of tied tensors that the rules read, and the names that were added.
---@param one TensorsToConvert
---@param read Fit|nil
---@return Dict source, table<string, string> kept   KeyOptions.kept
local function with_all_names(one, read, options)
  local all = releases.names_all(one.src, one.tgt)
  if not read or rules.reads_all(one.converter.keys, one.side) and not all then return one.source, {} end
  local compiled = patterns.compile(one.converter.keys, one.side)
  local function is_written(key)
    local hit = patterns.match(compiled, key)[1]
    return hit ~= nil and hit.ending.kind == "write"
  end
  return ties.spread(read.known, one.source, {}, { each_once = options.deduplicated == true, all = all,
    no_nulls = all or one.tgt == "hf", is_watched = options.trace ~= nil,
    -- other targets may lack names, as the original converter's outputs do
    is_written = one.tgt == "hf" and is_written or nil, doubt = options.doubt })
end

---The keys of biases that the config does not mention, the checkpoint does not have, and the target needs.
---@return string[]
local function unsaid_biases(read)
  local out = {}
  for _, one in ipairs(read.unsaid) do
    for _, key in ipairs(one.keys) do out[#out + 1] = key end
  end
  return out
end

---What helps where a weight is missing because a file has a tied tensor under one of its names. Original converters, whose outputs are
---kept, wrote it under no name; the safetensors format says that one name is enough.
---@param read Fit|nil
---@return string
local function advice_on_names(one, read)
  local lone = read and ties.lone_name(read.known, one.source)
  return lone and ("; '%s' is there without the other names of its tensor: make a copy with `cbk copy CHECKPOINT COPY.safetensors`, where "
    .. "one name is enough, and convert that"):format(lone) or ""
end

---Reports what is wrong with the output.
---@param one TensorsToConvert
---@param read Fit|nil
---@param written Fit
---@param out Dict
local function check_output(one, read, written, out, options)
  local is_hf = one.tgt == "hf"
  if #written.missing > 0 then
    local lacks = ("the output lacks %s that its model needs: %s"):format(numbers.counted(#written.missing, "weight"),
      naming.folded(written.missing))
    if is_hf then
      cbk.fail("convert", lacks, { advice = "the checkpoint has some tied weights under one of their names: give it the others" })
    end
    options.doubt(lacks .. advice_on_names(one, read))
  end
  -- ties that no class described until here; a dry run reads no values
  local is_new = not (options.trace or catalogue.release(one.tgt)) and not (read and ties.differences(read.known, one.source)[1])
  for _, difference in ipairs(is_new and ties.differences(written.known, out) or {}) do
    options.doubt(("in the output, %s; set the field that ties them, in the config or by the table"):format(difference))
  end
  local is_whole = not one.converter.left -- parts write each other's tensors
  local strange = is_whole and fit_checks.strange_output(written, is_hf)
  if strange then options.doubt(strange) end
end

---Fails if what is read cannot be what its class describes, before any key is converted.
---@param one TensorsToConvert
---@param read Fit|nil
---@param has StateDict
---@param copies_all boolean
local function check_input(one, read, has, copies_all)
  if read or not catalogue.is_own_layout(one.src) then fit_checks.codes(read, one.reads, has) end
  fit_checks.shapes(read, one.reads, true)
  if read and copies_all then fit_checks.layers(read, one.reads) end
end

---@param one TensorsToConvert
---@param options TensorOptions
---@return ConvertedTensors
function tensors.convert(one, options)
  kinds.check_root(one.source)
  local converter, side = one.converter, one.side
  local is_step = (catalogue.release(one.src) and catalogue.release(one.tgt)) ~= nil
  local copies_all = is_step and rules.reads_all(converter.keys, side) -- as the original converters do
  local has = state_dict.of(one.source)
  local read = one.fit_of(side, has)
  check_input(one, read, has, copies_all)
  local source, kept = with_all_names(one, read, options)
  local out, right = { read = read, lacking = { count = 0 } }, side == "left" and one.tgt or one.src
  out.out, out.unmatched, out.moves, out.invented = keys.convert(converter.keys, side, source, {
    left = one.configs.left, right = one.configs.right, seed = options.seed, known = not copies_all and read and read.known or nil,
    fill = converter.fill, kept = kept, prefix = releases.reads_prefix(one.src, one.tgt) and "model." or nil,
    no_nulls = one.tgt == "hf", view = options.view, masks = is_step,
    is_refused = options.is_refused, trace = options.trace,
    foreign_right = not catalogue.release(right) and right or nil,
  })
  out.shapes = tensors.shapes_of(has, out.unmatched)
  if copies_all then return out end
  if read and (#read.missing > 0 or #out.unmatched > 0) then
    out.lacking = fit_checks.lacking(read, read.missing, out.shapes)
    out.lacking.spare = fit_checks.spare(read, out.unmatched)
    return out
  end
  if read then fit_checks.strangers(read, one.reads, out.moves) end
  out.written = one.fit_of(rules.other[side], state_dict.of(out.out))
  fit_checks.shapes(out.written, one.writes, false)
  local biases = read and out.written and #out.written.missing > 0 and unsaid_biases(read) or {}
  if #biases > 0 then
    out.lacking = fit_checks.lacking(read, biases)
    return out
  end
  if out.written then check_output(one, read, out.written, out.out, options) end
  if read then fit_checks.warn_of_lacks(read) end
  return out
end

return tensors
