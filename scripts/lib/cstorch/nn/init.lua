-- cstorch.nn: modules, their parameters, and functions of neural networks.

local namespace = require "cstorch.namespace"

local nn = { Module = require "cstorch.nn.module", Parameter = require("cstorch.nn.parameter").new }
for _, part in ipairs { "layers", "transformer" } do
  for name, class in pairs(require("cstorch.nn." .. part)) do nn[name] = class end
end

return namespace("cstorch.nn", nn, { functional = "cstorch.nn.functional", utils = "cstorch.nn.utils" })
