-- What a config file of the Model Zoo says around a family's own fields: precision, the model's name, its other sections.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "converters.engine.naming"
local releases = require "converters.engine.releases"
local run_config = require "converters.modelzoo.run_config"
local trainer = require "converters.modelzoo.trainer"

local file = {}

---The precision field, which stands beside the model in one layout and in it in the other.
---@param to Dict     the model section of the Model Zoo
---@param from Dict   the config of Hugging Face
---@param release string
---@return string|nil converted   the field that it is made of
function file.precision_to_cs(to, from, release)
  if release ~= "2.1" and release ~= "2.2" and release ~= "2.3" then return end
  local fp16_type = run_config.fp16_type(from.use_bfloat16, "use_bfloat16")
  if fp16_type then
    to.fp16_type = fp16_type
    return "use_bfloat16"
  end
end

-- What use_bfloat16 says of each, before there were types.
local is_bfloat16 = { bfloat16 = true, cbfloat16 = true, float16 = false }

---@param place string   where the type stands
local function check_type(kind, place)
  if is_bfloat16[kind] == nil then fields.refuse(place, kind, fields.any_of(unpack(naming.sorted(is_bfloat16)))) end
end

---… and back, or an error.
---@param to Dict       the config of Hugging Face
---@param config Dict   the whole file of the Model Zoo
function file.precision_to_hf(to, config)
  local kind = config.fp16_type
  if kinds.absent(kind) then return end
  check_type(kind, "fp16_type")
  to.use_bfloat16 = is_bfloat16[kind]
end

---Between releases: a type is one that there is. It stays where the older release does not know it, as in the Model Zoo's converter.
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
    cbk.warn(("%s=%s stays, though release %s does not know it%s"):format(place, fields.shown(kind), tgt, kind == "cbfloat16"
      and "; it has no such type" or (": use_bfloat16: %s says the same there"):format(tostring(is_bfloat16[kind]))))
  end
end

---Names the model for releases that look it up by name.
---@param model Dict
---@param release string|nil
---@param zoo_name string
---@param from? string   the first release that does
function file.set_name(model, release, zoo_name, from)
  if release and releases.since(release, from or "2.4") and model.name == nil then model.name = zoo_name end
end

---A Model Zoo file among Hugging Face's would convert into a model of nothing but defaults.
---@param config Dict
function file.refuse(config)
  for _, section in ipairs { "model", "trainer" } do
    if kinds.is_dict(config, section) then
      cbk.fail("config", ("this is a config of the Model Zoo, not of Hugging Face: it has a section '%s'; "
        .. "give its format, such as --src-fmt cs-%s"):format(section, releases.newest))
    end
  end
end

---The parts of a file beside its model, but for the precision, which stands in Hugging Face's config.
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

---A sideband-sparse checkpoint holds NaN where a weight is zero.
---@param config Dict
---@return boolean
function file.is_sideband(config)
  return kinds.is_dict(config, "sparsity") and config.sparsity.type == "sideband"
end

return file
