-- What is done once a user's script has ended without an error (host/app/script.cpp): last warnings.

local ending = {}

local waiting = {}

---Adds a function that is called at the end of the script. It must not raise.
---@param body fun()
function ending.add(body) waiting[#waiting + 1] = body end

---Calls the functions in the order in which they were added, once.
function ending.run()
  collectgarbage "stop" -- what the script used is garbage now, and is still looked at
  for i = 1, #waiting do
    local body = waiting[i]
    waiting[i] = nil
    body()
  end
end

---Forgets them, where there is no script: in the prompt.
function ending.forget()
  for i = 1, #waiting do waiting[i] = nil end
end

return ending
