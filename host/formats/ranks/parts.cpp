#include "host/formats/ranks/parts.hpp"

#include <algorithm>
#include <map>

#include "host/formats/torch/reader.hpp"
#include "host/value/kind.hpp"

namespace cbk::ranks {
namespace {

class Merger {
 public:
  Merger(const std::vector<Part>& parts, const std::function<bool(const Value&)>& is_tensor,
         const JoinTensors& join)
      : parts_(parts), is_tensor_(is_tensor), join_(join) {}

  Value run() {
    std::vector<const Value*> roots;
    roots.reserve(parts_.size());
    for (const Part& part : parts_) roots.push_back(&part.root);
    return at("", roots);
  }

 private:
  Value at(const std::string& path, const std::vector<const Value*>& of_ranks) {
    const Value& first = *of_ranks.front();
    if (is_tensor_(first)) return tensor_at(path, of_ranks);
    if (first.is(Value::Kind::dict)) return dict_at(path, of_ranks);
    if (first.is(Value::Kind::sequence)) return sequence_at(path, of_ranks);
    for (size_t i = 1; i < of_ranks.size(); ++i)
      if (holds_tensors(*of_ranks[i]))
        fail(Errc::format, "{} is {} in '{}', but not in '{}'", quote(path), a_kind(*of_ranks[i]),
             parts_[i].name, parts_[0].name);
    return first;
  }

  Value tensor_at(const std::string& path, const std::vector<const Value*>& of_ranks) {
    std::vector<const void*> identity;
    identity.reserve(of_ranks.size());
    for (const Value* one : of_ranks) identity.push_back(one->identity());
    if (auto known = known_.find(identity); known != known_.end()) return known->second;
    for (size_t i = 0; i < of_ranks.size(); ++i) {
      if (!is_tensor_(*of_ranks[i]))
        fail(Errc::format, "{} is {} in '{}', and a tensor in '{}'", quote(path), a_kind(*of_ranks[i]),
             parts_[i].name, parts_[0].name);
    }
    return known_[identity] = within(quote(path), [&] { return join_(path, of_ranks); });
  }

  Value dict_at(const std::string& path, const std::vector<const Value*>& of_ranks) {
    const Dict& first = of_ranks.front()->as_dict();
    auto made = std::make_shared<Dict>(first.kind);
    made->attributes = first.attributes;
    made->reserve(first.size());
    for (const auto& [key, value] : first.entries()) {
      const std::string inner = path.empty() ? key_text(key) : path + "." + key_text(key);
      std::vector<const Value*> below;
      for (const Value* one : of_ranks)
        if (const Value* found = one->is(Value::Kind::dict) ? one->as_dict().find(key) : nullptr)
          below.push_back(found);
      const bool is_whole = below.size() == of_ranks.size();
      if (!is_whole && holds_tensors(value)) fail_missing(key, inner, of_ranks);
      made->set(key, is_whole ? at(inner, below) : value);
    }
    check_others(path, of_ranks);
    return made;
  }

  Value sequence_at(const std::string& path, const std::vector<const Value*>& of_ranks) {
    const Value& first = *of_ranks.front();
    const size_t count = first.as_sequence().items.size();
    for (size_t i = 1; i < of_ranks.size(); ++i) {
      const Value& other = *of_ranks[i];
      if (other.is(Value::Kind::sequence) && other.as_sequence().items.size() == count) continue;
      if (holds_tensors(first) || holds_tensors(other))
        fail(Errc::format, "{} has tensors, and another length in '{}' than in '{}'", quote(path),
             parts_[i].name, parts_[0].name);
      return first;
    }
    auto made = std::make_shared<Sequence>(first.as_sequence());
    for (size_t i = 0; i < count; ++i) {
      std::vector<const Value*> below;
      below.reserve(of_ranks.size());
      for (const Value* one : of_ranks) below.push_back(&one->as_sequence().items[i]);
      made->items[i] = at(fmt::format("{}{}{}", path, path.empty() ? "" : ".", i), below);
    }
    return made;
  }

  bool holds_tensors(const Value& value) const {
    if (is_tensor_(value)) return true;
    if (value.is(Value::Kind::dict)) {
      for (const auto& [key, inner] : value.as_dict().entries())
        if (holds_tensors(inner)) return true;
    }
    if (value.is(Value::Kind::sequence)) {
      const auto& items = value.as_sequence().items;
      return std::any_of(items.begin(), items.end(), [&](const Value& item) { return holds_tensors(item); });
    }
    return false;
  }

  [[noreturn]] void fail_missing(const Value& key, const std::string& path,
                                 const std::vector<const Value*>& of_ranks) const {
    size_t i = 0;
    while (of_ranks[i]->is(Value::Kind::dict) && of_ranks[i]->as_dict().find(key) != nullptr) ++i;
    fail(Errc::format, "{} is in '{}', but not in '{}'", quote(path), parts_[0].name, parts_[i].name);
  }

  /// A tensor that rank 0 does not have would be lost.
  void check_others(const std::string& path, const std::vector<const Value*>& of_ranks) const {
    const Dict& first = of_ranks.front()->as_dict();
    for (size_t i = 1; i < of_ranks.size(); ++i) {
      if (!of_ranks[i]->is(Value::Kind::dict)) continue;
      for (const auto& [key, value] : of_ranks[i]->as_dict().entries()) {
        if (first.find(key) == nullptr && holds_tensors(value))
          fail(Errc::format, "{} is in '{}', but not in '{}'",
               quote(path.empty() ? key_text(key) : path + "." + key_text(key)), parts_[i].name,
               parts_[0].name);
      }
    }
  }

  const std::vector<Part>& parts_;
  const std::function<bool(const Value&)>& is_tensor_;
  const JoinTensors& join_;
  std::map<std::vector<const void*>, Value> known_;  // joined tensors, by the identities of the parts
};

}  // namespace

Part PartReader::read(const RankFile& one) {
  const FilePtr& file = one.file;
  const fs::path& path = file->path();
  const std::string own = path.filename().string();
  const bool is_shared_name = own == "model_optim_rng.pt";  // of all ranks, in folders of their own
  const std::string name = is_shared_name ? (path.parent_path().filename() / own).string() : own;
  memory_->add_file(file->size());
  Checkpoint part = within(fmt::format("'{}'", name), [&] { return torch::read(file, options_, memory_); });
  for (std::string& warning : part.warnings) out_.warnings.push_back(fmt::format("'{}': {}", name, warning));
  out_.has_unreadable = out_.has_unreadable || part.has_unreadable;
  out_.files.push_back(file->path());
  return {name, one.rank, std::move(part.root)};
}

std::vector<Part> PartReader::read(std::span<const RankFile> files) {
  std::vector<Part> parts;
  parts.reserve(files.size());
  for (const RankFile& file : files) parts.push_back(read(file));
  return parts;
}

Checkpoint PartReader::checkpoint(std::string format, Value root) {
  out_.format = std::move(format);
  out_.root = std::move(root);
  return std::move(out_);
}

Value merged(const std::vector<Part>& parts, const std::function<bool(const Value&)>& is_tensor,
             const JoinTensors& join) {
  return Merger(parts, is_tensor, join).run();
}

void check_alike(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  const Tensor& first = of_ranks.front()->as_tensor();
  for (size_t i = 1; i < of_ranks.size(); ++i) {
    const Tensor& other = of_ranks[i]->as_tensor();
    if (other.dtype() != first.dtype() || other.shape() != first.shape())
      fail(Errc::format, "it is {} {} in '{}', and {} {} in '{}'", name_of(first.dtype()),
           to_string(first.shape()), parts[0].name, name_of(other.dtype()), to_string(other.shape()),
           parts[i].name);
  }
}

bool are_same(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  constexpr uint64_t largest = 64ULL << 20;  // bytes of a part
  check_alike(parts, of_ranks);
  const Tensor& first = of_ranks.front()->as_tensor();
  if (of_ranks.size() == 1) return true;
  if (first.nbytes() > largest)
    fail(Errc::unsupported, "it has {} in each part, and there is no rule how they are joined",
         format_size(first.nbytes()));
  const Bytes bytes = first.to_bytes();
  return std::all_of(of_ranks.begin() + 1, of_ranks.end(),
                     [&](const Value* one) { return one->as_tensor().to_bytes() == bytes; });
}

}  // namespace cbk::ranks
