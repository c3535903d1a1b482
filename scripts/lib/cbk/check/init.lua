-- Checks checkpoints: opens as much as it can, reads each tensor once, and collects the problems.

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local duplicates = require "cbk.check.duplicates"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local layers = require "cbk.check.layers"
local listing = require "cbk.listing"
local model = require "cbk.check.model"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local optimizer_check = require "converters.modelzoo.optimizer_check"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local optimizers = require "converters.modelzoo.optimizers"
local optimizer_table = require "cbk.optimizer_table"
local parts = require "cbk.parts"
local pickles = require "cbk.check.pickles"
local quantised = require "cbk.quantised"
local rules = require "cbk.check.rules"
local shards = require "cbk.check.shards"
local siblings = require "cbk.check.siblings"
local small_items = require "cbk.small_items"
local states = require "cbk.check.states"
local team = require "cbk.team"
local training_files = require "cbk.training_files"
local values = require "cbk.check.values"
local vocabulary = require "cbk.check.vocabulary"

local check = {}

---@class CheckOptions
---@field reading table            options of cbk.open
---@field config? string           the config of the checkpoint
---@field opened? Checkpoint       the checkpoint, if it is open already
---@field dtypes string[]          of --for
---@field without_values? boolean
---@field folders? table           what is found out about folders, for further checkpoints in them
---@field without_sizes? boolean    no rule that compares the sizes of weights and rows is wanted
---@field is_chosen? fun(key: string): boolean   whose values are read (default: all)

---@class CheckSubject   A checkpoint that is opened as far as possible.
---@field path string                as the user has named it
---@field format string|nil
---@field parts CheckedPart[]
---@field bytes integer              that will be read
---@field files string[]
---@field checkpoint? Checkpoint     as a whole
---@field of? ModelOfFile
---@field quantised? Dict                  how the weights are quantised, for JSON
---@field scales? table<string, boolean>   keys of scales and other parts of quantised weights
---@field codes? table<string, Tensor|false>   by the keys of these weights, their numbers, where each code is one that cbk reads
---@field tensors integer
---@field is_part boolean   other files have the rest of the model, and it is not missing here

---@class CheckedPart   A file, or a record in it.
---@field file string
---@field rows LeafRows
---@field prefix string   of the keys: the key of the record and "."

---Why a file cannot be opened, without "cannot open 'FILE'", as a finding names its file.
local function reason_of(problem)
  return errors.text(errors.outside(problem))
end

---Opens a file. Damaged or unsafe content is a finding; other errors are raised.
---@param options CheckOptions
---@param found Findings
---@return Checkpoint|nil
local function open(path, options, found)
  local fine, checkpoint = pcall(cbk.open, path, options.reading)
  if fine then
    local is_pickle = checkpoint.format:find "^torch%-" ~= nil and not checkpoint.format:find "sharded"
    if is_pickle and not options.reading.allow_records then pickles.records(path, checkpoint:raw_root(), found) end
    return checkpoint
  end
  local problem = type(checkpoint) == "table" and checkpoint or {}
  local code, file = problem.code, problem.file or path
  if code == "refused" then
    pickles.refused(file, reason_of(checkpoint), found)
    return nil
  end
  if (code == "format" or code == "missing") and cbk.fs.exists(file) and not cbk.fs.is_dir(file) and cbk.container(file) then
    found:add(code == "missing" and "shard-missing" or "damaged", file, nil, reason_of(checkpoint))
    return nil
  end
  error(checkpoint, 0)
end

---A shard that cannot be opened is a finding, whatever the reason.
local function open_shard(options, found)
  return function(path)
    local fine, checkpoint = pcall(open, path, options, found)
    if fine then return checkpoint end
    if type(checkpoint) ~= "table" or checkpoint.code == "interrupted" then error(checkpoint, 0) end
    found:add("shard-missing", path, nil, reason_of(checkpoint))
  end
end

---Adds a tree, and the parts of objects that are leaves of the tree (sparse and quantised tensors).
---@param subject CheckSubject
local function add_tree(subject, file, tree, prefix)
  local rows = cbk.leaf_rows(tree)
  subject.parts[#subject.parts + 1] = { file = file, rows = rows, prefix = prefix }
  if rows:totals().values == 0 then return end
  for i = 1, #rows do
    local value = rows:value(i)
    local state = type(value) == "userdata" and cbk.kind(value) == "object" and value.state
    if kinds.is_dict(state) or kinds.is_list(state) then add_tree(subject, file, state, prefix .. rows:path(i) .. ".") end
  end
end

---@param subject CheckSubject
---@param found Findings
local function add_part(subject, file, checkpoint, found)
  for _, warning in ipairs(checkpoint.warnings) do found:add("reading", file, nil, warning) end
  for _, key in ipairs(checkpoint.lost) do found:add("damaged", file, key, "the tensor is not whole in the file, and was not checked") end
  add_tree(subject, file, checkpoint:raw_root(), "")
  subject.format = subject.format or checkpoint.format
end

---@param subject CheckSubject
---@param opened Shard[]
---@param found Findings
local function add_shards(subject, opened, found)
  for _, shard in ipairs(opened) do
    subject.files[#subject.files + 1] = shard.path
    if shard.checkpoint then add_part(subject, shard.path, shard.checkpoint, found) end
  end
end

local function count_bytes(subject)
  for _, part in ipairs(subject.parts) do
    local totals = part.rows:totals()
    if part.prefix == "" then subject.tensors = subject.tensors + totals.tensors end
    subject.bytes = subject.bytes + totals.stored
  end
end

---Reports which weights are quantised, and which look as if their scales were lost.
---@param subject CheckSubject
---@param found Findings
local function check_quantised(subject, found)
  local of = subject.of
  local rows = cbk.leaf_rows(subject.checkpoint:raw_root())
  local weights = quantised.find_in_rows(rows, of and of.settings or quantised.config_beside(subject.path))
  subject.quantised, subject.scales, subject.codes = weights:as_json(), {}, {}
  local is_readable = dequantised.problem(weights, rows) == nil
  for _, one in ipairs(weights.weights) do
    subject.codes[one.key] = false
    if is_readable then
      local fine, tensor = pcall(dequantised.weight, rows, one, weights.stated and weights.stated.settings)
      if not fine then found:add("scales", subject.path, one.key, reason_of(tensor)) end
      subject.codes[one.key] = fine and one.shape and tensor or false
    end
    for _, part in ipairs(one.parts) do subject.scales[part] = true end
  end
  local first = weights.weights[1]
  if first then
    found:add("quantised", subject.path, nil, ("%s %s quantised (%s), such as '%s'"):format(numbers.counted(#weights.weights, "weight"),
      #weights.weights == 1 and "is" or "are", weights:method(), first.key))
  end
  if weights.stated and not weights:is_quantised() then
    found:add("not-quantised", of and of.config or subject.path, nil, ("'%s' in the config says that the weights are quantised (%s), but "
      .. "none has less than 16 bits or scales"):format(weights.stated.field, weights.stated.method))
  end
  for _, one in ipairs(weights.narrow) do
    local says = weights.stated and (", and the config says that the weights are quantised (%s)"):format(weights.stated.method) or ""
    local text = ("it is %s, without scales%s"):format(one.dtype, says)
    found:add("lost-scales", subject.path, one.key, text, { severity = weights.stated and "error" or nil })
  end
end

---Reports states of the optimizer that contradict the weights. A state that nothing belongs to harms nobody.
---@param subject CheckSubject
---@param found Findings
local function check_states(subject, found)
  local root, of_parameter = subject.checkpoint.root, {}
  for _, one in ipairs(kinds.is_dict(root) and optimizer_check.mistakes(root) or {}) do
    of_parameter[one.kind ~= "unknown" and optimizer_state.parameter_of(one.path) or ""] = true
    found:add("state", subject.path, one.path, one.text, { severity = one.kind == "unknown" and "warning" or nil })
  end
  states.check(subject.checkpoint:raw_root(), function(path, text, severity)
    local is_known = of_parameter[optimizer_state.parameter_of(path)]
    local place = path:match "^(.-state)%f[.%z]" or path
    local advice = place ~= "optimizer.state" and rules.by_id.state.help:gsub("optimizer%.state", (place:gsub("%%", "%%%%"))) or nil
    if not is_known then found:add("state", subject.path, path, text, { severity = severity, advice = advice }) end
  end)
end

---Opens the checkpoint at a path, and checks names, shapes and files. Raises an error if it cannot be opened at all.
---@param path string
---@param options CheckOptions
---@param found Findings
---@return CheckSubject
function check.open(path, options, found)
  local subject = { path = path, parts = {}, bytes = 0, tensors = 0, files = {}, is_part = false }
  local index, loose = shards.find(path)
  if index or loose then
    local opened = {}
    if index then
      opened = shards.check(index, open_shard(options, found), found, options.reading.allow_external)
    else
      found:add("index-missing", path, nil, ("the folder has shards such as '%s', but no *.index.json"):format(loose[1]))
      for i, name in ipairs(loose) do
        local shard = cbk.fs.beside(path, name, options.reading.allow_external) or cbk.fs.join(path, name)
        opened[i] = { path = shard, checkpoint = open_shard(options, found)(shard) }
      end
    end
    add_shards(subject, opened, found)
    local fine, whole = options.opened ~= nil, options.opened
    if not fine then fine, whole = pcall(cbk.open, path, options.reading) end
    if not fine and found:counts().error == 0 then found:add("damaged", path, nil, reason_of(whole)) end
    subject.checkpoint = fine and whole or nil
    subject.format = fine and whole.format or subject.format
  else
    subject.checkpoint = options.opened or open(path, options, found)
    local one = subject.checkpoint and parts.of(subject.checkpoint, options.folders)
      or not subject.checkpoint and parts.named(path, options.folders)
    if one then found:add("part", path, nil, "it is not a whole checkpoint, but " .. parts.text(one)) end
    subject.is_part = one and true or false
    if subject.checkpoint then
      add_part(subject, path, subject.checkpoint, found)
      subject.files = subject.checkpoint.files
    end
  end
  if subject.checkpoint then
    local own = { subject.checkpoint }
    small_items.check(small_items.count(own), own, 1900, "check them", "check a part, made with `cbk copy --include`")
    found.parameters = optimizer_table.names_in(subject.checkpoint:raw_root())
    subject.of = model.check(path, subject.checkpoint, options.config, found, options.folders, subject.is_part)
    check_quantised(subject, found)
    check_states(subject, found)
    local flat = listing.flat_key(subject.checkpoint)
    if flat and flat:find "^model%." then
      found:add("flat-keys", path, flat, "it is at the top of the file, and the Model Zoo looks for weights in the dict 'model'")
    end
  end
  count_bytes(subject)
  return subject
end

---The file with a tensor's bytes, if it is known.
local function file_of_tensor(subject, part, tensor)
  if subject.path == part.file and #subject.files > 1 then
    local storage = tensor:storage()
    return storage and storage.file ~= "" and storage.file or part.file
  end
  return part.file
end

---@param row LeafRow
---@param options CheckOptions
local function dtypes_for(row, options)
  return cbk.dtype(row.type).floating and options.dtypes or {}
end

---Reports chunks of an H5 file that are not there.
local function check_unwritten(subject, part, key, tensor, found)
  local storage = subject.format:find "h5" and tensor:storage()
  if not storage or not storage.unwritten then return end
  local chunks = ("%s of %s were"):format(numbers.grouped(storage.unwritten), numbers.counted(storage.pieces, "chunk"))
  found:add("unwritten", part.file, key, ("%s never written, and read%s as the fill value"):format(
    storage.pieces == 1 and "it was" or chunks, storage.pieces == 1 and "s" or ""))
end

---Reads one tensor.
---@param path string
---@return { damage?: string, scan?: table, least?: number }   `least`: of a state of an optimizer that is never negative
local function read(subject, part, i, path, options)
  local row, tensor = part.rows[i], subject.codes and subject.codes[path] or part.rows:value(i)
  local quiet = not (options.without_sizes or values.is_state(path)) and vocabulary.QUIET or nil
  local fine, result = pcall(tensor.scan, tensor, { dtypes = dtypes_for(row, options), quiet = quiet })
  if not fine then
    if type(result) ~= "table" or result.code ~= "format" then error(result, 0) end
    return { damage = errors.text(result) }
  end
  local is_never_negative = optimizer_state.parameter_of(path) and optimizers.is_never_negative(naming.last(path))
  return { scan = result, least = is_never_negative and values.least(result, tensor) }
end

---@return CheckedTensor|nil
local function scanned(subject, part, i, row, class_keys, result, found)
  if result.damage then
    found:add("damaged", part.file, row.path, result.damage)
    return nil
  end
  local tensor = part.rows:value(i)
  check_unwritten(subject, part, row.path, tensor, found)
  return { file = file_of_tensor(subject, part, tensor), key = row.path, row = row, scan = result.scan, least = result.least,
    known = class_keys[row.path] }
end

---The class's tensor for each key.
---@param of ModelOfFile|nil
---@return table<string, ClassTensor>
local function class_keys_of(of)
  local out = {}
  for own, path in pairs(of and of.paths or {}) do out[path] = of.known.by_key[own] end
  return out
end

---@class CheckState   The facts kept about the tensors that were read.
---@field contents Content[]
---@field siblings Sibling[]
---@field tied table<string, boolean>          paths that the config ties
---@field by_path table<string, CheckedTensor>   these, and tensors that share their storage with others
---@field class_keys table<string, ClassTensor>
---@field scales table<string, boolean>
---@field codes table<string, Tensor|false>

---Checks the elements of one row of a file.
---@param state CheckState
---@param result table|nil   of `read`, if it was
local function check_elements(subject, part, i, row, state, result, found)
  local one
  if row.tied_to then
    one = state.by_path[part.prefix .. row.tied_to]
  elseif result then
    one = scanned(subject, part, i, row, state.class_keys, result, found)
    if one then
      one.is_scale = state.scales[row.path]
      values.check(one, found)
      vocabulary.check(one, found)
      state.contents[#state.contents + 1] = duplicates.content(one, part.rows, i)
      local has_numbers = state.codes[row.path] ~= false -- false: codes that cbk does not read
      state.siblings[#state.siblings + 1] = has_numbers and siblings.facts(one) or nil
    end
  end
  local known = state.class_keys[row.path]
  local is_weight = known and row.shape and not (known.buffer or state.scales[row.path] or state.codes[row.path] ~= nil)
  local may_lack_scales = is_weight and #row.shape > 1 and quantised.is_narrow(row.type) -- which is another finding
  if is_weight and not cbk.dtype(row.type).floating and not may_lack_scales then
    found:add("not-floating", part.file, row.path, ("it is %s, and %s has floats there"):format(row.type, known.of.class.name))
  end
  if state.tied[row.path] or row.tied_to then state.by_path[row.path] = one end
end

---A function that gives what was read of a row, which is nil where nothing is.
---@return fun(part: table, i: integer): table|nil
local function reader(subject, options, on_read)
  local part_of, row_of, number = {}, {}, {}
  for _, part in ipairs(subject.parts) do
    number[part] = {}
    for i = 1, options.without_values and 0 or #part.rows do
      local row = part.rows[i]
      local is_read = row.shape and not row.problem and not row.tied_to
      if is_read and (not options.is_chosen or options.is_chosen(part.prefix .. row.path)) then
        part_of[#part_of + 1], row_of[#row_of + 1] = part, i
        number[part][i] = #row_of
      end
    end
  end
  local function bytes(n) return part_of[n].rows[row_of[n]].bytes end
  local result = team.shared(#row_of, bytes, function(n)
    local part, i = part_of[n], row_of[n]
    local path = part.prefix .. part.rows:path(i)
    local out = read(subject, part, i, path, options)
    on_read(path, bytes(n))
    return out
  end, subject.files)
  return function(part, i) return number[part][i] and result(number[part][i]) end
end

---Reads all tensors of a subject, and checks their values.
---@param subject CheckSubject
---@param options CheckOptions
---@param found Findings
---@param on_read fun(key: string, bytes: integer)
function check.values(subject, options, found, on_read)
  local of, has_class, tensors = subject.of, subject.of ~= nil and subject.of.known ~= nil, {}
  local state = { contents = {}, siblings = {}, tied = model.tied_paths(of), by_path = {}, class_keys = class_keys_of(of),
    scales = subject.scales or {}, codes = subject.codes or {} }
  local result_of = reader(subject, options, on_read)
  for _, part in ipairs(subject.parts) do
    for i = 1, #part.rows do
      local row = part.rows[i]
      row.path = part.prefix .. row.path
      if row.shape and not has_class then
        tensors[#tensors + 1] = { file = part.file, key = row.path, shape = row.shape, dtype = row.type }
      end
      if row.problem then
        found:add("unreadable", part.file, row.path, row.problem)
      elseif row.shape then
        check_elements(subject, part, i, row, state, result_of(part, i), found)
      end
    end
  end
  if not has_class then layers.check(tensors, subject.is_part, found) end
  siblings.check(state.siblings, found)
  local holds = subject.checkpoint and training_files.content(subject.checkpoint:raw_root())
  local contents = holds and {} or state.contents -- devices that began with one seed have the same random state
  duplicates.check(contents, found, function(key, other) return model.ties(of, key, other) end)
  model.check_ties(of, state.by_path, found)
end

return check
