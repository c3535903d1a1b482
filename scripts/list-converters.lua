-- cbk list-converters: the old name of list
local here = debug.getinfo(1, "S").source:match "^@(.*)list%-converters%.lua$"
dofile(here .. "list.lua")
