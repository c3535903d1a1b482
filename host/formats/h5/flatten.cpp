#include "host/formats/h5/flatten.hpp"

#include <algorithm>
#include "host/base/hash.hpp"
#include "host/value/kind.hpp"

#include <unordered_set>

namespace cbk::h5 {
namespace {

using Kind = TreeSpec::Kind;

constexpr int max_depth = 200;
constexpr size_t most_plain = 65536;
constexpr size_t usual_key = 32;  // bytes; a longer one counts as several values: the structure repeats it

class Flattener {
 public:
  explicit Flattener(const FlattenOptions& options) : options_(options) {}

  FlatTree run(const Value& root) {
    tree_.spec = visit(root, "", 0);
    if (tree_.spec.kind == Kind::leaf) {
      fail(Errc::value, "an H5 checkpoint is a tree of named values; this is only {}", a_kind(root));
    }
    std::unordered_set<std::string_view, KeyedHash> seen;
    for (const FlatLeaf& leaf : tree_.leaves) {
      if (!seen.insert(leaf.key).second)
        fail(Errc::key, "two values have the dotted key {}, and H5 holds one value for each",
             quote(leaf.key));
    }
    return std::move(tree_);
  }

 private:
  TreeSpec visit(const Value& value, const std::string& path, int depth) {
    const bool is_container = value.is(Value::Kind::dict) || value.is(Value::Kind::sequence);
    if (!value.is(Value::Kind::tensor)) count(is_container ? options_.container_cost : 1);
    const void* node = value.identity();
    if (node != nullptr && std::ranges::find(open_, node) != open_.end())
      fail(Errc::value, "{} holds itself", quote(path));
    if (depth > max_depth) fail(Errc::value, "{} is nested too deeply for H5", quote(path));
    open_.push_back(node);
    TreeSpec spec = spec_of(value, path, depth);
    open_.pop_back();
    return spec;
  }

  /// Counts what is no tensor: a value, a container, a long key.
  void count(size_t more) {
    plain_ += more;
    if (plain_ <= most_plain) return;
    fail(Errc::unsupported,
         "more than {} values, lists and dicts are not tensors, and H5 makes an object of each; no more can "
         "be read again; make tensors of long lists, leave them out (cbk copy --exclude), or choose another "
         "format",
         most_plain);
  }

  TreeSpec spec_of(const Value& value, const std::string& path, int depth) {
    TreeSpec spec;
    if (value.is(Value::Kind::dict)) {
      const Dict& dict = value.as_dict();
      if (dict.kind != Dict::Kind::counter) {
        visit_dict(dict, path, depth, spec);
        return spec;
      }
    } else if (value.is(Value::Kind::sequence)) {
      const Sequence& sequence = value.as_sequence();
      spec.kind = kind_of(sequence, path);
      if (spec.kind != Kind::leaf) {
        spec.maxlen = sequence.maxlen;
        for (size_t i = 0; i < sequence.items.size(); ++i) {
          spec.children.push_back(visit(sequence.items[i], join(path, std::to_string(i), depth), depth + 1));
        }
        return spec;
      }
    }
    tree_.leaves.push_back({path, value});
    return spec;
  }

  void visit_dict(const Dict& dict, const std::string& path, int depth, TreeSpec& spec) {
    spec.kind = dict.kind == Dict::Kind::ordered ? Kind::ordered : Kind::dict;
    if (dict.kind == Dict::Kind::defaultdict) {
      tree_.warnings.push_back(
          fmt::format("{} is a defaultdict, which H5 cannot load back: written as a dict", quote(path)));
    }
    spec.keys.reserve(dict.size());
    spec.children.reserve(dict.size());
    for (const auto& [key, value] : dict.entries()) {
      using enum Value::Kind;
      if (!key.is(string) && !key.is(integer) && !key.is(boolean) && !key.is(real) && !key.is(none)) {
        fail(Errc::value, "{} has a key that is {}; H5 keeps text, numbers, bools and None as keys",
             quote(path), a_kind(key));
      }
      spec.keys.push_back(key);
      const std::string part = key_text(key);
      if (!value.is(tensor)) count(part.size() / usual_key);
      spec.children.push_back(visit(value, join(path, part, depth), depth + 1));
    }
  }

  [[nodiscard]] Kind kind_of(const Sequence& sequence, const std::string& path) const {
    using enum Sequence::Kind;
    switch (sequence.kind) {
      case list:
        return Kind::list;
      case tuple:
        if (!sequence.type.empty())
          fail(Errc::unsupported, "{} is a named tuple ({}), which H5 has no form for", quote(path),
               quote(sequence.type));
        return Kind::tuple;
      case set:
        return options_.sets_are_containers ? Kind::set : Kind::leaf;
      case deque:
        return options_.sets_are_containers ? Kind::deque : Kind::leaf;
      default:
        return Kind::leaf;
    }
  }

  static std::string join(const std::string& path, const std::string& part, int depth) {
    return depth == 0 ? part : path + "." + part;
  }

  FlattenOptions options_;
  size_t plain_ = 0;
  std::vector<const void*> open_;  // what is being visited, outermost first; nullptr for scalars
  FlatTree tree_;
};

}  // namespace

FlatTree flatten(const Value& root, const FlattenOptions& options) {
  return Flattener(options).run(root);
}

}  // namespace cbk::h5
