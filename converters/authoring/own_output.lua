-- Mistakes of a user's own converter that show in the config which it writes for the Model Zoo: names of fields that its class does
-- not have, fields that it leaves out though the class's default asks for tensors, and tensors that the config ties though they differ.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local check_config = require "converters.authoring.check_config"
local fit = require "converters.engine.fit"
local naming = require "cbk.naming"
local ties = require "converters.engine.ties"
local trainer = require "converters.modelzoo.trainer"

local own_output = {}

---What is doubtful in the output of a user's own converter; nothing for a family of cbk.
---@param job Job
---@param config Dict   that is written
---@param root Dict     that is written
---@return string[]   warnings
function own_output.doubts(job, config, root)
  if not catalogue.is_own(job.model.model) or job.tgt == "hf" then return {} end
  local converter = job.path[#job.path].converter
  local class, release = catalogue.class_of(job.model, converter, job.tgt)
  if not class then return {} end
  local out = {}
  for _, finding in ipairs(check_config.names({ config = converter.config, classes = { right = class } }, nil, true)) do
    out[#out + 1] = finding.text
  end
  local model, keys = root.model or cbk.dict(), {}
  for key in cbk.items(model) do keys[#keys + 1] = key end
  local known = class:tensors(trainer.model(config), { release = release })
  for _, difference in ipairs(job.watch and {} or ties.differences(known, model)) do
    out[#out + 1] = ("in the output, %s; set the field that ties them with a pair or with fields.fixed.right"):format(difference)
  end
  for _, one in ipairs(fit.of(known, keys, function() end).unsaid) do
    out[#out + 1] = ("the output's config does not say %s, whose default means %d biases that the output lacks: %s; set it with "
      .. "fields.fixed.right"):format(one.name, #one.keys, naming.listed(one.keys))
  end
  return out
end

return own_output
