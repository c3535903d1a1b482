-- The module `cstorch` under the name of the first releases.

return require "cstorch"
