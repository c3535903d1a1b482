#include "host/formats/torch/legacy.hpp"

#include <algorithm>
#include <map>

#include "host/formats/pickle/calls.hpp"
#include "host/formats/pickle/storage_class.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "host/formats/torch/byte_order.hpp"
#include "host/formats/torch/modules.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::torch {
namespace {

/// A storage whose offset in the file is not known yet: the list of storages comes after the pickle.
class PendingStorage final : public Storage {
 public:
  explicit PendingStorage(uint64_t size) : size_(size) {}
  [[nodiscard]] uint64_t size() const override { return size_; }
  void read(uint64_t /*offset*/, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
  }

 private:
  uint64_t size_;
};

constexpr uint64_t storage_bytes = 256;  // a storage takes, and what finds it

struct Root {
  const pickle::StorageClass* type = nullptr;
  uint64_t bytes = 0;
  StoragePtr storage;
  bool is_placed = false;
};

class LegacyReader {
 public:
  LegacyReader(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory)
      : file_(std::move(file)),
        options_(options),
        memory_(std::move(memory)),
        rest_(as_text(file_->bytes())) {}

  Checkpoint run() {
    Checkpoint checkpoint;
    read_header();
    const std::string_view object = rest_;
    const auto load = [this](const Value& id) { return persistent(id); };
    MemoryBudget rehearsal(*memory_);
    next(load, rehearsal);  // learns which storages there are
    place_storages(next({}, rehearsal));
    rest_ = object;
    warnings_.clear();
    checkpoint.root = with_state_dicts(next(load, *memory_), *memory_);
    checkpoint.path = file_->path();
    checkpoint.format = "torch-legacy";
    checkpoint.files = {file_->path()};
    checkpoint.warnings = std::move(warnings_);
    checkpoint.has_unreadable = has_unreadable_;
    if (behind_ > 0) {
      checkpoint.warnings.push_back(
          fmt::format("{} behind the last storage are not read: torch.save was called several times for one "
                      "file, or other "
                      "data was added",
                      format_size(behind_)));
    }
    return checkpoint;
  }

 private:
  /// The next pickle of the stream.
  Value next(std::function<Value(const Value&)> persistent_load, MemoryBudget& budget) {
    pickle::UnpickleOptions unpickle_options;
    unpickle_options.budget = &budget;
    unpickle_options.persistent_load = std::move(persistent_load);
    unpickle_options.allow_records = options_.allow_records;
    unpickle_options.describes = true;
    unpickle_options.retype = [this](const StoragePtr& storage, DType dtype) {
      return byte_order_.in_order(storage, dtype);
    };
    unpickle_options.note_unreadable = [this] { has_unreadable_ = true; };
    unpickle_options.warn = [this](std::string text) { warnings_.push_back(std::move(text)); };
    size_t consumed = 0;
    Value value = pickle::load(rest_, unpickle_options, &consumed);
    rest_.remove_prefix(consumed);
    return value;
  }

  void read_header() {
    rest_.remove_prefix(legacy_magic_size(rest_));
    const Value version = next({}, *memory_);
    if (!version.is(Value::Kind::integer) || version.as_int() != 1001) {
      fail(Errc::unsupported, "a legacy torch file of an unknown protocol version");
    }
    const Value system = next({}, *memory_);
    const Value* little = system.find("little_endian");
    byte_order_.set_big_endian(little != nullptr && little->is(Value::Kind::boolean) && !little->as_bool());
  }

  /// ('storage', class, key, location, numel[, view]), where view is None or (key, offset, numel).
  Value persistent(const Value& id) {
    const pickle::Arguments parts(id);
    const std::string& kind = parts.at(0).as_string();
    if (kind == "module") return parts.at(1);  // a class, with its source beside it
    if (kind != "storage") fail(Errc::format, "a persistent id of the kind {}", quote(kind));
    const std::string& global = pickle::expect_object(parts.at(1), "class").repr;
    const pickle::StorageClass* type = pickle::find_storage_class(global);
    if (type == nullptr) fail(Errc::format, "{} is not a storage class", quote(global));
    const int64_t count = parts.at(4).as_int();
    if (count < 0) fail(Errc::format, "a storage of {} elements", count);
    const StoragePtr storage = root(parts.at(2).as_string(), *type, static_cast<uint64_t>(count));
    int64_t first = 0;
    int64_t length = count;
    if (const Value* view = parts.find(5); view != nullptr && !view->is_none()) {
      const pickle::Arguments part(*view);
      first = part.at(1).as_int();
      length = part.at(2).as_int();
      if (first < 0 || length < 0 || first > count || length > count - first) {
        fail(Errc::format, "a part of a storage that is outside of it");
      }
    }
    const Tensor elements = Tensor::from_view({storage, type->dtype, first, {length}, {1}});
    return std::make_shared<Object>(Object{"torch.storage", std::string(type->name), elements});
  }

  StoragePtr root(const std::string& key, const pickle::StorageClass& type, uint64_t count) {
    const uint64_t bytes = checked_mul(count, size_of(type.dtype), "a storage");
    auto [found, is_new] = roots_.try_emplace(key, Root{&type, bytes, nullptr});
    Root& root = found->second;
    if (is_new) {
      memory_->charge(storage_bytes);
      root.storage = std::make_shared<PendingStorage>(bytes);
    }
    if (root.type != &type || root.bytes != bytes)
      fail(Errc::format, "the storage {} is described in two ways", quote(key));
    return root.storage;
  }

  void place_storages(const Value& keys) {
    const uint64_t file_size = file_->size();
    uint64_t offset = file_size - rest_.size();
    for (const Value& key : keys.as_sequence().items) {
      auto found = roots_.find(key.as_string());
      if (found == roots_.end())
        fail(Errc::format, "the storage {} is listed, but nothing refers to it", quote(key.as_string()));
      Root& root = found->second;
      if (root.is_placed) {
        fail(Errc::format,
             "the storage {} is listed twice in the list of storages, whose data is in its order",
             quote(key.as_string()));
      }
      root.is_placed = true;
      const bool has_length = offset <= file_size && file_size - offset >= 8;
      if (options_.salvage && (!has_length || root.bytes > file_size - offset - 8)) {
        root.storage = unreadable_storage(
            root.bytes, Error(Errc::format, "its bytes are not in the file, which is cut short"));
        offset = file_size;
        continue;
      }
      auto count = load_le<uint64_t>(file_->slice(offset, 8, "a storage's length").data());
      if (byte_order_.is_big_endian()) count = __builtin_bswap64(count);
      offset += 8;
      const uint64_t bytes = checked_mul(count, size_of(root.type->dtype), "a storage");
      if (bytes != root.bytes) {
        fail(Errc::format, "the storage {} has {} elements, but its tensors expect {}",
             quote(key.as_string()), count, root.bytes / size_of(root.type->dtype));
      }
      if (bytes > file_size - offset) {
        throw Error(Errc::format,
                    {.problem = fmt::format("the file is cut off: the storage {} needs {} and {} are left",
                                            quote(key.as_string()), format_size(bytes),
                                            format_size(file_size - offset)),
                     .advice = "'cbk copy --salvage' takes the rest"});
      }
      const StoragePtr raw = map_storage(file_, offset, bytes);
      root.storage = root.type->is_untyped ? raw : byte_order_.in_order(raw, root.type->dtype);
      offset += bytes;
    }
    behind_ = file_size - std::min(offset, file_size);
    const auto lost = std::ranges::find_if(roots_, [](const auto& root) { return !root.second.is_placed; });
    if (lost != roots_.end()) {
      fail(Errc::format, "tensors use the storage {}, but it is not in the list of storages, and has no data",
           quote(lost->first));
    }
  }

  std::shared_ptr<const MappedFile> file_;
  const OpenOptions& options_;
  MemoryPtr memory_;
  std::string_view rest_;
  ByteOrder byte_order_;
  std::map<std::string, Root> roots_;
  std::vector<std::string> warnings_;
  uint64_t behind_ = 0;  // bytes after the last storage
  bool has_unreadable_ = false;
};

}  // namespace

size_t legacy_magic_size(std::string_view head) {
  constexpr std::string_view as_line = "L119547037146038801333356L\n.";  // protocols 0 and 1
  constexpr std::string_view as_bytes = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
  if (head.starts_with(as_line)) return as_line.size();
  constexpr char proto = '\x80';
  constexpr char frame = '\x95';
  if (head.size() < 3 || head[0] != proto || head[1] < 2 || head[1] > 5) return 0;
  const size_t at = head[2] == frame ? 2 + 1 + sizeof(uint64_t) : 2;
  return head.substr(std::min(at, head.size())).starts_with(as_bytes) ? at + as_bytes.size() : 0;
}

Checkpoint read_legacy(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory) {
  return LegacyReader(std::move(file), options, std::move(memory)).run();
}

}  // namespace cbk::torch
