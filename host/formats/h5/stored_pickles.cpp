#include "host/formats/h5/stored_pickles.hpp"

#include <algorithm>
#include <unordered_set>

#include "host/formats/h5/text.hpp"
#include "host/formats/pickle/unpickler.hpp"

namespace cbk::h5 {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// Python's bytes.fromhex skips spaces and fails for any other character that is not a digit, so such text is
/// not a pickle.
void check_hex(std::string text, bool allow_records, const MemoryBudget& memory) {
  std::erase_if(text, is_space);
  const auto is_digit = [](unsigned char c) { return std::isxdigit(c) != 0; };
  MemoryBudget until_read(memory);
  if (std::ranges::all_of(text, is_digit)) unpickle_stored(from_hex(text), allow_records, until_read);
}

void check_object(hdf5::File& file, const hdf5::ObjectHeader& object, bool allow_records) {
  const hdf5::Attributes attributes = file.attributes(object);
  for (const char* name : {"__spec__", "object_value", "dtype"}) {
    const auto value = attributes.value(name);
    if (value && value->is(Value::Kind::string))
      within(name, [&] { check_hex(value->as_string(), allow_records, *file.memory()); });
  }
  // Python uses the bytes of an array of any dtype.
  if (const hdf5::Attribute* bytes = attributes.find("__BYTES__")) {
    MemoryBudget until_read(*file.memory());
    within("__BYTES__", [&] { unpickle_stored(as_text(bytes->data), allow_records, until_read); });
  }
}

}  // namespace

Value unpickle_stored(std::string_view bytes, bool allow_records, MemoryBudget& memory) {
  pickle::UnpickleOptions options;
  options.budget = &memory;
  options.dill = true;
  options.allow_records = allow_records;
  return pickle::load(bytes, options);
}

void RefusedValues::fail_if_any() const {
  if (!first_) return;
  ErrorParts parts = first_->parts();
  if (count_ > 1)
    parts.problem += fmt::format("; {} more {} refused", count_ - 1, count_ == 2 ? "value is" : "values are");
  throw Error(first_->code(), std::move(parts));
}

void check_pickles(hdf5::File& file, bool allow_records) {
  MemoryLoan paths(*file.memory());
  std::unordered_set<uint64_t> seen;
  std::vector<std::pair<std::string, uint64_t>> rest{{"", file.root().address}};
  RefusedValues refused;
  while (!rest.empty()) {
    const std::string path = std::move(rest.back().first);
    const uint64_t address = rest.back().second;
    rest.pop_back();
    if (!seen.insert(address).second) continue;
    const hdf5::ObjectHeader object = file.objects().read(address);
    refused.attempt(path.empty() ? "/" : path, [&] {
      check_object(file, object, allow_records);
      return true;
    });
    if (!object.is_group()) continue;
    for (const hdf5::Link& link : file.links_of(object)) {
      if (link.kind != hdf5::Link::Kind::hard) continue;
      rest.emplace_back(path.empty() ? link.name : path + "/" + link.name, link.address);
      paths.grow(rest.back().first.size());
    }
  }
  refused.fail_if_any();
}

}  // namespace cbk::h5
