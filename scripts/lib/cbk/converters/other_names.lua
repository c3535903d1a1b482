-- Names of tensors that a safetensors file leaves out. It holds no tensor twice: its writer keeps one name, and may note the others in
-- `__metadata__` (safetensors.torch.save_model), as removed name = kept name; for shards, in each of them or in their index.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"

local other_names = {}

---Whether a file has each tensor under one name.
---@param checkpoint Checkpoint
---@return boolean
function other_names.are_left_out(checkpoint) return checkpoint.format:find "^safetensors" ~= nil end

---The tree with the names that were left out. Anyone may write anything into the metadata: an entry that does not name a tensor, or
---names one that the file has already, is ignored.
---@param checkpoint Checkpoint
---@return Dict root, table<string, string> kept   by the names that were left out
function other_names.added(checkpoint)
  local root, kept = checkpoint.root, {}
  if not other_names.are_left_out(checkpoint) then return root, kept end
  local out = cbk.copy(root)
  local function add(metadata)
    for name, own in cbk.items(kinds.is_dict(metadata) and metadata or cbk.dict()) do
      local is_note = type(name) == "string" and type(own) == "string" and name ~= ""
      if is_note and out[name] == nil and kinds.is_tensor(root[own]) then out[name], kept[name] = root[own], own end
    end
  end
  add(checkpoint.metadata)
  if checkpoint.format == "safetensors-sharded" then
    for _, path in ipairs(checkpoint.files) do add(cbk.open(path).metadata) end
  end
  return out, kept
end

---What a job reads of a checkpoint.
---@param checkpoint Checkpoint
---@return JobInput
function other_names.input(checkpoint)
  local root, kept = other_names.added(checkpoint)
  return { source = root, kept = kept, deduplicated = other_names.are_left_out(checkpoint) }
end

return other_names
