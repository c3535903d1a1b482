#include "host/value/leaf_table.hpp"

#include <algorithm>

#include "host/base/hash.hpp"
#include "host/value/walk.hpp"

namespace cbk {
namespace {

constexpr uint32_t no_container = UINT32_MAX;

}  // namespace

class LeafTable::Builder {
 public:
  explicit Builder(LeafTable& table) : table_(table) {}

  void visit(const Value& node, Place place) {
    const Value& value = insides(node);
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
      const uint32_t container = enter(node, place);
      table_.pins_.emplace_back(value.node<Dict>());
      const Dict& dict = value.as_dict();
      for (size_t i = 0; i < dict.position_count(); ++i) {
        if (const Dict::Entry* entry = dict.entry_at(i))
          visit(entry->second, {container, static_cast<uint32_t>(i)});
      }
      leave(container);
    } else if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
      const uint32_t container = enter(node, place);
      uint32_t position = 0;
      for (const Value& item : value.as_sequence().items) visit(item, {container, position++});
      leave(container);
    } else {
      if (table_.leaves_.size() >= max_tree_leaves)
        fail(Errc::value, "the tree has more than {} leaves", max_tree_leaves);
      table_.leaves_.push_back(place);
    }
  }

 private:
  std::string path_of(Place place) const {
    std::string path;
    table_.append_path(place, path);
    return path;
  }

  uint32_t enter(const Value& value, Place place) {
    if (above_.size() >= max_tree_depth)
      fail(Errc::value, "{} is nested deeper than {} levels", quote(path_of(place)), max_tree_depth);
    if (std::ranges::find(above_, value.identity()) != above_.end())
      fail(Errc::value, "{} holds itself", quote(path_of(place)));
    above_.push_back(value.identity());
    table_.containers_.push_back({value, place, next_row(), 0});
    return static_cast<uint32_t>(table_.containers_.size() - 1);
  }

  void leave(uint32_t container) {
    table_.containers_[container].row_after = next_row();
    above_.pop_back();
  }

  [[nodiscard]] uint32_t next_row() const { return static_cast<uint32_t>(table_.leaves_.size()); }

  LeafTable& table_;
  std::vector<const void*> above_;
};

LeafTable::LeafTable(Value root) : root_(std::move(root)) {
  Builder(*this).visit(root_, {no_container, 0});
}

const Value* LeafTable::at(Place place) const {
  if (place.container == no_container) return &root_;
  const Value& node = insides(containers_[place.container].node);
  if (node.is(Value::Kind::dict)) {
    const Dict::Entry* entry = node.as_dict().entry_at(place.position);
    return entry == nullptr ? nullptr : &entry->second;
  }
  const std::vector<Value>& items = node.as_sequence().items;
  return place.position < items.size() ? &items[place.position] : nullptr;
}

const Value* LeafTable::value(size_t row) const {
  const Place place = leaves_[row];
  for (uint32_t container = place.container; container != no_container;) {
    const Container& above = containers_[container];
    const Value* now = at(above.place);
    if (now == nullptr || now->identity() != above.node.identity()) return nullptr;
    container = above.place.container;
  }
  return at(place);
}

std::optional<uint32_t> LeafTable::container_around(size_t row, uint32_t above) const {
  for (uint32_t inner = leaves_[row].container; inner != no_container && inner != above;) {
    const uint32_t outer = containers_[inner].place.container;
    if (outer == above) return inner;
    inner = outer;
  }
  return std::nullopt;
}

const Object* LeafTable::record_around(size_t row, size_t parts) const {
  for (uint32_t at = leaves_[row].container; at != no_container; at = containers_[at].place.container) {
    if (!containers_[at].node.is(Value::Kind::object)) continue;
    std::string path;
    append_path(containers_[at].place, path);
    const size_t own = path.empty() ? 0 : 1 + static_cast<size_t>(std::ranges::count(path, '.'));
    if (own == parts) return &containers_[at].node.as_object();
  }
  return nullptr;
}

void LeafTable::append_path(Place place, std::string& out) const {
  if (place.container == no_container) return;
  const Container& container = containers_[place.container];
  append_path(container.place, out);
  if (!out.empty()) out += '.';
  const Value& node = insides(container.node);
  if (node.is(Value::Kind::dict)) {
    const Dict::Entry* entry = node.as_dict().entry_at(place.position);
    if (entry != nullptr) out += key_text(entry->first);
  } else {
    out += std::to_string(place.position);
  }
}

std::string LeafTable::path(size_t row) const {
  std::string path;
  append_path(leaves_[row], path);
  return path;
}

void LeafTable::make_index() const {
  if (index_) return;
  index_.emplace();
  for (uint32_t row = 0; row < leaves_.size(); ++row) {
    const std::string own = path(row);
    const auto first =
        index_->find_or_add(KeyedHash()(own), row, [&](uint32_t other) { return path(other) == own; });
    if (first) repeated_.emplace_back(*first, row);
  }
  std::ranges::sort(repeated_);
}

std::optional<size_t> LeafTable::find(std::string_view wanted, size_t times) const {
  make_index();
  const auto first = index_->find(KeyedHash()(wanted),
                                  [&](uint32_t row) { return value(row) != nullptr && path(row) == wanted; });
  if (!first || times == 0) return first;
  const auto begin = std::ranges::lower_bound(repeated_, std::pair{*first, uint32_t{0}});
  if (static_cast<size_t>(repeated_.end() - begin) < times) return std::nullopt;
  const auto& [same, row] = begin[static_cast<ptrdiff_t>(times - 1)];
  return same == *first ? std::optional<size_t>(row) : std::nullopt;
}

size_t LeafTable::earlier_rows(size_t row) const {
  make_index();
  const std::string own = path(row);
  const auto first = index_->find(KeyedHash()(own), [&](uint32_t other) { return path(other) == own; });
  if (!first || *first == row) return 0;
  const auto begin = std::ranges::lower_bound(repeated_, std::pair{*first, uint32_t{0}});
  const auto self = std::ranges::lower_bound(repeated_, std::pair{*first, static_cast<uint32_t>(row)});
  return static_cast<size_t>(self - begin) + 1;
}

}  // namespace cbk
