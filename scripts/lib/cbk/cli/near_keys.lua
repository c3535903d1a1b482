-- Which keys of a checkpoint a mistyped one may have meant.

local cbk = require "cbk"

local MOST = 10000 -- keys that are compared

---"; did you mean 'a' or 'b'?" where keys look like `key`, else an empty text.
---@param rows LeafRows
---@param key string
---@return string
return function(rows, key)
  local keys = {}
  for i = 1, math.min(#rows, MOST) do keys[i] = rows:path(i) end
  local near = cbk.nearest(key, keys, 3)
  for i, name in ipairs(near) do near[i] = cbk.quote(name) end
  return #near > 0 and ("; did you mean %s?"):format(table.concat(near, " or ")) or ""
end
