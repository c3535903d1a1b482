#include "host/formats/tensorflow/reader.hpp"

#include <algorithm>
#include <mutex>
#include <set>

#include "host/base/crc32c.hpp"
#include "host/base/named_files.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/formats/tensorflow/index.hpp"
#include "host/formats/tensorflow/join_slices.hpp"
#include "host/formats/tensorflow/table.hpp"
#include "host/tensor/checked_storage.hpp"

namespace cbk::tensorflow {
namespace {

// Approximate sizes in memory.
constexpr uint64_t leaf_bytes = 700;
constexpr uint64_t text_bytes = 48;  // of one that is decoded

/// The texts of a variable as they are stored; they are verified as a whole before the first byte is
/// returned.
class TextStorage final : public Storage {
 public:
  TextStorage(StoragePtr bytes, const Entry& entry)
      : bytes_(std::move(bytes)), name_(entry.name), count_(numel_of(entry.shape)), crc_(entry.crc) {}

  [[nodiscard]] uint64_t size() const override { return bytes_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    verify();
    bytes_->read(offset, out);
  }
  [[nodiscard]] ByteView view() const override {
    verify();
    return bytes_->view();
  }
  void verify() const override {
    std::call_once(once_, [&] {
      within("variable " + quote(name_),
             [&] { verify_texts(WholeBytes(*bytes_).view(), count_, crc_, false); });
    });
  }
  [[nodiscard]] Place place() const override { return bytes_->place(); }
  void add_files(SourceFiles& files) const override { bytes_->add_files(files); }

 private:
  StoragePtr bytes_;
  std::string name_;
  int64_t count_;
  uint32_t crc_;
  mutable std::once_flag once_;
};

/// The data files of a bundle, opened on demand.
class DataFiles {
 public:
  DataFiles(fs::path prefix, const std::shared_ptr<const MappedFile>& file, const Index& index,
            MemoryBudget& memory, const OpenOptions& options)
      : prefix_(std::move(prefix)), shards_(index.shards), salvage_(options.salvage) {
    const auto add = [&](const Entry& entry) {
      if (entry.size == 0) return;
      uint64_t& end = ends_[entry.shard];
      end = std::max(end, entry.offset + entry.size);
    };
    for (const Entry& entry : index.variables) add(entry);
    for (const auto& [key, entry] : index.slices) add(entry);
    if (!salvage_) check();
    std::error_code ignored;
    const NamedFiles named(prefix_.parent_path(), options.allow_external, file);
    for (const auto& [shard, end] : ends_) {
      const std::string name = data_file_name(prefix_.filename().string(), shard, shards_);
      if (salvage_ && !fs::is_regular_file(prefix_.parent_path() / name, ignored)) continue;
      auto data = named.open(name, NamedFiles::Link::followed);
      memory.add_file(files_.emplace(shard, std::move(data)).first->second->size());
    }
  }

  [[nodiscard]] std::vector<fs::path> paths() const {
    std::vector<fs::path> paths;
    for (const auto& [shard, file] : files_) paths.push_back(file->path());
    return paths;
  }

  /// What other programs do not read either, such as another file that was appended.
  void warn_of_rest(std::vector<std::string>& warnings) const {
    for (const auto& [shard, file] : files_) {
      const uint64_t end = ends_.at(shard);
      if (file->size() <= end) continue;
      warnings.push_back(fmt::format(
          "{} behind the last variable in {} (byte {}) are not read: another file, or other data, was added",
          format_size(file->size() - end), quote(file->path().filename().string()), end));
    }
  }

  [[nodiscard]] StoragePtr bytes_of(const Entry& entry) const {
    if (entry.size == 0) return memory_storage({});
    if (salvage_ && !files_.contains(entry.shard)) {
      const std::string name = data_file_name(prefix_.filename().string(), entry.shard, shards_);
      return unreadable_storage(entry.size, Error(Errc::format, quote(name) + " is missing"));
    }
    const auto& file = files_.at(entry.shard);
    if (salvage_) return whole_or_lost(file, entry.offset, entry.size);
    const auto context = [&] { return quote(file->path().filename().string()); };
    return within(context, [&] { return map_storage(file, entry.offset, entry.size); });
  }

 private:
  void check() const {
    std::vector<std::string> missing;
    std::error_code ignored;
    for (const auto& [shard, end] : ends_) {
      const fs::path path = data_file_name(prefix_.string(), shard, shards_);
      if (!fs::is_regular_file(path, ignored)) missing.push_back(quote(path.filename().string()));
    }
    if (missing.empty()) return;
    const std::string others = other_data_files();
    fail(Errc::missing, "the index expects its data in {} {}, but {} {} missing: {}{}", shards_,
         shards_ == 1 ? "file" : "files", missing.size(), missing.size() == 1 ? "is" : "are",
         listed(missing, 5), others.empty() ? "" : "; there is " + others);
  }

  /// A data file of this prefix with another number of shards, for the message.
  [[nodiscard]] std::string other_data_files() const {
    const fs::path folder = prefix_.parent_path().empty() ? fs::path(".") : prefix_.parent_path();
    std::vector<std::string> found;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (prefix_of_data_file(name) == prefix_.filename().string() && !name.ends_with(end_of_parts(shards_)))
        found.push_back(name);
    }
    return found.empty() ? "" : quote(*std::min_element(found.begin(), found.end()));
  }

  fs::path prefix_;
  uint32_t shards_;
  bool salvage_;
  std::map<uint32_t, uint64_t> ends_;  // of the last variable in each data file that is needed
  std::map<uint32_t, std::shared_ptr<const MappedFile>> files_;
};

uint32_t swapped_size(DType dtype) {
  return is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
}

class BundleReader {
 public:
  BundleReader(const fs::path& prefix, const std::shared_ptr<const MappedFile>& file, MemoryBudget& memory,
               const OpenOptions& options)
      : memory_(memory), index_(read_index(*file, memory)), files_(prefix, file, index_, memory, options) {}

  Checkpoint read() {
    auto root = std::make_shared<Dict>();
    root->reserve(index_.variables.size());
    for (const Entry& entry : index_.variables) {
      const auto context = [&] { return "variable " + quote(entry.name); };
      within(context, [&] {
        if (entry.dtype->kind == DTypeInfo::Kind::unreadable) {
          const std::string type = entry.dtype == &unknown_dtype
                                       ? fmt::format("unknown dtype {}", entry.dtype_number)
                                       : "type " + std::string(entry.dtype->name);
          warnings_.push_back(
              fmt::format("{} is left out: elements of {} cannot be read", quote(entry.name, 1000), type));
        } else {
          root->set(entry.name, read_variable(entry));
        }
      });
    }
    files_.warn_of_rest(warnings_);
    Checkpoint checkpoint;
    checkpoint.format = "tensorflow";
    checkpoint.version = "V2";
    checkpoint.root = std::move(root);
    checkpoint.files = files_.paths();
    checkpoint.warnings = std::move(warnings_);
    return checkpoint;
  }

 private:
  Value read_variable(const Entry& entry) {
    memory_.charge(leaf_bytes * (1 + entry.slices.size()));
    if (entry.dtype->kind == DTypeInfo::Kind::string) {
      const Tensor texts = entry.slices.empty() ? read_texts(entry) : join_texts(entry);
      return to_value({entry.dtype, entry.shape, texts});
    }
    const Tensor tensor = entry.slices.empty()
                              ? read_numbers(entry)
                              : join(entry, [&](const Entry& slice) { return read_numbers(slice); });
    if (entry.dtype->kind == DTypeInfo::Kind::quantized) return to_value({entry.dtype, entry.shape, tensor});
    return tensor;
  }

  Tensor read_numbers(const Entry& entry) const {
    const DType dtype = entry.dtype->dtype;
    if (entry.size == 0) return Tensor::from_bytes(dtype, entry.shape, {});
    View view;
    StoragePtr bytes = files_.bytes_of(entry);
    if (!bytes->problem().empty())
      return Tensor::from_view({std::move(bytes), dtype, 0, entry.shape, contiguous_strides(entry.shape)});
    view.storage = checked_storage(std::move(bytes), {Checksum::crc32c, unmasked_crc32c(entry.crc),
                                                      "variable", entry.name, "index", true});
    if (index_.big_endian && swapped_size(dtype) > 1) {
      view.storage = swapped_storage(std::move(view.storage), swapped_size(dtype));
    }
    view.dtype = dtype;
    view.shape = entry.shape;
    view.strides = contiguous_strides(entry.shape);
    return Tensor::from_view(std::move(view));
  }

  [[nodiscard]] static Tensor bytes_tensor(StoragePtr storage) {
    View view;
    view.dtype = DType::uint8;
    view.shape = {static_cast<int64_t>(storage->size())};
    view.strides = {1};
    view.storage = std::move(storage);
    return Tensor::from_view(std::move(view));
  }

  /// Returns the texts in the stored form of a little-endian file.
  [[nodiscard]] Tensor read_texts(const Entry& entry) const {
    if (entry.size == 0) return encoded({});
    StoragePtr bytes = files_.bytes_of(entry);
    if (!bytes->problem().empty()) return bytes_tensor(std::move(bytes));
    if (!index_.big_endian) return bytes_tensor(std::make_shared<TextStorage>(std::move(bytes), entry));
    const int64_t count = numel_of(entry.shape);
    const MemoryLoan decoding(memory_, static_cast<uint64_t>(count) * text_bytes + entry.size);
    memory_.charge(entry.size);
    const WholeBytes whole(*bytes);
    verify_texts(whole.view(), count, entry.crc, true);
    return encoded(decode_texts(whole.view(), count));
  }

  static Tensor encoded(std::span<const std::string_view> texts) {
    const std::string bytes = encode_texts(texts).bytes;
    const ByteView view = as_bytes(bytes);
    return bytes_tensor(memory_storage({view.begin(), view.end()}));
  }

  /// Texts differ in length, so the slices are joined by the indices of their texts.
  Tensor join_texts(const Entry& entry) {
    MemoryLoan decoding(memory_, static_cast<uint64_t>(numel_of(entry.shape)) * text_bytes);
    std::vector<Bytes> stored;
    std::vector<std::string_view> texts;
    const Tensor order = join(entry, [&](const Entry& slice) {
      const int64_t count = numel_of(slice.shape);
      decoding.grow(2 * slice.size);
      memory_.charge(slice.size);
      stored.push_back(read_texts(slice).to_bytes());
      const auto more = decode_texts(stored.back(), count);
      Bytes numbers(more.size() * sizeof(int64_t));
      for (size_t i = 0; i < more.size(); ++i) {
        store_le(numbers.data() + i * sizeof(int64_t), static_cast<int64_t>(texts.size() + i));
      }
      texts.insert(texts.end(), more.begin(), more.end());
      return Tensor::from_bytes(DType::int64, slice.shape, std::move(numbers));
    });
    const Bytes numbers = order.to_bytes();
    std::vector<std::string_view> ordered;
    for (size_t i = 0; i < numbers.size(); i += sizeof(int64_t)) {
      ordered.push_back(texts.at(load_le<uint64_t>(numbers.data() + i)));
    }
    return encoded(ordered);
  }

  template <typename ReadSlice>
  Tensor join(const Entry& entry, ReadSlice&& read_slice) {
    std::vector<Piece> pieces;
    std::set<Shape> seen;
    DType dtype = entry.dtype->dtype;
    for (const std::vector<Extent>& extents : entry.slices) {
      Piece piece;
      const Entry& slice = find_slice(entry, extents, piece.start);
      Shape place = piece.start;
      place.insert(place.end(), slice.shape.begin(), slice.shape.end());
      if (!seen.insert(place).second) fail(Errc::format, "its slice {} is repeated", to_text(extents));
      piece.tensor = within("slice " + to_text(extents), [&] { return read_slice(slice); });
      dtype = piece.tensor.dtype();
      pieces.push_back(std::move(piece));
    }
    return join_slices(entry.shape, dtype, std::move(pieces));
  }

  const Entry& find_slice(const Entry& entry, const std::vector<Extent>& extents, Shape& start) {
    const auto found = index_.slices.find(slice_key(entry.name, extents));
    if (found == index_.slices.end())
      fail(Errc::format, "its slice {} is missing in the index", to_text(extents));
    Entry& slice = found->second;
    slice.name = entry.name;
    Shape shape;
    for (size_t dim = 0; dim < extents.size(); ++dim) {
      start.push_back(extents[dim].start);
      shape.push_back(extents[dim].length.value_or(entry.shape[dim]));
    }
    if (slice.shape != shape || slice.dtype != entry.dtype) {
      fail(Errc::format, "its slice {} is {} {} instead of {} {}", to_text(extents), slice.dtype->name,
           to_string(slice.shape), entry.dtype->name, to_string(shape));
    }
    return slice;
  }

  static std::string to_text(const std::vector<Extent>& extents) {
    std::vector<std::string> ranges;
    ranges.reserve(extents.size());
    for (const Extent& extent : extents) {
      ranges.push_back(extent.length ? fmt::format("{}:{}", extent.start, extent.start + *extent.length)
                                     : ":");
    }
    return fmt::format("[{}]", fmt::join(ranges, ", "));
  }

  MemoryBudget& memory_;
  Index index_;
  DataFiles files_;
  std::vector<std::string> warnings_;
};

}  // namespace

bool looks_like_index(ByteView file) {
  return is_table(file);
}

Checkpoint read(const std::shared_ptr<const MappedFile>& index, const OpenOptions& options,
                MemoryPtr memory) {
  const std::string path = index->path().string();
  if (!path.ends_with(bundle_index_suffix)) {
    fail(Errc::unsupported,
         "it is a table of TensorFlow whose name does not end in '.index': either a checkpoint of the old "
         "form V1, which is "
         "not supported, or an index that was renamed");
  }
  const fs::path prefix = path.substr(0, path.size() - bundle_index_suffix.size());
  memory = or_own(std::move(memory), index->size());
  Checkpoint checkpoint = BundleReader(prefix, index, *memory, options).read();
  checkpoint.path = index->path();
  checkpoint.files.insert(checkpoint.files.begin(), index->path());
  return checkpoint;
}

}  // namespace cbk::tensorflow
