// Functions that merge the tensors of several models.
#include <cstring>

#include "bindings/elements.hpp"
#include "bindings/modules.hpp"
#include "host/base/sha256.hpp"
#include "host/tensor/counter_random.hpp"
#include "host/tensor/merge.hpp"

namespace cbk::lua {
namespace {

/// `cbk.weighted_sum(tensors, weights, { normalize })`
int weighted(lua_State* L) {
  const Options options(L, 3, {"normalize"});
  push(L, weighted_sum(check_tensors(L, 1), check_numbers(L, 2), options.flag("normalize")));
  return 1;
}

/// `cbk.slerp(a, b, t)`
int spherical(lua_State* L) {
  const auto a = check<const TensorLeaf>(L, 1);
  const auto b = check<const TensorLeaf>(L, 2);
  push(L, slerp(a->tensor, b->tensor, check_number(L, 3)));
  return 1;
}

/// The random numbers of one difference: the same on every machine.
uint64_t stream_of(int64_t seed, std::string_view name, size_t place) {
  Sha256 digest;
  digest.add(as_bytes(fmt::format("{}\n{}\n{}", seed, place, name)));
  uint64_t stream = 0;
  std::memcpy(&stream, digest.digest().data(), sizeof stream);
  return stream;
}

TrimRule::Kind trim_kind(const std::string& name) {
  if (name.empty()) return TrimRule::Kind::none;
  if (name == "magnitude") return TrimRule::Kind::magnitude;
  if (name == "random") return TrimRule::Kind::random;
  fail(Errc::usage, "option 'trim' should be 'magnitude' or 'random', not {}", quote(name));
}

std::vector<TrimRule> trims_of(lua_State* L, const Options& options, size_t count) {
  const TrimRule::Kind kind = trim_kind(options.text("trim"));
  std::vector<double> densities(count, 1);
  if (options.has("densities")) {
    options.push("densities");
    densities = check_numbers(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  const int64_t seed = options.integer("seed", 0, INT64_MAX).value_or(0);
  const std::string name = options.text("name");
  std::vector<TrimRule> out;
  for (size_t i = 0; i < densities.size(); ++i)
    out.push_back({kind, densities[i], options.flag("rescale"), stream_of(seed, name, i)});
  return out;
}

/// `cbk.add_differences(base, tensors, weights, { trim, densities, … })`
int differences(lua_State* L) {
  const Options options(L, 4,
                        {"trim", "densities", "rescale", "consensus", "normalize", "factor", "seed", "name"});
  const auto base = check<const TensorLeaf>(L, 1);
  const std::vector<Tensor> tuned = check_tensors(L, 2);
  DifferenceRule rule;
  rule.weights = check_numbers(L, 3);
  rule.trims = trims_of(L, options, tuned.size());
  rule.has_consensus = options.flag("consensus");
  rule.is_normalized = options.flag("normalize");
  rule.factor = options.number("factor", 1);
  push(L, add_differences(base->tensor, tuned, std::move(rule)));
  return 1;
}

}  // namespace

void bind_merge(lua_State* L) {
  static const luaL_Reg functions[] = {{"weighted_sum", guarded<weighted>},
                                       {"slerp", guarded<spherical>},
                                       {"add_differences", guarded<differences>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
