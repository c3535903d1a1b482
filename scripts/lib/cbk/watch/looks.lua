-- Looks at a folder again and again, and says which checkpoints are complete and new.

local cbk = require "cbk"
local folder = require "cbk.watch.folder"

local looks = {}

local LOOKS_AT_DAMAGED = 3 -- unchanged, before it is not just unfinished
local LOOKS_IN_ORDER = 3   -- at one that still changes, while later ones wait for it

---@class Looks
---@field top string
---@field interval number     seconds between looks
---@field allowed string[]    folders that links may lead to
---@field last? integer       so many of those that exist at the first look; nil: all
---@field only_first boolean  later ones are ignored
---@field known table<string, { mark: string, count: integer, seen: integer, is_done: boolean }>   by path
---@field is_first boolean
---@field exists boolean      the folder, at the last look
local Looks = {}
Looks.__index = Looks

---@param top string
---@param options { interval: number, allowed: string[], last: integer|nil, only_first: boolean }
---@return Looks
function looks.new(top, options)
  return setmetatable({ top = top, interval = options.interval, allowed = options.allowed, last = options.last,
    only_first = options.only_first, known = {}, is_first = true, exists = false }, Looks)
end

---Notes what a checkpoint looks like now: how often it was the same.
function Looks:note(one)
  local known = self.known[one.path] or { seen = 0 }
  if known.mark ~= one.mark then known.mark, known.count, known.is_done = one.mark, 0, false end
  known.count, known.seen = known.count + 1, known.seen + 1
  self.known[one.path] = known
  return known
end

---The checkpoints that are new and did not change between two looks, or for as long, in the order of their steps, and how many others
---are not ready.
---@return WatchedCheckpoint[] ready, integer unsettled
function Looks:look()
  local ready, unsettled, is_blocked = {}, 0, false
  self.exists = cbk.fs.is_dir(self.top)
  if not self.exists then return ready, unsettled end
  local fine, list = pcall(folder.checkpoints, self.top, self.allowed)
  if not fine and cbk.fs.is_dir(self.top) then error(list, 0) end
  if not fine then return ready, unsettled end -- the folder was removed in this moment
  for i, one in ipairs(list) do
    local is_ignored = self.is_first and self.last and i <= #list - self.last or not self.is_first and self.only_first
      and not self.known[one.path]
    local known = self:note(one)
    known.is_done = known.is_done or is_ignored == true
    if not known.is_done then
      local is_settled = known.count > 1 or os.time() - one.time > self.interval
      is_blocked = is_blocked or not is_settled and known.seen <= LOOKS_IN_ORDER
      if is_settled and not is_blocked then ready[#ready + 1] = one else unsettled = unsettled + 1 end
    end
  end
  self.is_first = false
  return ready, unsettled
end

---Whether a checkpoint that cannot be opened may be unfinished: it changed not long ago.
---@param one WatchedCheckpoint
function Looks:may_grow(one)
  return self.known[one.path].count < LOOKS_AT_DAMAGED and os.time() - one.time <= LOOKS_AT_DAMAGED * self.interval
end

---The checkpoint was shown; it is ready again if it changes.
---@param one WatchedCheckpoint
function Looks:set_done(one) self.known[one.path].is_done = true end

return looks
