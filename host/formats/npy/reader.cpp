#include "host/formats/npy/reader.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/formats/npy/header.hpp"
#include "host/formats/zip/archive.hpp"
#include "host/formats/zip/records.hpp"
#include "host/tensor/storage.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::npy {
namespace {

constexpr std::string_view suffix = ".npy";

/// The array behind a header; `data` follows it.
Tensor array_of(Header header, StoragePtr data) {
  const uint64_t size =
      checked_mul(static_cast<uint64_t>(numel_of(header.shape)), size_of(header.dtype), "an array");
  if (size != data->size()) {
    fail(Errc::format, "an array {} of {} needs {} bytes, and {} follow the header{}",
         to_string(header.shape), name_of(header.dtype), size, data->size(),
         data->size() < size ? "; is the file cut short?" : "");
  }
  View view;
  view.storage = std::move(data);
  const uint32_t part = is_complex(header.dtype) ? size_of(header.dtype) / 2 : size_of(header.dtype);
  if (header.is_big_endian && part > 1) view.storage = swapped_storage(view.storage, part);
  view.dtype = header.dtype;
  view.strides = contiguous_strides(header.shape);
  if (header.is_column_major) {
    view.strides = contiguous_strides(Shape(header.shape.rbegin(), header.shape.rend()));
    std::reverse(view.strides.begin(), view.strides.end());
  }
  view.shape = std::move(header.shape);
  return Tensor::from_view(std::move(view));
}

Checkpoint checkpoint_of(const MappedFile& file, std::string format, std::shared_ptr<Dict> root) {
  Checkpoint checkpoint;
  checkpoint.path = file.path();
  checkpoint.format = std::move(format);
  checkpoint.root = std::move(root);
  checkpoint.files = {file.path()};
  return checkpoint;
}

/// The member's array. Its header is read in two pieces that do not overlap: so both count for its checksum.
Tensor read_member(const StoragePtr& member) {
  Bytes head(std::min(member->size(), least_header));
  member->read(0, head);
  const uint64_t size = size_of_header(head);
  if (size <= member->size()) {
    head.resize(std::max<size_t>(size, least_header));
    member->read(least_header, std::span(head).subspan(least_header));
  }
  Header header = read_header(head);
  return array_of(std::move(header), storage_part(member, size, member->size() - size));
}

/// Bytes in memory of an array with a header of usual size; measured.
constexpr uint64_t array_bytes = 1024;

}  // namespace

Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options) {
  Header header = read_header(file->bytes());
  const uint64_t start = header.data_start;
  auto root = std::make_shared<Dict>();
  try {
    root->set(file->path().stem().string(),
              array_of(std::move(header), map_storage(file, start, file->size() - start)));
  } catch (const Error& error) {
    if (!options.salvage || error.code() != Errc::format) throw;
    root->set(file->path().stem().string(), unreadable(error.what()));
  }
  return checkpoint_of(*file, "npy", std::move(root));
}

bool looks_like_npz(ByteView head, const fs::path& path) {
  const std::string_view text = as_text(head);
  const bool is_named = path.extension() == ".npz";
  if (text.starts_with("PK\x05\x06")) return is_named;  // without members
  if (!text.starts_with("PK\x03\x04") || text.size() < zip::local_size) return false;
  const std::string_view first =
      text.substr(zip::local_size, load_le<uint16_t>(head.data() + zip::local_name_length));
  return first.ends_with(suffix) || (is_named && !first.ends_with("data.pkl"));
}

Checkpoint read_archive(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                        const MemoryPtr& memory) {
  const zip::Archive archive(file, memory, options.salvage);
  archive.verify_if_small();
  auto root = std::make_shared<Dict>();
  root->reserve(archive.entries().size());
  bool has_unreadable = false;
  for (const zip::Entry& entry : archive.entries()) {
    const bool is_array = entry.name.ends_with(suffix);
    const std::string key(is_array ? entry.name.substr(0, entry.name.size() - suffix.size()) : entry.name);
    if (root->find(std::string_view(key)) != nullptr)
      fail(Errc::format, "two members of the archive are {}", quote(key));
    memory->charge(array_bytes + key.size());
    const auto member = [&] { return fmt::format("the archive member {}", quote(entry.name)); };
    try {
      if (archive.is_cut(entry)) fail(Errc::dtype, "the file is cut short");
      if (!is_array) fail(Errc::dtype, "it is no array file (*{})", suffix);
      root->set(key, within(member, [&] { return read_member(archive.storage(entry)); }));
    } catch (const Error& error) {
      if (error.code() != Errc::dtype) throw;
      root->set(key, unreadable(error.what()));
      has_unreadable = true;
    }
  }
  Checkpoint checkpoint = checkpoint_of(*file, "npz", std::move(root));
  if (const auto from = archive.unknown_from()) {
    checkpoint.warnings.push_back(
        fmt::format("the archive is damaged or cut short at byte {}: arrays may be missing, and their names "
                    "are not known",
                    *from));
  }
  if (!archive.has_checksums())
    checkpoint.warnings.emplace_back(
        "the archive has no checksums: damage to its arrays would not be noticed");
  checkpoint.has_unreadable = has_unreadable;
  return checkpoint;
}

}  // namespace cbk::npy
