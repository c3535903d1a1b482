local inspect = {}
function inspect.print(...)
  print(...)
end
return inspect
