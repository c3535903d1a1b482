-- Repairs of checkpoints of releases before 2.0: tied weights that were stored under one name only, and wrong step counts of schedules.
-- These are rules about names and numbers; the caller reads and writes the file.

local cbk = require "cbk"
local naming = require "cbk.naming"
local python_int = require "cbk.python_int"

local spec = {}

---Pairs of endings that are names of one weight. The first pair with a matching ending is used.
spec.aliases = {
  { "embedding_layer.word_embeddings.weight", "lm_head.weight" },
  { "ln_f.weight", "transformer_decoder.norm.weight" },
  { "ln_f.bias", "transformer_decoder.norm.bias" },
}

local function ends_with(text, ending) return text:sub(-#ending) == ending end

---The other name of a weight; nil if it has only one name.
---@param key string
---@return string|nil
function spec.alias_of(key)
  for _, pair in ipairs(spec.aliases) do
    for i = 1, 2 do
      if ends_with(key, pair[i]) then return key:sub(1, #key - #pair[i]) .. pair[3 - i] end
    end
  end
end

---The keys of the spec that are not stored, each with the name of its data. Supplied keys count as stored for the keys after them.
---@param keys string[]                  leaf keys of the spec, in its order
---@param has fun(key: string): boolean  whether the file stores that very name
---@return { key: string, source: string }[] tied
---@return { key: string, source?: string }[] lost   keys without data; source: where it should be
function spec.match_missing(keys, has)
  local tied, lost, supplied = {}, {}, {}
  for _, key in ipairs(keys) do
    if not has(key) and not supplied[key] then
      local source = spec.alias_of(key)
      if source and (has(source) or supplied[source]) then
        tied[#tied + 1] = { key = key, source = source }
        supplied[key] = true
      else
        lost[#lost + 1] = { key = key, source = source }
      end
    end
  end
  return tied, lost
end

---The same, but every key must have data.
---@return { key: string, source: string }[]
function spec.missing_aliases(keys, has)
  local tied, lost = spec.match_missing(keys, has)
  local first = lost[1]
  if first and first.source then
    cbk.fail("key", ("could not find key '%s' in the checkpoint; it should hold the data of '%s', which is not stored")
      :format(first.source, first.key))
  elseif first then
    cbk.fail("key", ("alias not found for missing key '%s': no data is stored for it, and only embeddings, lm_head and a "
      .. "decoder's final norm can be restored by name; `cbk upgrade` knows the tied weights of each model")
      :format(first.key))
  end
  return tied
end

-- --- step counts of schedules

local function has_text(name, text) return name:find(text, 1, true) ~= nil end

---The names of the milestones between schedules, in their order.
---@param names string[]   all stored names
---@return string[]
function spec.milestone_names(names)
  local out, place = {}, {}
  for _, name in ipairs(names) do
    if has_text(name, "lr_scheduler") and has_text(name, "milestones") then
      local tail = naming.last(name)
      place[name] = python_int(tail) or cbk.fail("key", ("milestone '%s': '%s' at its end is not a whole number"):format(name, tail))
      out[#out + 1] = name
    end
  end
  table.sort(out, function(a, b) return place[a] ~= place[b] and place[a] < place[b] or place[a] == place[b] and a < b end)
  return out
end

---What each `last_epoch` should be: the global step, or for a schedule after a milestone the steps since then.
---@param names string[]          all stored names
---@param global_step number      or int64
---@param milestones number[]     the values of `milestone_names`, in that order
---@return { name: string, value: number }[]   in the order of `names`
function spec.last_epochs(names, global_step, milestones)
  local out = {}
  for _, name in ipairs(names) do
    if has_text(name, "lr_scheduler") and has_text(name, "last_epoch") then
      local schedule = tonumber(#milestones > 0 and name:match "(%d+)%.last_epoch" or 0, 10)
      if schedule > #milestones then
        cbk.fail("value", ("'%s': expected a milestone for schedule %d, but the checkpoint has only %d")
          :format(name, schedule, #milestones))
      end
      local value = global_step
      if schedule > 0 then value = value > milestones[schedule] and value - milestones[schedule] or 0 end
      out[#out + 1] = { name = name, value = value }
    end
  end
  return out
end

return spec
