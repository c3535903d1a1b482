// The effects of the allow-list's globals when a pickle "calls" them: plain C++ on Values.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "host/formats/pickle/arena.hpp"
#include "host/formats/pickle/globals.hpp"
#include "host/formats/pickle/unpickler.hpp"

namespace cbk::pickle {

/// The arguments of one call; a missing one is a `format` error.
class Arguments {
 public:
  explicit Arguments(const Value& tuple);
  [[nodiscard]] size_t size() const { return items_.size(); }
  [[nodiscard]] const Value& at(size_t i) const;
  /// The argument, or nullptr if there are fewer.
  [[nodiscard]] const Value* find(size_t i) const { return i < items_.size() ? &items_[i] : nullptr; }

 private:
  const std::vector<Value>& items_;
};

/// The state that calls share while one pickle is read.
struct CallContext {
  Arena& arena;
  const UnpickleOptions& options;
  /// Arrays that numpy's _reconstruct made and BUILD will fill.
  std::unordered_map<const void*, std::shared_ptr<TensorLeaf>> unfinished_arrays;
  bool has_left_out = false;  // attributes of a container, with a warning
};

/// The result of calling the global; `refused` if the arguments need something beyond the allow-list, other
/// errors are `format` or `unsupported`.
Value call(CallContext& context, Meaning meaning, const std::string& global, const Value& arguments);

/// Sets the state of an object: an OrderedDict's attributes, a numpy dtype or array, a record's state.
/// Returns the object afterwards: `target` itself, or its replacement (an array of elements that are not
/// numbers).
Value build(CallContext& context, const Value& target, const Value& state);

/// Adds attributes to a record: those of a dict, items by their numbers; other states as "state".
void set_attributes(CallContext& context, Object& record, const Value& state);

/// `value` as an Object of that type, or a `format` error that says what was expected.
const Object& expect_object(const Value& value, std::string_view type);

}  // namespace cbk::pickle
