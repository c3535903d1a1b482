-- `cbk serve`: reads requests from stdin, a line of JSON each, and writes replies to stdout.

local cbk = require "cbk"
local cli = require "cbk.cli"
local is_tensor = require("cbk.tensor_kinds").is_tensor
local naming = require "cbk.naming"
local near_keys = require "cbk.cli.near_keys"
local quantised = require "cbk.quantised"
local real_values = require "cbk.cli.real_values"
local stored_form = require "cbk.stored_form"
local values = require "cbk.serve.values"
local warnings = require "cbk.warnings"

local serve = {}

local MOST_ENTRIES, PAGE = 100000, 1000
local MOST_TEXT = 2 ^ 22 -- bytes of texts in a reply, and the last one
local LEAST_IN_FILE = 2 ^ 20 -- bytes: to open a file takes time, too
local JSON = { python = true, ascii = true }

---@class ServedCheckpoint
---@field source Checkpoint
---@field root any
---@field glob? string       of `rows`
---@field rows? LeafRows
---@field codes? table<string, string>   methods of quantised weights whose codes are in `root`, by their keys
---@field listed? any        the container that `next` walks through
---@field position? integer  of the entry that `next` returns
---@field next? function

---@class Server
---@field opened table<integer, ServedCheckpoint>
---@field count integer
---@field id any   of the request that is answered
local Server = {}
Server.__index = Server

-- --- parameters

local function expected(name, what) cbk.fail("usage", ("expected %s as '%s'"):format(what, name)) end

local function text(request, name)
  if cbk.kind(request[name]) ~= "str" then expected(name, "a text") end
  return request[name]
end

local function count(request, name, default)
  local number = request[name]
  if number == nil then return default end
  if type(number) ~= "number" or number % 1 ~= 0 or number < 0 then expected(name, "a whole number of at least 0") end
  return number
end

local function list(request, name)
  if request[name] == nil then return cbk.list() end
  if cbk.kind(request[name]) ~= "list" then expected(name, "a list") end
  return request[name]
end

local function flag(request, name)
  local value = request[name]
  if value ~= nil and type(value) ~= "boolean" then expected(name, "true or false") end
  return value
end

-- --- requests

---@return ServedCheckpoint
function Server:checkpoint(request)
  local opened = self.opened[request.checkpoint]
  return opened or cbk.fail("usage", ("no checkpoint has the number %s"):format(cbk.json(request.checkpoint or cbk.null)))
end

local function fail_missing(opened, step)
  local key = cbk.kind(step) == "dict" and cbk.json(step) or cbk.key_text(step)
  cbk.fail("key", ("there is no %s in '%s'%s"):format(cbk.quote(key), opened.source.path, near_keys(cbk.leaf_rows(opened.root), key)))
end

--- The value that the steps of a request lead to.
local function value_at(opened, request)
  local value = opened.root
  for i, step in cbk.items(list(request, "at")) do
    local is_metadata = i == 1 and cbk.kind(step) == "dict" and step.metadata
    if is_metadata then value = opened.source.metadata else value = values.step(value, step) end
    if value == nil then fail_missing(opened, step) end
  end
  return value
end

function Server:open(request)
  local path, folders = text(request, "path"), {}
  for _, folder in cbk.items(list(request, "allow_external")) do folders[#folders + 1] = folder end
  local args = { allow_records = flag(request, "allow_records"), salvage = flag(request, "salvage"),
    max_expansion = request.max_expansion, allow_external = folders }
  local heard, source, root = warnings.new(), nil, nil
  local fine, problem = heard:run(function()
    source = cli.open(path, args)
    root = flag(request, "stored") and source:raw_root() or real_values(source, path)
  end)
  if not fine then error(problem, 0) end
  self.count = self.count + 1
  self.opened[self.count] = { source = source, root = root }
  return cbk.dict {
    { "checkpoint", self.count }, { "path", source.path }, { "format", source.format }, { "version", source.version },
    { "files", cbk.list(source.files) }, { "metadata", values.described(source.metadata) }, { "root", values.described(root) },
    { "warnings", cbk.list(heard.list) },
  }
end

function Server:close(request)
  self:checkpoint(request).source:close()
  self.opened[request.checkpoint] = nil
  return cbk.null
end

function Server:value(request) return values.described(value_at(self:checkpoint(request), request)) end

--- Walks on from the last page of a container, or from its begin. An iterator of `cbk.raw_items` cannot skip entries.
local function walk_to(opened, container, first)
  if opened.listed ~= container or opened.position > first then
    opened.listed, opened.position, opened.next = container, 0, cbk.raw_items(container)
  end
  while opened.position < first and opened.next() ~= nil do opened.position = opened.position + 1 end
end

function Server:entries(request)
  local opened = self:checkpoint(request)
  local container = values.container(value_at(opened, request)) or cbk.fail("usage", "this value has no entries")
  local first, most = count(request, "first", 0), math.min(count(request, "count", PAGE), MOST_ENTRIES)
  walk_to(opened, container, first)
  local entries, with_values, is_dict = cbk.list(), flag(request, "values"), values.is_dict(container)
  local bytes = 0
  while #entries < most and bytes < MOST_TEXT do
    local key, value = opened.next()
    if key == nil then break end
    opened.position = opened.position + 1
    local shown = is_dict and values.key(key) or opened.position - 1
    local entry = cbk.list { shown, with_values and values.described(value) or nil }
    bytes = bytes + values.text_bytes(entry)
    entries[#entries + 1] = entry
  end
  local rest = opened.position < cbk.count(container)
  return cbk.dict { { "entries", entries }, { "next", rest and opened.position or cbk.null } }
end

function Server:tensors(request)
  local opened, glob = self:checkpoint(request), request.glob ~= nil and text(request, "glob") or nil
  if not opened.rows or opened.glob ~= glob then opened.rows, opened.glob = cbk.leaf_rows(opened.root, glob), glob end
  local rows, i, entries = opened.rows, count(request, "first", 0), cbk.list()
  local most = math.min(count(request, "count", PAGE), MOST_ENTRIES)
  while i < #rows and #entries < most do
    i = i + 1
    local value = rows:value(i)
    if is_tensor(value) then entries[#entries + 1] = cbk.list { rows:path(i), values.described(value) } end
  end
  return cbk.dict { { "entries", entries }, { "next", i < #rows and i or cbk.null } }
end

--- The part of a tensor that a request's index means.
local function indexed(tensor, index)
  local dims = tensor:dim()
  if #index > dims then cbk.fail("shape", ("the index has %d dimensions, and the tensor %d"):format(#index, dims)) end
  for dim, part in cbk.items(index) do
    if cbk.kind(part) ~= "list" or #part < 2 then expected("index", "a list of [start, stop, step]") end
    tensor = tensor:slice(dim - 1, part[1], part[2], part[3] or 1)
  end
  return tensor
end

--- Codes that cbk cannot read are no numbers: as float32 they would be wrong ones.
local function refuse_codes(opened, request, dtype)
  if not dtype:find "^float8" then return end
  if not opened.codes then
    opened.codes = {}
    for _, weight in ipairs(quantised.find(opened.root).weights) do opened.codes[weight.key] = weight.method end
  end
  local steps = {}
  for _, step in cbk.items(list(request, "at")) do steps[#steps + 1] = cbk.kind(step) ~= "dict" and cbk.key_text(step) or nil end
  local key = table.concat(steps, ".")
  if opened.codes[key] then
    cbk.fail("unsupported", ("cannot read %s as float32: the weight is quantised (%s), and its scales are not multiplied in here"):format(
      cbk.quote(key), opened.codes[key]), { advice = "read its codes as they are stored" })
  end
end

function Server:read(request)
  local opened = self:checkpoint(request)
  local tensor = value_at(opened, request)
  if not is_tensor(tensor) then cbk.fail("usage", ("expected a tensor, found a value of the kind %s"):format(cbk.kind(tensor))) end
  local is_stored = flag(request, "stored")
  tensor = indexed(is_stored and stored_form.of(tensor) or tensor, list(request, "index"))
  if not is_stored and stored_form.is_narrow(tensor.dtype) then
    refuse_codes(opened, request, tensor.dtype)
    tensor = tensor:to "float32"
  end
  if tensor:problem() then cbk.fail("format", tensor:problem()) end
  self:reply("array", cbk.dict {
    { "dtype", tensor.dtype }, { "shape", cbk.list(tensor:shape()) }, { "bytes", tensor:nbytes() } })
  local file, offset
  if flag(request, "files") and tensor:nbytes() >= LEAST_IN_FILE then file, offset = cbk.file_range(tensor) end
  if file then
    io.stdout:write(cbk.json(cbk.dict { { "bytes", tensor:nbytes() }, { "file", file }, { "offset", offset } }), "\n")
    io.stdout:flush() -- the other process reads while this one verifies
    cbk.verify_read(tensor)
  else
    cbk.write_framed(tensor)
  end
  return cbk.null
end

-- --- lines

-- Each with its parameters.
local METHODS = {
  open = { "path", "allow_records", "allow_external", "max_expansion", "salvage", "stored" },
  close = { "checkpoint" }, value = { "checkpoint", "at" }, entries = { "checkpoint", "at", "first", "count", "values" },
  tensors = { "checkpoint", "glob", "first", "count" }, read = { "checkpoint", "at", "index", "stored", "files" },
}

--- Fails for a parameter that the method does not have.
local function check_parameters(request)
  local is_known = { id = true, method = true }
  for _, name in ipairs(METHODS[request.method]) do is_known[name] = true end
  for key in cbk.raw_items(request) do
    local name = cbk.key_text(key)
    if not is_known[name] then
      cbk.fail("usage", ("'%s' has no option %s%s"):format(request.method, cbk.quote(name),
        naming.suggestion(cbk.nearest(name, METHODS[request.method], 1))))
    end
  end
end

---@param name string
---@param value any
function Server:reply(name, value) io.stdout:write(cbk.json(cbk.dict { { "id", self.id }, { name, value } }, JSON), "\n") end

--- The request of a line. Its id is returned even if the rest is wrong.
local function request_of(line)
  local fine, request = pcall(cbk.config.parse, line, "json")
  if not fine then return nil, request end
  if cbk.kind(request) ~= "dict" then
    local _, problem = pcall(cbk.fail, "usage", "expected a request: an object of JSON in one line")
    return nil, problem
  end
  return request
end

function Server:answer(line)
  local request, problem = request_of(line)
  local fine, result = false, problem
  self.id = request and cbk.raw(request, "id") or cbk.null
  if request then
    fine, result = pcall(function()
      local method = METHODS[request.method] and self[request.method]
      if not method then cbk.fail("usage", ("%s is not a method"):format(cbk.json(request.method or cbk.null))) end
      check_parameters(request)
      return method(self, request)
    end)
  end
  if fine then
    self:reply("result", result)
  elseif type(result) == "table" and result.code == "interrupted" then
    error(result, 0)
  else
    if type(result) == "table" then result.where = nil end -- a place in this file
    io.stdout:write('{"id":', cbk.json(self.id, JSON), ",", cbk.error_json(result):sub(2), "\n")
  end
  io.stdout:flush()
end

---Answers requests until stdin ends.
function serve.run()
  io.stdout:setvbuf("full", 2 ^ 16)
  local server = setmetatable({ opened = {}, count = 0 }, Server)
  for line in io.lines() do server:answer(line) end
end

return serve
