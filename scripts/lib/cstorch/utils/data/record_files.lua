-- The records of text files that a meta.dat lists: lines, or rows of CSV. They are found by an index of every few kilobytes, and read when
-- they are asked for, so the files may be larger than memory.

local cbk = require "cbk"
local csv = require "cstorch.utils.data.csv"

local record_files = {}

---@class RecordFile
---@field path string
---@field size integer       bytes
---@field first integer      the number of its first sample, from 0
---@field count integer      of its samples
---@field columns? table<string, integer>   of a CSV file, by the names in its first line
---@field private places integer[]    where some records begin, in bytes
---@field private lines integer[]     their lines, from 1
---@field private samples integer[]   the samples of the file before them

---@class Record
---@field text string                      as it is in the file
---@field fields? table<string, string>    of a CSV file, by the names of their columns
---@field line integer                     of its beginning, from 1
---@field path string

---@class RecordFiles
---@field files RecordFile[]
---@field count integer      of all samples
local RecordFiles = {}
RecordFiles.__index = RecordFiles

local SPACING = 4096 -- bytes between the places of an index
local LONGEST = 64 * 2 ^ 20 -- bytes of a record: one that is longer has a quote too many

---Fails because of a record.
---@param record Record
---@param problem string
function record_files.refuse(record, problem)
  cbk.fail("format", ("%s, line %d: %s"):format(cbk.quote(record.path), record.line, problem), { file = record.path })
end

-- --- meta.dat

--- The files that a folder's meta.dat lists, and how many records of each are read.
local function listed_files(folder, field)
  local path, out = cbk.fs.join(folder, "meta.dat"), {}
  if not cbk.fs.is_dir(folder) then
    cbk.fail("io", ("%s: there is no folder %s"):format(field, cbk.quote(folder)), { file = folder })
  end
  if not cbk.fs.exists(path) then
    cbk.fail("missing", ("%s: %s has no meta.dat, which lists the files and how many records they have"):format(field, cbk.quote(folder)),
      { file = path, advice = "name the folder that the Model Zoo's preprocessing or cbk make-data wrote" })
  end
  local number = 0
  for line in io.lines(path) do
    number = number + 1
    local name, count = line:match "^%s*(%S+)%s+(%d+)%s*$"
    local is_elsewhere = name and (name:find "^/" or ("/" .. name .. "/"):find("/../", 1, true))
    if not name and line:find "%S" then
      cbk.fail("format", ("%s, line %d: expected the name of a file and its number of records"):format(cbk.quote(path), number),
        { file = path })
    elseif is_elsewhere then -- a data set from elsewhere names no other files of the reader
      cbk.fail("refused", ("%s, line %d: the file %s is not in the folder of the data"):format(cbk.quote(path), number, cbk.quote(name)),
        { file = path, advice = "move it there, and name it without '..' and without a '/' at the beginning" })
    elseif name then
      out[#out + 1] = { path = cbk.fs.join(folder, name), records = tonumber(count), line = number, meta = path }
    end
  end
  return out
end

-- --- records

--- Iterates over the records of an open file: the text, where it begins, and its line.
local function records(file, path, place, line, is_csv)
  return function()
    local text, problem = file:read "*L"
    if problem then cbk.fail("io", ("cannot read %s: %s"):format(cbk.quote(path), problem), { file = path }) end
    if not text then return nil end
    local first, first_line, size = place, line, #text
    line = line + 1
    if is_csv and csv.is_open(text) then
      local parts, is_open = { text }, true
      while is_open do
        local more = size < LONGEST and file:read "*L"
        if not more then
          record_files.refuse({ path = path, line = first_line }, "a quote is not closed; was the file cut off?")
        end
        parts[#parts + 1], size, line = more, size + #more, line + 1
        if csv.is_open(more) then is_open = false end
      end
      text = table.concat(parts)
    end
    place = first + size
    return text, first, first_line
  end
end

local function open(path)
  local file, problem = io.open(path, "rb")
  if file then return file end
  local reason = problem:gsub("^.*: ", "")
  cbk.fail("io", ("cannot read %s: %s"):format(cbk.quote(path), reason), { file = path })
end

local function fields_of(self, file, record)
  if not self.format.columns then return end
  local list, problem = csv.fields(record.text)
  if not list then record_files.refuse(record, problem) end
  if #list ~= file.width then
    record_files.refuse(record, ("expected %d fields, as in the file's first line, found %d"):format(file.width, #list))
  end
  record.fields = {}
  for name, i in pairs(file.columns) do record.fields[name] = list[i] end
end

local MOST_NAMES, LONGEST_NAME = 8, 60 -- in a message

--- Reads the names of a CSV file's columns.
local function read_columns(self, file, next_record)
  local text = next_record()
  local record = { text = text or "", line = 1, path = file.path }
  local names = csv.fields((record.text:gsub("^\239\187\191", ""))) or {}
  file.columns, file.width = {}, #names
  for i, name in ipairs(names) do file.columns[name] = i end
  local missing = {}
  for _, name in ipairs(self.format.columns) do
    if not file.columns[name] then missing[#missing + 1] = cbk.quote(name) end
  end
  local found = {}
  for i = 1, math.min(#names, MOST_NAMES) do found[i] = cbk.shown(names[i]:sub(1, LONGEST_NAME)) end
  if missing[1] then
    record_files.refuse(record, ("expected the names of columns, with %s; found %s"):format(table.concat(missing, ", "),
      found[1] and table.concat(found, ", ") or "none"))
  end
end

--- Whether a record counts: an empty line is a row of nothing.
local function is_record(self, text) return not self.format.columns or not text:find "^[\r\n]*$" end

--- Goes through a file once: how many samples it has, and where some of its records begin.
local function scan(self, listed)
  if not cbk.fs.exists(listed.path) or cbk.fs.is_dir(listed.path) then
    cbk.fail("missing", ("%s, line %d: there is no file %s"):format(cbk.quote(listed.meta), listed.line, cbk.quote(listed.path)),
      { file = listed.meta })
  end
  local out = { path = listed.path, size = cbk.fs.size(listed.path), first = self.count, places = {}, lines = {}, samples = {} }
  local file, found, count = open(out.path), 0, 0
  local next_record = records(file, out.path, 0, 1, self.format.columns ~= nil)
  if self.format.columns then read_columns(self, out, next_record) end
  local due = 0
  while found < listed.records do
    local text, place, line = next_record()
    if not text then break end
    if is_record(self, text) then
      if place >= due then
        local i = #out.places + 1
        out.places[i], out.lines[i], out.samples[i] = place, line, count
        due = place + SPACING
      end
      found = found + 1
      count = count + (self.format.count and self.format.count(text) or 1)
    end
  end
  file:close()
  if found < listed.records then
    cbk.fail("format", ("%s has %d records, but %s, line %d, says %d; was it cut off?"):format(cbk.quote(out.path), found,
      cbk.quote(listed.meta), listed.line, listed.records), { file = out.path })
  end
  out.count = count
  return out
end

---@class RecordFormat
---@field field string                     that names the folder, for messages
---@field columns? string[]                that a CSV file must have; nil: each line is a record
---@field count? fun(text: string): integer   samples of a record; default: one each

---@param folders string|string[]
---@param format RecordFormat
---@return RecordFiles
function record_files.open(folders, format)
  local self = setmetatable({ files = {}, count = 0, format = format, opened = {} }, RecordFiles)
  for _, folder in ipairs(type(folders) == "string" and { folders } or folders) do
    for _, listed in ipairs(listed_files(folder, format.field)) do
      local file = scan(self, listed)
      self.files[#self.files + 1] = file
      self.count = self.count + file.count
    end
  end
  return self
end

local MOST_OPEN = 32 -- files

local function opened(self, file)
  for i, one in ipairs(self.opened) do
    if one.path == file.path then
      table.insert(self.opened, table.remove(self.opened, i))
      return one.handle
    end
  end
  local size = cbk.fs.exists(file.path) and cbk.fs.size(file.path)
  if size ~= file.size then
    cbk.fail("changed", ("%s had %d bytes when the run began, and now has %s"):format(cbk.quote(file.path), file.size,
      tostring(size or "none")), { file = file.path })
  end
  if #self.opened == MOST_OPEN then table.remove(self.opened, 1).handle:close() end
  local handle = open(file.path)
  table.insert(self.opened, { path = file.path, handle = handle })
  return handle
end

--- The last place in a list of rising numbers that is not above one.
local function last_until(list, number)
  local low, high = 1, #list
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if list[middle] <= number then low = middle else high = middle - 1 end
  end
  return low
end

---The record that has a sample, and which of its samples it is.
---@param index integer   of the sample, from 0
---@return Record, integer   from 0
function RecordFiles:record(index)
  local firsts = self.firsts
  if not firsts then
    firsts = {}
    for i, file in ipairs(self.files) do firsts[i] = file.first end
    self.firsts = firsts
  end
  local file = self.files[last_until(firsts, index)]
  local i = last_until(file.samples, index - file.first)
  local handle, count = opened(self, file), file.samples[i]
  handle:seek("set", file.places[i])
  for text, _, line in records(handle, file.path, file.places[i], file.lines[i], self.format.columns ~= nil) do
    if is_record(self, text) then
      local own = self.format.count and self.format.count(text) or 1
      if index - file.first < count + own then
        local record = { text = text, line = line, path = file.path }
        fields_of(self, file, record)
        return record, index - file.first - count
      end
      count = count + own
    end
  end
  cbk.fail("changed", ("%s has fewer records than when the run began"):format(cbk.quote(file.path)), { file = file.path })
end

return record_files
