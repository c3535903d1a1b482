-- Shared code of schedules made of schedules: adopting members, and state dicts that include those of the members.

local effects = require "cstorch.run.effects"
local errors = require "cstorch.errors"
local loaded = require "cstorch.loaded"
local ordered_map = require "cstorch.ordered_map"
local Scheduler = require "cstorch.optim.schedules.scheduler"
local undo = require "cstorch.optim.schedules.undo"

local composite = {}

--- A member is not stepped on its own any more.
local function unregister(member)
  member.is_member = true
  effects.schedule_used(member)
  local list = member.optimizer.schedulers
  for i = #list, 1, -1 do
    if list[i] == member then table.remove(list, i) end
  end
end

---Checks the members of `owner` and takes them over.
---@param owner cstorch.optim.Scheduler
---@param members cstorch.optim.Scheduler[]
function composite.adopt(owner, members)
  owner:_check_members(members)
  errors.check(members[1].optimizer == owner.optimizer, "value", "%s: its members belong to another optimizer", owner.class.name)
  owner.param_group_tags = members[1].param_group_tags
  for _, member in ipairs(members) do unregister(member) end
end

---Entry `name` of a state dict, and the rest of it.
---@param dict table
---@param name string
---@return any entry, table rest
function composite.split(dict, name)
  local rest = ordered_map.new(dict)
  local entry = rest[name]
  rest[name] = nil
  return entry, rest
end

function composite.state_dict(self)
  local dict = Scheduler.state_dict(self)
  dict.milestones, dict._milestones = nil, dict.milestones
  local members = {}
  for k, member in ipairs(self.schedulers) do members[k] = member:state_dict() end
  dict._schedulers = members
  return dict
end

local function load(self, dict)
  self:_check_state_dict(dict)
  local members, rest = composite.split(dict, "_schedulers")
  local milestones
  milestones, rest = composite.split(rest, "_milestones")
  if milestones ~= nil and self.class.keywords.milestones then
    self.milestones = loaded.plain(milestones)
    self:check_arguments()
  end
  local is_list = members == nil or loaded.is_list(members)
  errors.check(is_list, "type", "%s: expected a list as _schedulers, found %s", self.class.name, errors.show(members))
  errors.check(members == nil or #members == #self.schedulers, "value", "%s: expected %d members in the state dict, found %d",
    self.class.name, #self.schedulers, members and #members or 0)
  for k, member in ipairs(self.schedulers) do
    if members and members[k] then member:load_state_dict(members[k]) end
  end
  Scheduler.load_state_dict(self, rest)
end

function composite.load_state_dict(self, dict) undo.after_error(self, load, dict) end

return composite
