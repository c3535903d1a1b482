#include "host/value/values_digest.hpp"

#include "host/base/sha256.hpp"
#include "host/value/json.hpp"
#include "host/value/walk.hpp"

namespace cbk {
namespace {

std::string text_of(const Value& leaf) {
  if (leaf.is(Value::Kind::tensor)) {
    const Tensor& tensor = leaf.as_tensor();
    return fmt::format("{} [{}]", name_of(tensor.dtype()), fmt::join(tensor.shape(), ","));
  }
  try {
    JsonWriteOptions options;
    options.python = true;
    return to_json(leaf, options);
  } catch (const Error&) {
    return "other";  // objects and bytes, which are moved from the sources
  }
}

}  // namespace

std::string values_digest(const Value& root) {
  Sha256 digest;
  each_leaf(root, [&](const std::string& path, const Value& leaf) {
    digest.add(as_bytes(fmt::format("{} {} {}\n", path, static_cast<int>(leaf.kind()), text_of(leaf))));
  });
  return to_hex(digest.digest());
}

}  // namespace cbk
