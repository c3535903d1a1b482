#include "host/tensor/storage.hpp"

#include <algorithm>
#include <utility>

#include "host/tensor/packed_storage.hpp"

namespace cbk {
namespace {

class MappedStorage final : public Storage {
 public:
  MappedStorage(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size)
      : file_(std::move(file)),
        offset_(offset),
        size_(file_->slice(offset, size, "a tensor's data").size()) {}

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] ByteView view() const override {
    const ByteView all = file_->addressable();
    return all.empty() ? all : all.subspan(offset_, size_);
  }
  void read(uint64_t offset, std::span<std::byte> out) const override { file_->read(offset_ + offset, out); }
  void expect() const noexcept override { file_->expect(offset_, size_); }
  void drop(uint64_t offset, uint64_t length) const noexcept override {
    file_->drop(offset_ + offset, length);
  }
  [[nodiscard]] Place place() const override { return {file_->path().string(), file_->begin() + offset_}; }
  [[nodiscard]] std::optional<FileRange> file_range() const override {
    return FileRange{file_->fd(), file_->begin() + offset_};
  }
  void add_files(SourceFiles& files) const override { files.insert(file_); }

 private:
  std::shared_ptr<const MappedFile> file_;
  uint64_t offset_;
  uint64_t size_;
};

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(Bytes bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  [[nodiscard]] ByteView view() const override { return bytes_; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    const ByteView part = view().subspan(offset, out.size());
    std::copy(part.begin(), part.end(), out.begin());
  }

 private:
  Bytes bytes_;
};

class UnreadableStorage final : public Storage {
 public:
  // NOLINTNEXTLINE(bugprone-throw-keyword-missing): it is thrown on reading
  UnreadableStorage(uint64_t size, Error why) : size_(size), why_(std::move(why)) {}
  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] std::string_view problem() const override { return why_.what(); }
  void read(uint64_t /*offset*/, std::span<std::byte> /*out*/) const override { throw Error(why_); }

 private:
  uint64_t size_;
  Error why_;
};

class StoragePart final : public PackedStorage {
 public:
  StoragePart(StoragePtr storage, uint64_t offset, uint64_t size)
      : storage_(std::move(storage)), offset_(offset), size_(size) {}
  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] uint64_t stored_size() const override { return std::min(size_, cbk::stored_size(*storage_)); }
  void each_piece(const VisitPiece& visit) const override { each_piece_of(*storage_, *this, visit); }
  [[nodiscard]] ByteView view() const override {
    const ByteView all = storage_->view();
    return all.empty() ? all : all.subspan(offset_, size_);
  }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    storage_->read(offset_ + offset, out);
  }
  void expect() const noexcept override { storage_->expect(); }
  [[nodiscard]] std::string_view problem() const override { return storage_->problem(); }
  void verify() const override { storage_->verify(); }
  void verify_whole() const override { storage_->verify_whole(); }
  void drop(uint64_t offset, uint64_t length) const noexcept override {
    storage_->drop(offset_ + offset, length);
  }
  [[nodiscard]] Place place() const override {
    Place place = storage_->place();
    place.offset += offset_;
    return place;
  }
  [[nodiscard]] std::optional<FileRange> file_range() const override {
    auto range = storage_->file_range();
    if (range) range->offset += offset_;
    return range;
  }
  void add_files(SourceFiles& files) const override { storage_->add_files(files); }

 private:
  StoragePtr storage_;
  uint64_t offset_;
  uint64_t size_;
};

class SwappedStorage final : public PackedStorage {
 public:
  SwappedStorage(StoragePtr storage, uint32_t itemsize) : storage_(std::move(storage)), itemsize_(itemsize) {}
  [[nodiscard]] uint64_t size() const override { return storage_->size(); }
  [[nodiscard]] uint64_t stored_size() const override { return cbk::stored_size(*storage_); }
  void each_piece(const VisitPiece& visit) const override { cbk::each_piece(*storage_, visit); }
  [[nodiscard]] Unwritten unwritten() const override { return cbk::unwritten(*storage_); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    // Whole elements around the range are swapped, then the range is cut out.
    const uint64_t begin = offset / itemsize_ * itemsize_;
    const uint64_t end = std::min(align_up(offset + out.size(), itemsize_), size());
    Bytes elements(end - begin);
    storage_->read(begin, elements);
    for (size_t i = 0; i + itemsize_ <= elements.size(); i += itemsize_) {
      std::reverse(elements.begin() + static_cast<ptrdiff_t>(i),
                   elements.begin() + static_cast<ptrdiff_t>(i + itemsize_));
    }
    std::copy_n(elements.begin() + static_cast<ptrdiff_t>(offset - begin), out.size(), out.begin());
  }
  [[nodiscard]] std::string_view problem() const override { return storage_->problem(); }
  void verify() const override { storage_->verify(); }
  void verify_whole() const override { storage_->verify_whole(); }
  void drop(uint64_t offset, uint64_t length) const noexcept override { storage_->drop(offset, length); }
  [[nodiscard]] Place place() const override { return storage_->place(); }
  void add_files(SourceFiles& files) const override { storage_->add_files(files); }

 private:
  StoragePtr storage_;
  uint32_t itemsize_;
};

}  // namespace

StoragePtr map_storage(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size) {
  return std::make_shared<MappedStorage>(std::move(file), offset, size);
}

StoragePtr whole_or_lost(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size) {
  const bool is_inside = size <= file->size() && offset <= file->size() - size;
  if (is_inside) return map_storage(std::move(file), offset, size);
  return unreadable_storage(
      size, Error(Errc::format, fmt::format("{} at byte {} of a file of {}: it is cut short",
                                            format_size(size), offset, format_size(file->size()))));
}

StoragePtr memory_storage(Bytes bytes) {
  return std::make_shared<MemoryStorage>(std::move(bytes));
}

StoragePtr unreadable_storage(uint64_t size, Error why) {
  return std::make_shared<UnreadableStorage>(size, std::move(why));
}

StoragePtr storage_part(StoragePtr storage, uint64_t offset, uint64_t size) {
  if (offset > storage->size() || size > storage->size() - offset) {
    fail(Errc::format, "bytes {} to {} of {}", offset, offset + size, storage->size());
  }
  return std::make_shared<StoragePart>(std::move(storage), offset, size);
}

StoragePtr swapped_storage(StoragePtr storage, uint32_t itemsize) {
  return std::make_shared<SwappedStorage>(std::move(storage), itemsize);
}

}  // namespace cbk
