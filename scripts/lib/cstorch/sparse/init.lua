-- cstorch.sparse: weights that are partly zero.

local namespace = require "cstorch.namespace"

return namespace("cstorch.sparse", { Static = require "cstorch.sparse.static" })
