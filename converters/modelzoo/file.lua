-- The parts of a Model Zoo config file besides a family's own fields: precision, the model's name, other sections.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"
local run_config = require "converters.modelzoo.run_config"
local trainer = require "converters.modelzoo.trainer"

local file = {}

---Converts the precision field, which is beside the model in one layout and inside it in the other.
---@param to Dict     the model section of the Model Zoo
---@param from Dict   the config of Hugging Face
---@param release string
---@return string|nil converted   the source field
function file.precision_to_cs(to, from, release)
  if release ~= "2.1" and release ~= "2.2" and release ~= "2.3" then return end
  local fp16_type = run_config.fp16_type(from.use_bfloat16, "use_bfloat16")
  if fp16_type then
    to.fp16_type = fp16_type
    return "use_bfloat16"
  end
end

-- The use_bfloat16 of each type, for releases before there were types.
local is_bfloat16 = { bfloat16 = true, cbfloat16 = true, float16 = false }

---@param place string   the path of the type
local function check_type(kind, place)
  if is_bfloat16[kind] == nil then fields.refuse(place, kind, fields.any_of(unpack(naming.sorted(is_bfloat16)))) end
end

---Converts the precision field back.
---@param to Dict       the config of Hugging Face
---@param config Dict   the whole file of the Model Zoo
function file.precision_to_hf(to, config)
  local kind = config.fp16_type
  if kinds.absent(kind) then return end
  check_type(kind, "fp16_type")
  to.use_bfloat16 = is_bfloat16[kind]
end

---Between releases: the type must be known. It is kept even if the older release does not know it, as in the Model Zoo's converter.
---@param config Dict   the whole file, as it is read
---@param src string
---@param tgt string
function file.check_precision(config, src, tgt)
  if not releases.since(src, "2.1") then return end
  local model, place = trainer.model(config), trainer.place_of_model(config) .. ".fp16_type"
  local precision = trainer.is(config) and config.trainer.init.precision
  if kinds.is_dict(precision) and kinds.present(precision.fp16_type) then
    check_type(precision.fp16_type, "trainer.init.precision.fp16_type")
  end
  local kind = model.fp16_type
  if kinds.absent(kind) then return end
  check_type(kind, place)
  if not releases.since(tgt, "2.1") then
    cbk.warn(("%s=%s is kept, but release %s does not know it%s"):format(place, fields.shown(kind), tgt, kind == "cbfloat16"
      and "; it has no such type" or ("; there it is use_bfloat16: %s"):format(tostring(is_bfloat16[kind]))))
  end
end

---Sets the model's name for releases that look it up by name.
---@param model Dict
---@param release string|nil
---@param zoo_name string
---@param from? string   the first such release
function file.set_name(model, release, zoo_name, from)
  if release and releases.since(release, from or "2.4") and model.name == nil then model.name = zoo_name end
end

---Sets the names of a composite's sections. The original converter uses the composite's name, which the Model Zoo's classes refuse.
---@param model Dict
---@param release string|nil
---@param zoo_name string
---@param parts Component[]|nil
function file.name_parts(model, release, zoo_name, parts)
  if not release or not releases.since(release, "2.4") then return end
  for _, part in ipairs(parts or {}) do
    local section = part.named and kinds.is_dict(model, part.right) and model[part.right]
    if section and (section.name == nil or section.name == zoo_name) then section.name = part.named end
  end
end

---Refuses a Model Zoo file in place of a Hugging Face one: it would become a model with defaults only.
---@param config Dict
function file.refuse(config)
  for _, section in ipairs { "model", "trainer" } do
    if kinds.is_dict(config, section) then
      cbk.fail("config", ("expected a config of Hugging Face, as the source format is hf, found one of the Model Zoo (it has a section "
        .. "'%s'); pass its format, such as --src-fmt cs-%s"):format(section, releases.newest))
    end
  end
end

---The parts of a file besides its model and the precision, which the Hugging Face config has.
---@param config Dict
---@return string[]
function file.beside_model(config)
  local out = {}
  local function add(tree, prefix, own)
    for name in cbk.items(tree) do
      if not own[name] and kinds.present(tree[name]) then out[#out + 1] = prefix .. tostring(name) end
    end
  end
  if trainer.is(config) then
    add(config, "", { trainer = true, fp16_type = true })
    add(config.trainer, "trainer.", { init = true })
    add(config.trainer.init, "trainer.init.", { model = true })
  else
    add(config, "", { model = true, fp16_type = true })
  end
  return out
end

---Whether a checkpoint is sideband-sparse: it has NaN in place of zero weights.
---@param config Dict
---@return boolean
function file.is_sideband(config)
  return kinds.is_dict(config, "sparsity") and config.sparsity.type == "sideband"
end

return file
