-- One model of a merge: its tensors, sorted into layers and what is around them.

local cbk = require "cbk"
local cli = require "cbk.cli"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"
local tensor_kinds = require "cbk.tensor_kinds"
local token_weights = require "cbk.token_weights"

local model = {}

---@class MergeModel
---@field path string
---@field root Dict                  key to tensor
---@field config? Dict               its config.json
---@field config_path? string
---@field keys string[]              in the order of the checkpoint
---@field files string[]           of the checkpoint
---@field depths table<string, integer>   the number of layers, by what is before their numbers: "model.layers"
local Model = {}
Model.__index = Model

---The parts of a layer's key: "model.layers", 3, "mlp.up_proj.weight"; nil if the key is of no layer.
---@param key string
---@return string|nil prefix, integer|nil layer, string|nil rest
function model.layer_of(key)
  local prefix, number, rest = key:match "^(.-)%.(%d+)%.(.*)$"
  if not prefix or #number > 6 then return nil end
  return prefix, tonumber(number), rest
end

local BEGINNINGS = { wte = true, wpe = true, shared = true }

---Whether a tensor outside of the layers is of the model's beginning, such as its embeddings. The others belong to its end.
---@param key string
---@return boolean
function model.is_before_layers(key)
  if token_weights.is_weight_of(token_weights.HEADS, key) then return false end
  for part in key:gmatch "[^.]+" do
    if BEGINNINGS[part] or part:find "rotary" or part:find "embed" and part ~= "embed_out" then return true end
  end
  return false
end

---Numbers of layers. There may be gaps, as in lists of modules of which some have no weights.
local function depths_of(keys)
  local out = {}
  for _, key in ipairs(keys) do
    local prefix, layer = model.layer_of(key)
    if prefix then out[prefix] = math.max(out[prefix] or 0, layer + 1) end
  end
  return out
end

---Fails unless the weights are plain numbers.
local function check_weights(path, checkpoint, config, verb)
  local cannot = ("cannot %s '%s'"):format(verb, path)
  local narrow = quantised.refuse(checkpoint:raw_root(), config, cannot).narrow
  if #narrow > 0 then cbk.fail("unsupported", quantised.narrow_problem(narrow, "the model"), { context = { cannot } }) end
end

---Opens a Hugging Face folder, or a file with a config.json beside it.
---@param path string
---@param args table   of the command
---@param verb string  for messages: "merge"
---@return MergeModel
function model.open(path, args, verb)
  local checkpoint = cli.open(path, args)
  local root, keys = checkpoint.root, {}
  if not (cbk.kind(root) or ""):find "dict" then cbk.fail("checkpoint", ("'%s' is no dict of tensors"):format(path)) end
  for key, value in cbk.items(root) do
    if not tensor_kinds.is_array(value) then
      cbk.fail("checkpoint", ("cannot %s '%s': %s is not a tensor; `cbk copy --weights` takes the weights out of a training checkpoint")
        :format(verb, path, cbk.quote(tostring(key))))
    end
    keys[#keys + 1] = tostring(key)
  end
  local config_path = cbk.fs.beside(cbk.fs.folder_of(path), "config.json", args.allow_external)
  if config_path then cli.depend_on(config_path, args) end
  local config = config_path and cbk.config.load(config_path)
  config = cbk.kind(config) == "dict" and config or nil
  check_weights(path, checkpoint, config, verb)
  return setmetatable({
    path = path, root = root, keys = keys, config = config, config_path = config_path, depths = depths_of(keys),
    files = checkpoint.files,
  }, Model)
end

---Fails if a number of a layer is left out.
---@param prefix string
function Model:check_layers(prefix)
  local seen = {}
  for _, key in ipairs(self.keys) do
    local _, layer = model.layer_of(key)
    if layer then seen[layer] = true end
  end
  for layer = 0, self.depths[prefix] - 1 do
    if not seen[layer] then
      cbk.fail("checkpoint", ("'%s' has no tensors of '%s.%d', but of '%s.%d'"):format(self.path, prefix, layer, prefix,
        self.depths[prefix] - 1))
    end
  end
end

---What is before the numbers of the layers. Fails if there are layers in several places.
---@return string
function Model:prefix()
  local prefixes = naming.sorted(self.depths)
  if #prefixes == 1 then return prefixes[1] end
  cbk.fail("unsupported", #prefixes == 0 and ("'%s' has no layers to slice"):format(self.path)
    or ("'%s' has layers in several places (%s); slices need one"):format(self.path, table.concat(prefixes, ", ")))
end

---The tensor of a key; of a head that the files lack because it is tied, the embeddings.
---@param key string
---@return Tensor|nil
function Model:tensor(key)
  local own = self.root[key]
  if own ~= nil or not token_weights.is_weight_of(token_weights.HEADS, key) then return own end
  if token_weights.stated_tie(self.config) == false then return nil end
  local _, embedding = token_weights.pair_in(self.root)
  return embedding and self.root[embedding]
end

---Whether the head and the embeddings are one tensor in the files, or the files lack a head.
---@return boolean
function Model:is_tied()
  local head, embedding = token_weights.pair_in(self.root)
  if not embedding then return false end
  return head == nil or self.root[head]:same(self.root[embedding])
end

return model
