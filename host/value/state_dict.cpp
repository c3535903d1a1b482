#include "host/value/state_dict.hpp"

#include "host/base/hash.hpp"
#include "host/value/kind.hpp"
#include "host/value/walk.hpp"

#include <map>
#include <tuple>
#include <unordered_set>

namespace cbk {
namespace {

constexpr size_t deepest_dict = 500;

/// Whether a list or an object, such as a sparse or quantised tensor of PyTorch, has tensors in it.
bool has_tensor(const Value& value) {
  const Value& inside = value.is(Value::Kind::object) ? value.as_object().state : value;
  bool found = false;
  each_leaf(inside, [&](const std::string&, const Value& leaf) {
    const bool is_tensor = leaf.is(Value::Kind::tensor) && leaf.as_leaf().role != TensorLeaf::Role::np_scalar;
    found = found || is_tensor;
  });
  return found;
}

class Flattener {
 public:
  explicit Flattener(std::string_view format) : format_(format) {}

  std::vector<NamedTensor> run(const Value& root) {
    if (!insides(root).is(Value::Kind::dict)) {
      fail(Errc::value, "{} holds a dict of tensors; this is {}", format_, a_kind(root));
    }
    walk(insides(root).as_dict(), "", 0);
    if (!others_.empty()) {
      const std::string problem =
          fmt::format("{} holds plain tensors only; {} {} not: {}", format_, others_.size(),
                      others_.size() == 1 ? "key is" : "keys are", listed(others_, 3));
      throw Error(
          Errc::value,
          {.problem = problem,
           .advice = have_tensors_ ? "some of these hold tensors: write a PyTorch file (.pt), which has all"
                     : tensors_.empty()
                         ? "write H5 (.h5) or a PyTorch file (.pt), which have all"
                         : "copy the weights alone (cbk copy --weights), or leave out what is not "
                           "a tensor (cbk copy --exclude)"});
    }
    if (!twice_.empty())
      fail(Errc::value, "two tensors would get one name in {}: {}", format_, listed(twice_));
    return std::move(tensors_);
  }

 private:
  void walk(const Dict& dict, const std::string& prefix, size_t depth) {
    if (depth > deepest_dict)
      fail(Errc::value, "{}: dicts nested deeper than {} levels", quote(prefix), deepest_dict);
    for (const auto& [key, item] : dict.entries()) {
      const Value& value = insides(item);
      const std::string name = prefix.empty() && depth == 0 ? key_text(key) : prefix + "." + key_text(key);
      if (!key.is(Value::Kind::string)) {
        others_.push_back(fmt::format("{} (a key of kind {})", quote(name), key.kind_name()));
      } else if (value.is(Value::Kind::dict)) {
        if (value.as_dict().empty()) others_.push_back(quote(name) + " (an empty dict)");
        walk(value.as_dict(), name, depth + 1);
      } else if (!value.is(Value::Kind::tensor) || value.as_leaf().role == TensorLeaf::Role::np_scalar) {
        others_.push_back(fmt::format("{} ({})", quote(name),
                                      value.is(Value::Kind::tensor) ? "numpy scalar" : value.kind_name()));
        have_tensors_ = have_tensors_ || has_tensor(value);
      } else {
        if (!names_.insert(name).second) twice_.push_back(quote(name));
        tensors_.push_back({name, value});
      }
    }
  }

  std::string_view format_;
  std::vector<NamedTensor> tensors_;
  std::unordered_set<std::string, KeyedHash> names_;
  std::vector<std::string> others_;
  bool have_tensors_ = false;  // others that are lists or objects with tensors, such as sparse ones
  std::vector<std::string> twice_;
};

}  // namespace

std::vector<NamedTensor> flat_tensors(const Value& root, std::string_view format) {
  return Flattener(format).run(root);
}

size_t count_ties(const std::vector<NamedTensor>& tensors) {
  // Identifies tensors by storage, place and strides, and computed tensors by their expression.
  using Identity = std::tuple<const void*, DType, int64_t, Shape, Shape>;
  std::map<Identity, size_t> seen;
  size_t ties = 0;
  for (const NamedTensor& tensor : tensors) {
    const Tensor& data = tensor.leaf.as_tensor();
    if (data.numel() == 0) continue;
    const View* view = data.view();
    const Identity identity =
        view != nullptr
            ? Identity{view->storage.get(), view->dtype, view->offset, data.shape(), view->strides}
            : Identity{data.expression().get(), data.dtype(), 0, data.shape(), {}};
    if (!seen.emplace(identity, seen.size()).second) ++ties;
  }
  return ties;
}

std::string written_as_copies(size_t ties, std::string_view why) {
  return ties == 1 ? fmt::format("1 tied tensor is written as a copy: {}", why)
                   : fmt::format("{} tied tensors are written as copies: {}", ties, why);
}

}  // namespace cbk
