-- Which tensors of a tree lie in one storage.

local cbk = require "cbk"
local extents = require "cbk.extents"

local ties = {}

local MOST = 100 -- names that are given of as many as there are

---What a tensor sees of which storage, as a text; nil of one that is computed.
---@param tensor Tensor
---@return string|nil
function ties.view_id(tensor)
  local storage = tensor:storage()
  if not storage then return nil end
  return ("%d %d %s %s %s"):format(storage.id, storage.offset, tensor.dtype, extents.joined(tensor:shape(), ","),
    extents.joined(storage.stride, ","))
end

--- { [storage] = { count, views = { { names }, … }, by_view } }
local function storages_of(root)
  local storages = {}
  for name, tensor in cbk.tensors(root) do
    local id = tensor:storage_id()
    if id then
      local storage = storages[id]
      if not storage then
        storage = { count = 0, views = {}, by_view = {} }
        storages[id] = storage
      end
      storage.count = storage.count + 1
      local view_id = ties.view_id(tensor)
      local names = storage.by_view[view_id]
      if not names then
        names = {}
        storage.by_view[view_id], storage.views[#storage.views + 1] = names, names
      end
      names[#names + 1] = name
    end
  end
  return storages
end

--- Adds names up to MOST of them.
local function add(list, names, except)
  for _, name in ipairs(names) do
    if #list == MOST then return end
    if name ~= except then list[#list + 1] = name end
  end
end

---A function that gives, of a tensor of the tree, the tensors that are tied to it, and those that only lie in the same storage:
---the first names, and how many there are.
---@param root Dict|List
---@return fun(name: string, tensor: Tensor): { names: string[], count: integer }, { names: string[], count: integer }
function ties.finder(root)
  local storages
  return function(name, tensor)
    storages = storages or storages_of(root)
    local storage = storages[tensor:storage_id()]
    local tied, sharing = { names = {}, count = 0 }, { names = {}, count = 0 }
    if not storage then return tied, sharing end
    local own = storage.by_view[ties.view_id(tensor)]
    add(tied.names, own, name)
    tied.count = #own - 1
    for _, names in ipairs(storage.views) do
      if #sharing.names == MOST then break end
      if names ~= own then add(sharing.names, names) end
    end
    sharing.count = storage.count - #own
    return tied, sharing
  end
end

return ties
