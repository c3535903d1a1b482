// `cbk.low_rank`: the difference of two matrices as a product of two thin ones.
#include "bindings/modules.hpp"
#include "host/compute/low_rank.hpp"

namespace cbk::lua {

using compute::LowRank;

template <>
struct TypeName<const LowRank> {
  static constexpr const char* value = "LowRank";
};

namespace {

/// `cbk.low_rank(tuned, base, rank)`
int make_low_rank(lua_State* L) {
  const auto tuned = check<const TensorLeaf>(L, 1);
  const auto base = check<const TensorLeaf>(L, 2);
  push(L, std::shared_ptr<const LowRank>(
              std::make_shared<LowRank>(tuned->tensor, base->tensor, check_integer(L, 3))));
  return 1;
}

int rank_of(lua_State* L) {
  push_integer(L, check<const LowRank>(L, 1)->rank());
  return 1;
}

int left(lua_State* L) {
  push(L, low_rank_side(check<const LowRank>(L, 1), LowRank::Side::left));
  return 1;
}

int right(lua_State* L) {
  push(L, low_rank_side(check<const LowRank>(L, 1), LowRank::Side::right));
  return 1;
}

int energy(lua_State* L) {
  const auto found = check<const LowRank>(L, 1)->energy();
  if (!found) return 0;
  lua_pushnumber(L, found->kept);
  lua_pushnumber(L, found->all);
  return 2;
}

}  // namespace

void bind_low_rank(lua_State* L) {
  static const luaL_Reg methods[] = {{"rank", guarded<rank_of>},
                                     {"left", guarded<left>},
                                     {"right", guarded<right>},
                                     {"energy", guarded<energy>},
                                     {nullptr, nullptr}};
  register_type<const LowRank>(L, {.methods = methods});
  static const luaL_Reg functions[] = {{"low_rank", guarded<make_low_rank>}, {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
