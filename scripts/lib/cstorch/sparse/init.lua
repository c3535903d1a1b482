-- cstorch.sparse: weights of which a part is zero.

local namespace = require "cstorch.namespace"

return namespace("cstorch.sparse", { Static = require "cstorch.sparse.static" })
