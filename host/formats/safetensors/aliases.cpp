#include "host/formats/safetensors/aliases.hpp"

#include "host/value/tree_memory.hpp"

namespace cbk::safetensors {
namespace {

/// The metadata key for the library of the tensors, in every file of the reference.
constexpr std::string_view framework = "format";

/// No program writes more names than these: a model ties a handful, but a file of a few bytes could name one
/// tensor a million times.
constexpr size_t names_of_a_tensor = 8, least_names = 1000;

}  // namespace

void take_aliases(Dict& tensors, Value& metadata, MemoryBudget& memory) {
  if (!metadata.is(Value::Kind::dict)) return;
  std::vector<std::pair<std::string, Value>> found;  // none of them is a tensor that others can name
  Value rest = Value::dict();
  for (const auto& [key, text] : metadata.as_dict().entries()) {
    const bool is_note = key.is(Value::Kind::string) && text.is(Value::Kind::string) &&
                         !key.as_string().empty() && key.as_string() != framework &&
                         tensors.find(key) == nullptr;
    const Value* kept = is_note ? tensors.find(text) : nullptr;
    if (kept == nullptr) {
      rest.as_dict().set(key, text);
    } else {
      memory.charge(TreeMemory::entry + TreeMemory::beside(key.as_string()));
      found.emplace_back(key.as_string(), *kept);
    }
  }
  if (found.empty()) return;
  const size_t most = least_names + names_of_a_tensor * tensors.size();
  if (found.size() > most)
    fail(Errc::format, "__metadata__ has {} further names for {} tensors: at most {} are read", found.size(),
         tensors.size(), most);
  for (auto& [name, tensor] : found) tensors.set(name, std::move(tensor));
  metadata = rest.as_dict().empty() ? Value() : rest;
}

}  // namespace cbk::safetensors
