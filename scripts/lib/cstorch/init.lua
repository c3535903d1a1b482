-- The module `cstorch`: the training API. Its parts load when they are first used.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local ordered_map = require "cstorch.ordered_map"

local cstorch = {
  class = class, REQUIRED = keywords.REQUIRED, OPTIONAL = keywords.OPTIONAL, UNTAGGED = keywords.UNTAGGED,
  check = errors.check, on_warning = errors.on_warning, items = ordered_map.items,
}

return setmetatable(cstorch, {
  __index = function(_, name)
    for _, known in ipairs { "nn", "optim", "amp", "metrics", "utils" } do
      if name == known then
        local part = require("cstorch." .. name)
        rawset(cstorch, name, part)
        return part
      end
    end
  end,
})
