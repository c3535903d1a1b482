#include "host/formats/torch/reader.hpp"

#include <charconv>
#include <unordered_map>

#include "host/base/hash.hpp"
#include "host/formats/pickle/calls.hpp"
#include "host/formats/pickle/storage_class.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "host/formats/torch/byte_order.hpp"
#include "host/formats/torch/legacy.hpp"
#include "host/formats/torch/modules.hpp"
#include "host/formats/zip/archive.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::torch {
namespace {

constexpr std::string_view zip_magic = "PK\x03\x04";
constexpr std::string_view empty_zip_magic = "PK\x05\x06";
constexpr std::string_view preview_magic = "PYTORCH1";

constexpr uint64_t pickle_limit = 2ULL << 30;
constexpr uint64_t small_record = 4096;
constexpr int newest_version = 10;

class ZipReader {
 public:
  ZipReader(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory)
      : file_(std::move(file)),
        options_(options),
        memory_(std::move(memory)),
        archive_(file_, memory_, options.salvage),
        records_(archive_.entries().size()) {}

  Checkpoint run() {
    find_top();
    refuse_script();
    Checkpoint checkpoint;
    checkpoint.path = file_->path();
    checkpoint.format = "torch-zip";
    checkpoint.version = read_version();
    read_byte_order();
    check_records();
    {
      const zip::Content pickle = archive_.read(*archive_.find(top_ + "data.pkl"), pickle_limit);
      size_t used = 0;
      checkpoint.root =
          within("data.pkl", [&] { return pickle::load(pickle.text(), unpickle_options(), &used); });
      warn_of_rest(pickle.text().size() - used);
    }
    checkpoint.root = with_state_dicts(checkpoint.root, *memory_);
    file_->drop(0, file_->size());  // the directory and the pickle
    checkpoint.files = {file_->path()};
    checkpoint.warnings = std::move(warnings_);
    checkpoint.has_unreadable = has_unreadable_;
    return checkpoint;
  }

 private:
  void find_top() {
    if (archive_.entries().empty()) fail(Errc::format, "the zip archive is empty");
    const std::string_view first = archive_.entries().front().name;
    top_ = first.substr(0, first.find('/') + 1);
    if (archive_.find(top_ + "data.pkl") == nullptr) {
      fail(Errc::format, "a zip archive, but not a torch checkpoint: it has no {}", quote(top_ + "data.pkl"));
    }
  }

  void refuse_script() const {
    for (const zip::Entry& entry : archive_.entries()) {
      const std::string_view inside = entry.name.substr(std::min(top_.size(), entry.name.size()));
      if (inside == "constants.pkl" || inside.starts_with("code/")) {
        fail(Errc::unsupported,
             "a TorchScript program, not a checkpoint; in Python, "
             "torch.save(torch.jit.load(file).state_dict(), …) makes a checkpoint of it");
      }
    }
  }

  std::string read_version() {
    const zip::Entry* entry = archive_.find(top_ + "version");
    if (entry == nullptr) entry = archive_.find(top_ + ".data/version");
    if (entry == nullptr) return "";
    std::string text(archive_.read(*entry, small_record).text());
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    int version = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
    if (error != std::errc{} || end != text.data() + text.size() || version < 1) {
      fail(Errc::format, "the record version holds {}", quote(text, 40));
    }
    if (version > newest_version) {
      fail(Errc::unsupported, "the file has the version {}, newer than the known ones (1 to {})", version,
           newest_version);
    }
    return text;
  }

  void read_byte_order() {
    const zip::Entry* entry = archive_.find(top_ + "byteorder");
    if (entry == nullptr) return;
    const std::string order(archive_.read(*entry, small_record).text());
    if (order != "little" && order != "big")
      fail(Errc::format, "the record byteorder holds {}", quote(order, 40));
    byte_order_.set_big_endian(order == "big");
  }

  void check_records() {
    if (!archive_.has_checksums()) {
      warnings_.emplace_back("the archive has no checksums: damage to its tensors would not be noticed");
    }
    archive_.verify_if_small();
  }

  /// What other programs do not read either: more in the pickle, storages without a tensor, another folder.
  void warn_of_rest(uint64_t behind_pickle) {
    if (behind_pickle > 0) {
      warnings_.push_back(fmt::format(
          "{} behind the end of the pickle 'data.pkl' are not read: another pickle, or other data, was added",
          format_size(behind_pickle)));
    }
    if (archive_.is_salvaged()) return;  // nor are lost storages asked for
    const std::string storages = top_ + "data/";
    std::string first;
    size_t count = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < records_.size(); ++i) {
      const zip::Entry& entry = archive_.entries()[i];
      const bool is_read =
          entry.name.starts_with(storages) ? records_[i] != nullptr : entry.name.starts_with(top_);
      if (is_read || entry.name.ends_with('/')) continue;
      if (count++ == 0) first = quote(entry.name);
      bytes = checked_add(bytes, entry.size, "the archive");
    }
    if (count == 1) {
      warnings_.push_back(fmt::format("the archive member {} ({}) is not read: nothing refers to it", first,
                                      format_size(bytes)));
    } else if (count > 1) {
      warnings_.push_back(
          fmt::format("{} archive members ({}) are not read, such as {}: nothing refers to them", count,
                      format_size(bytes), first));
    }
  }

  pickle::UnpickleOptions unpickle_options() {
    pickle::UnpickleOptions options;
    options.budget = memory_.get();
    options.persistent_load = [this](const Value& id) { return persistent(id); };
    options.retype = [this](const StoragePtr& storage, DType dtype) {
      return byte_order_.in_order(storage, dtype);
    };
    options.note_unreadable = [this] { has_unreadable_ = true; };
    options.warn = [this](std::string text) { warnings_.push_back(std::move(text)); };
    options.allow_records = options_.allow_records;
    options.describes = true;
    return options;
  }

  /// ('storage', class, key, location, numel)
  Value persistent(const Value& id) {
    const pickle::Arguments parts(id);
    if (parts.at(0).as_string() != "storage") {
      fail(Errc::format, "a persistent id of the kind {}", quote(parts.at(0).as_string()));
    }
    const std::string& global = pickle::expect_object(parts.at(1), "class").repr;
    const pickle::StorageClass* type = pickle::find_storage_class(global);
    if (type == nullptr) fail(Errc::format, "{} is not a storage class", quote(global));
    const int64_t count = parts.at(4).as_int();
    const StoragePtr raw = record(parts.at(2).as_string(), count, type->dtype);
    if (count < 0 ||
        checked_mul(static_cast<uint64_t>(count), size_of(type->dtype), "a storage") != raw->size()) {
      fail(Errc::format, "the storage {} should have {} elements of {}, but its record has {} bytes",
           quote(parts.at(2).as_string()), count, name_of(type->dtype), raw->size());
    }
    const StoragePtr storage = type->is_untyped ? raw : byte_order_.in_order(raw, type->dtype);
    const Tensor elements = Tensor::from_view({storage, type->dtype, 0, {count}, {1}});
    return std::make_shared<Object>(Object{"torch.storage", std::string(type->name), elements});
  }

  /// `count` elements of `dtype`: the size of a lost record.
  StoragePtr record(const std::string& key, int64_t count, DType dtype) {
    const zip::Entry* entry = archive_.find(name_.assign(top_).append("data/").append(key));
    if (archive_.is_salvaged() && (entry == nullptr || archive_.is_cut(*entry))) {
      const auto elements = static_cast<uint64_t>(std::max<int64_t>(count, 0));
      return unreadable_storage(checked_mul(elements, size_of(dtype), "a storage"),
                                Error(Errc::format, "its bytes are not in the file, which is cut short"));
    }
    if (entry == nullptr) fail(Errc::format, "the storage {} is not in the archive", quote(key));
    StoragePtr& storage = records_[static_cast<size_t>(entry - archive_.entries().data())];
    if (!storage) storage = archive_.storage(*entry);
    return storage;
  }

  std::shared_ptr<const MappedFile> file_;
  const OpenOptions& options_;
  MemoryPtr memory_;
  zip::Archive archive_;
  std::string top_;  // the folder all members lie in, with its slash
  ByteOrder byte_order_;
  std::string name_;                 // of the record being looked up
  std::vector<StoragePtr> records_;  // of the archive's entries, once they are asked for
  std::vector<std::string> warnings_;
  bool has_unreadable_ = false;
};

}  // namespace

bool looks_like_torch(ByteView head) {
  const std::string_view text = as_text(head);
  return text.starts_with(zip_magic) || text.starts_with(empty_zip_magic) || legacy_magic_size(text) > 0 ||
         text.starts_with(preview_magic);
}

Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory) {
  memory = or_own(std::move(memory), file->size());
  const std::string_view text = as_text(file->bytes());
  if (legacy_magic_size(text) > 0) return read_legacy(std::move(file), options, std::move(memory));
  if (text.starts_with(preview_magic)) {
    fail(Errc::unsupported, "a file of a preview of torch 1.0 (PYTORCH1); load and save it again with torch");
  }
  return ZipReader(std::move(file), options, std::move(memory)).run();
}

}  // namespace cbk::torch
