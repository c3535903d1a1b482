#include "host/formats/dcp/reader.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_set>

#include "host/base/entries.hpp"
#include "host/base/named_files.hpp"
#include "host/formats/dcp/metadata.hpp"
#include "host/formats/safetensors/reader.hpp"
#include "host/formats/torch/reader.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/packed_storage.hpp"
#include "host/tensor/tiles.hpp"
#include "host/value/kind.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::dcp {
namespace {

using FilePtr = std::shared_ptr<const MappedFile>;

constexpr std::string_view piece_suffix = ".distcp";
constexpr std::string_view safetensors_suffix = ".safetensors";

/// The elements of a tensor in C order, whatever its strides are.
class InOrder final : public Storage {
 public:
  explicit InOrder(Tensor tensor) : tensor_(std::move(tensor)) {}
  [[nodiscard]] uint64_t size() const override { return tensor_.nbytes(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    tensor_.read(static_cast<int64_t>(offset / size_of(tensor_.dtype())), out);
  }
  void verify() const override { verify_read(*tensor_.expression()); }
  void verify_whole() const override {
    std::unordered_set<const Expression*> seen;
    verify_sources(*tensor_.expression(), &Storage::verify_whole, seen);
  }

 private:
  Tensor tensor_;
};

/// Whether the strides are those of C order; that of an extent of 1 may be any.
bool is_in_order(const View& view) {
  const Shape wanted = contiguous_strides(view.shape);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (view.shape[i] > 1 && view.strides[i] != wanted[i]) return false;
  return true;
}

/// A piece as torch.save wrote it. A folder may have 100,000 of them: its file is opened at the first read.
class PieceStorage final : public PackedStorage {
 public:
  PieceStorage(FilePtr file, const Stored& place, std::shared_ptr<const std::string> key, DType dtype,
               Shape sizes, MemoryPtr memory)
      : file_(std::move(file)),
        offset_(place.offset),
        length_(place.length),
        key_(std::move(key)),
        dtype_(dtype),
        sizes_(std::move(sizes)),
        memory_(std::move(memory)) {}

  [[nodiscard]] uint64_t size() const override {
    return static_cast<uint64_t>(numel_of(sizes_)) * size_of(dtype_);
  }
  [[nodiscard]] uint64_t stored_size() const override { return std::min(length_, size()); }
  [[nodiscard]] ByteView view() const override { return inner().view(); }
  void read(uint64_t offset, std::span<std::byte> out) const override { inner().read(offset, out); }
  void verify() const override {
    if (const StoragePtr known = opened()) known->verify();
  }
  void verify_whole() const override { inner().verify_whole(); }
  void expect() const noexcept override { file_->expect(offset_, length_); }
  void drop(uint64_t offset, uint64_t length) const noexcept override {
    if (const StoragePtr known = opened()) known->drop(offset, length);
  }
  [[nodiscard]] Storage::Place place() const override { return {file_->path().string(), offset_}; }
  void add_files(SourceFiles& files) const override { files.insert(file_); }

 private:
  [[nodiscard]] StoragePtr opened() const noexcept {
    const std::lock_guard lock(mutex_);
    return inner_;
  }

  const Storage& inner() const {
    const std::lock_guard lock(mutex_);
    if (inner_ == nullptr) {
      inner_ = within(fmt::format("the piece of {} at byte {} of '{}'", quote(*key_), offset_,
                                  file_->path().filename().string()),
                      [&] { return open(); });
    }
    return *inner_;
  }

  [[nodiscard]] StoragePtr open() const {
    const Checkpoint piece =
        torch::read(MappedFile::part(file_, offset_, length_), {}, std::make_shared<MemoryBudget>(*memory_));
    if (!piece.root.is(Value::Kind::tensor)) fail(Errc::format, "it is {}, not a tensor", a_kind(piece.root));
    const Tensor& tensor = piece.root.as_tensor();
    if (tensor.dtype() != dtype_ || tensor.shape() != sizes_) {
      fail(Errc::format, "it is {} {} instead of {} {}", name_of(tensor.dtype()), to_string(tensor.shape()),
           name_of(dtype_), to_string(sizes_));
    }
    const View* elements = tensor.view();
    if (elements == nullptr || !is_in_order(*elements)) return std::make_shared<InOrder>(tensor);
    return storage_part(elements->storage, static_cast<uint64_t>(elements->offset) * size_of(dtype_), size());
  }

  FilePtr file_;
  uint64_t offset_, length_;
  std::shared_ptr<const std::string> key_;  // of the tensor
  DType dtype_;
  Shape sizes_;
  MemoryPtr memory_;
  mutable std::mutex mutex_;
  mutable StoragePtr inner_;
};

class Reader {
 public:
  Reader(const FilePtr& metadata, const OpenOptions& options, MemoryPtr memory)
      : options_(options),
        memory_(std::move(memory)),
        files_(folder_of(metadata->path()), options.allow_external, metadata) {
    add_pieces(folder_of(metadata->path()));
    metadata_ = described_in(*metadata);
  }

  Checkpoint run() {
    Checkpoint out;
    out.format = "dcp";
    out.version = metadata_.version;
    out.root = Value::dict();
    for (const Entry& entry : metadata_.entries) {
      within(quote(entry.name),
             [&] { put(out.root, entry, entry.is_tensor ? tensor_of(entry) : value_of(entry)); });
    }
    lists_in(out.root);
    for (const auto& [name, file] : opened_) out.files.push_back(file->path());
    out.warnings = std::move(warnings_);
    out.has_unreadable = has_unreadable_;
    return out;
  }

 private:
  Metadata described_in(const MappedFile& file) {
    try {
      return within("the pickle", [&] { return read_metadata(as_text(file.bytes()), *memory_); });
    } catch (const Error& error) {
      if (error.code() != Errc::format || !error.parts().advice.empty()) throw;
      ErrorParts parts = error.parts();
      parts.advice = "if the file was cut short or damaged, copy it again from where the folder was written";
      throw Error(error.code(), std::move(parts));
    }
  }

  /// The checkpoint is as large as its pieces, and so is the memory for their list.
  void add_pieces(const fs::path& folder) {
    for (const fs::directory_entry& entry : entries_of(folder)) {
      std::error_code error;
      if (entry.path().extension() != piece_suffix || !entry.is_regular_file(error)) continue;
      const uint64_t size = entry.file_size(error);
      if (!error) memory_->add_file(size);
    }
  }

  /// The file of a piece, which must have its bytes.
  const FilePtr& file_of(const Stored& place) {
    FilePtr& file = opened_[*place.file];
    if (file == nullptr) {
      file = files_.open(*place.file, NamedFiles::Link::followed);
    }
    if (place.offset > file->size() || place.length > file->size() - place.offset) {
      fail(Errc::format,
           "its piece should be at bytes {} to {} of '{}', which has {} bytes; is it cut short?",
           place.offset, place.offset + place.length, *place.file, file->size());
    }
    return file;
  }

  Value tensor_of(const Entry& entry) {
    std::vector<Tile> tiles;
    tiles.reserve(entry.chunks.size());
    const auto key = std::make_shared<const std::string>(entry.name);
    for (const Chunk& chunk : entry.chunks) {
      if (!chunk.place)
        fail(Errc::format, "no file has its piece of size {} at {}", to_string(chunk.sizes),
             to_string(chunk.offsets));
      if (chunk.place->file->ends_with(safetensors_suffix)) {
        tiles.push_back({chunk.offsets, tensor_in(*chunk.place->file, entry, chunk.sizes)});
        continue;
      }
      auto storage = std::make_shared<PieceStorage>(file_of(*chunk.place), *chunk.place, key, entry.dtype,
                                                    chunk.sizes, memory_);
      if (storage->size() > chunk.place->length) {
        fail(Errc::format, "its piece of size {} at {} has {} bytes in '{}', which are too few",
             to_string(chunk.sizes), to_string(chunk.offsets), chunk.place->length, *chunk.place->file);
      }
      tiles.push_back({chunk.offsets, Tensor::from_view({std::move(storage), entry.dtype, 0, chunk.sizes,
                                                         contiguous_strides(chunk.sizes)})});
    }
    return joined_tiles(entry.dtype, entry.shape, std::move(tiles));
  }

  /// A piece in a file of safetensors, as torch's HuggingFaceStorageWriter writes them: the tensor of that
  /// name.
  Tensor tensor_in(const std::string& name, const Entry& entry, const Shape& sizes) {
    auto known = safetensors_.find(name);
    if (known == safetensors_.end()) {
      FilePtr& file = opened_[name];
      file = files_.open(name, NamedFiles::Link::followed);
      memory_->add_file(file->size());
      known = safetensors_
                  .emplace(name, within(quote(name),
                                        [&] { return safetensors::read(file, options_, *memory_).root; }))
                  .first;
    }
    const Value* found = known->second.find(entry.name);
    if (found == nullptr || !found->is(Value::Kind::tensor))
      fail(Errc::format, "{} has no such tensor", quote(name));
    const Tensor& tensor = found->as_tensor();
    if (tensor.dtype() != entry.dtype || tensor.shape() != sizes)
      fail(Errc::format, "{} has {} {} instead of {} {}", quote(name), name_of(tensor.dtype()),
           to_string(tensor.shape()), name_of(entry.dtype), to_string(sizes));
    return tensor;
  }

  /// What is not a tensor is small; what is no data is not read.
  Value value_of(const Entry& entry) {
    if (!entry.place) fail(Errc::format, "no file has its value");
    const FilePtr& file = file_of(*entry.place);
    try {
      Checkpoint value =
          torch::read(MappedFile::part(file, entry.place->offset, entry.place->length), options_, memory_);
      has_unreadable_ = has_unreadable_ || value.has_unreadable;
      return value.root;
    } catch (const Error& error) {
      if (error.code() != Errc::refused && error.code() != Errc::unsupported) throw;
      has_unreadable_ = true;
      return unreadable(error.what());
    }
  }

  static void put(const Value& root, const Entry& entry, Value value) {
    Value at = root;
    for (size_t i = 0; i + 1 < entry.path.size(); ++i) {
      const Value* next = at.as_dict().find(entry.path[i]);
      if (next == nullptr) {
        Value made = Value::dict();
        at.as_dict().set(entry.path[i], made);
        at = made;
        continue;
      }
      if (!next->is(Value::Kind::dict)) fail(Errc::format, "its path goes through another value");
      at = Value(*next);
    }
    if (at.as_dict().find(entry.path.back()) != nullptr) fail(Errc::format, "two values have its path");
    at.as_dict().set(entry.path.back(), std::move(value));
  }

  /// Dicts with the keys 0 to n - 1 were lists. The depth is that of the paths.
  static void lists_in(const Value& place) {
    for (const auto& [key, value] : place.as_dict().entries()) {
      if (!value.is(Value::Kind::dict)) continue;
      lists_in(value);
      const size_t count = value.as_dict().size();
      std::vector<Value> items;
      for (size_t i = 0; i < count; ++i) {
        const Value* item = value.as_dict().find(Value(static_cast<int64_t>(i)));
        if (item == nullptr) break;
        items.push_back(*item);
      }
      if (count > 0 && items.size() == count) place.as_dict().set(key, Value::list(std::move(items)));
    }
  }

  const OpenOptions& options_;
  MemoryPtr memory_;
  NamedFiles files_;
  Metadata metadata_;
  std::map<std::string, FilePtr> opened_;
  std::map<std::string, Value> safetensors_;  // trees of such files, by their names
  std::vector<std::string> warnings_;
  bool has_unreadable_ = false;
};

}  // namespace

Checkpoint read(const FilePtr& metadata, const OpenOptions& options, const MemoryPtr& memory) {
  return Reader(metadata, options, memory).run();
}

}  // namespace cbk::dcp
