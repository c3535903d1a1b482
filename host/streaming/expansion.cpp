#include "host/streaming/expansion.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "host/tensor/backing.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk {
namespace {

constexpr uint64_t always_allowed = 16ULL << 30;
constexpr uint64_t allowed_per_byte = 1000;

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

class Expansion {
 public:
  void add(const Item& item) {
    key_ = &item.key;
    visit(*item.tensor.expression());
  }

  [[nodiscard]] uint64_t total() const {
    uint64_t total = filled_;
    for (const auto& [storage, use] : uses_) {
      const uint64_t held = std::min(use.covered, stored_size(*storage));
      total = saturating_add(total, use.written - std::min(use.written, held));
    }
    return total;
  }

  /// The sizes of the files that the sources are in.
  [[nodiscard]] uint64_t source_bytes() const {
    std::set<std::string> files;
    uint64_t total = 0;
    for (const auto& [storage, use] : uses_) {
      std::error_code ignored;
      const std::string file = storage->place().file;
      if (file.empty() || !files.insert(file).second) continue;
      if (const auto size = fs::file_size(file, ignored); !ignored) total = saturating_add(total, size);
    }
    return total;
  }

  /// The item that expands most.
  [[nodiscard]] const std::string& largest() const { return *largest_; }

 private:
  struct Use {
    uint64_t written = 0;
    uint64_t covered = 0;
  };

  void visit(const Expression& expression) {
    if (const auto* source = dynamic_cast<const ViewExpression*>(&expression)) {
      Use& use = uses_[source->view().storage.get()];
      const uint64_t covered = covered_bytes(source->view());
      use.written = saturating_add(use.written, expression.nbytes());
      use.covered = saturating_add(use.covered, covered);
      note(expression.nbytes() - std::min(expression.nbytes(), covered));
    } else if (dynamic_cast<const FillExpression*>(&expression) != nullptr) {
      filled_ = saturating_add(filled_, expression.nbytes());
      note(expression.nbytes());
    }
    expression.each_input([this](const Expression& input) { visit(input); });
  }

  void note(uint64_t bytes) {
    if (largest_ != nullptr && bytes <= most_) return;
    largest_ = key_;
    most_ = bytes;
  }

  std::unordered_map<const Storage*, Use> uses_;
  uint64_t filled_ = 0;
  const std::string* key_ = nullptr;  // of the item that is being checked
  const std::string* largest_ = nullptr;
  uint64_t most_ = 0;
};

}  // namespace

void check_expansion(const Writer& writer, std::optional<uint64_t> limit) {
  uint64_t written = 0;
  for (const Item& item : writer.items()) written = saturating_add(written, item.tensor.nbytes());
  if (written <= limit.value_or(always_allowed)) return;
  Expansion expansion;
  for (const Item& item : writer.items()) expansion.add(item);
  if (!limit) limit = std::max(always_allowed, allowed_per_byte * expansion.source_bytes());
  if (expansion.total() <= *limit) return;
  throw Error(Errc::value,
              {.problem = fmt::format(
                   "the output would have {} that its sources only repeat or hold compressed, {} "
                   "most of all; the limit is {}",
                   format_size(expansion.total()), quote(expansion.largest()), format_size(*limit)),
               .key = expansion.largest(),
               .advice = "--max-expansion SIZE (in Lua max_expansion) allows more"});
}

}  // namespace cbk
