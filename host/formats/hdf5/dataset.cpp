#include "host/formats/hdf5/dataset.hpp"

#include "host/formats/hdf5/chunked_storage.hpp"

namespace cbk::hdf5 {
namespace {

constexpr uint64_t max_external_piece = uint64_t{1} << 30;
constexpr uint64_t not_stored = UINT64_MAX;  // a size, which then is what the dataspace says

void read_chunk_extents(Cursor& in, Layout& layout, int rank_and_one, unsigned bytes) {
  if (rank_and_one < 1 || rank_and_one > 33) damaged("chunks of rank {}", rank_and_one - 1);
  for (int d = 0; d + 1 < rank_and_one; ++d) {
    layout.chunk.push_back(in.number(bytes));
    if (layout.chunk.back() == 0) damaged("chunks without extent");
  }
  layout.element_size = in.number(bytes);
}

Layout read_old_layout(Cursor& in) {
  Layout layout;
  const int rank = in.u8();
  const uint8_t kind = in.u8();
  in.skip(5);
  if (kind > 2) damaged("unknown layout class {}", kind);
  layout.kind = static_cast<Layout::Kind>(kind);
  if (layout.kind != Layout::Kind::compact) layout.address = in.address();
  if (layout.kind == Layout::Kind::chunked) {
    read_chunk_extents(in, layout, rank, 4);
  } else {
    layout.size = not_stored;
    in.skip(4ULL * static_cast<unsigned>(rank));
  }
  if (layout.kind == Layout::Kind::compact) {
    layout.size = in.u32();
    layout.data = in.take(layout.size);
  }
  return layout;
}

void read_new_chunks(Cursor& in, Layout& layout) {
  const uint8_t flags = in.u8();
  const int rank = in.u8();
  const uint8_t bytes = in.u8();
  if (bytes < 1 || bytes > 8) damaged("chunk extents of {} bytes", bytes);
  read_chunk_extents(in, layout, rank, bytes);
  const uint8_t index = in.u8();
  switch (index) {
    case 1:
      layout.index = Layout::Index::single;
      if ((flags & 2) != 0) {
        layout.single_size = in.length();
        layout.single_mask = in.u32();
      }
      break;
    case 2:
      layout.index = Layout::Index::implicit;
      break;
    case 3:
      layout.index = Layout::Index::fixed_array;
      in.skip(1);
      break;
    case 4:
      layout.index = Layout::Index::extensible_array;
      in.skip(5);
      break;
    case 5:
      layout.index = Layout::Index::btree2;
      in.skip(6);
      break;
    default:
      damaged("unknown chunk index {}", index);
  }
  layout.address = in.address();
}

Layout read_layout(Cursor in) {
  const uint8_t version = in.u8();
  if (version == 1 || version == 2) return read_old_layout(in);
  if (version != 3 && version != 4) fail(Errc::unsupported, "HDF5 data layout version {}", version);
  Layout layout;
  const uint8_t kind = in.u8();
  switch (kind) {
    case 0:
      layout.kind = Layout::Kind::compact;
      layout.size = in.u16();
      layout.data = in.take(layout.size);
      break;
    case 1:
      layout.kind = Layout::Kind::contiguous;
      layout.address = in.address();
      layout.size = in.length();
      break;
    case 2:
      layout.kind = Layout::Kind::chunked;
      if (version == 4) {
        read_new_chunks(in, layout);
      } else {
        const int rank = in.u8();
        layout.address = in.address();
        read_chunk_extents(in, layout, rank, 4);
      }
      break;
    case 3:
      layout.kind = Layout::Kind::virtual_;
      break;
    default:
      damaged("unknown layout class {}", kind);
  }
  return layout;
}

std::vector<Layout::Piece> read_external_files(const Image& image, Cursor in) {
  if (in.u8() != 1) damaged("an external file list of an unknown version");
  in.skip(3 + 2);
  const uint16_t count = in.u16();
  const LocalHeap names(image, in.address());
  std::vector<Layout::Piece> pieces;
  for (uint16_t i = 0; i < count; ++i) {
    Layout::Piece piece;
    piece.file = names.text(in.length());
    piece.offset = in.length();
    piece.size = in.length();
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

Bytes read_fill(Cursor in, bool old_form) {
  uint32_t size = 0;
  if (old_form) {
    size = in.u32();
  } else {
    const uint8_t version = in.u8();
    if (version == 1 || version == 2) {
      in.skip(2);
      const bool is_defined = in.u8() != 0;
      if (version == 1 || is_defined) size = in.u32();
    } else if (version == 3) {
      if ((in.u8() & 0x20) != 0) size = in.u32();
    } else {
      damaged("a fill value of unknown version {}", version);
    }
  }
  if (size == 0 || size > in.remaining()) return {};  // "undefined" is a size of -1
  const ByteView value = in.take(size);
  return {value.begin(), value.end()};
}

/// Several files, one after the other.
class JoinedStorage final : public PackedStorage {
 public:
  explicit JoinedStorage(std::vector<StoragePtr> parts) : parts_(std::move(parts)) {
    for (const StoragePtr& part : parts_) size_ = checked_add(size_, part->size(), "the external data");
  }
  [[nodiscard]] uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    for (const StoragePtr& part : parts_) {
      if (out.empty()) return;
      if (offset >= part->size()) {
        offset -= part->size();
        continue;
      }
      const uint64_t count = std::min<uint64_t>(out.size(), part->size() - offset);
      part->read(offset, out.first(count));
      out = out.subspan(count);
      offset = 0;
    }
    if (!out.empty()) fail(Errc::format, "external data ends too early");
  }
  [[nodiscard]] uint64_t stored_size() const override { return size_; }
  void each_piece(const VisitPiece& visit) const override {
    for (const StoragePtr& part : parts_) cbk::each_piece(*part, visit);
  }
  [[nodiscard]] Place place() const override { return parts_.empty() ? Place{} : parts_.front()->place(); }
  void add_files(SourceFiles& files) const override {
    for (const StoragePtr& part : parts_) part->add_files(files);
  }

 private:
  std::vector<StoragePtr> parts_;
  uint64_t size_ = 0;
};

StoragePtr open_external(const Layout& layout, uint64_t size, const OpenExternal& open) {
  std::vector<StoragePtr> parts;
  uint64_t left = size;
  for (const Layout::Piece& piece : layout.pieces) {
    if (left == 0) break;
    if (piece.size != undefined_address && piece.size > max_external_piece) {
      fail(Errc::value, "external data of {} in '{}': pieces beyond {} are refused", format_size(piece.size),
           cbk::quote(piece.file), format_size(max_external_piece));
    }
    auto file = open(piece.file);
    const uint64_t there = piece.offset < file->size() ? file->size() - piece.offset : 0;
    const uint64_t count = std::min(left, piece.size == undefined_address ? there : piece.size);
    const ByteView inside = file->slice(piece.offset, count, "external data in " + quote(piece.file));
    parts.push_back(map_storage(file, piece.offset, inside.size()));
    left -= count;
  }
  if (left > 0) {
    std::vector<std::string> names;
    for (const Layout::Piece& piece : layout.pieces) names.push_back(cbk::quote(piece.file));
    fail(Errc::format, "the external files {} lack {} of the data", listed(names), format_size(left));
  }
  return parts.size() == 1 ? parts.front() : std::make_shared<JoinedStorage>(std::move(parts));
}

/// A message that every dataset has once.
const Message& only(const ObjectHeader& object, MessageType type, const char* what) {
  const Message* found = nullptr;
  for (const Message& message : object.messages) {
    if (message.type != type) continue;
    if (found != nullptr) damaged("its header at byte {} has two messages with a {}", object.address, what);
    found = &message;
  }
  if (found == nullptr)
    damaged("its header at byte {} is that of a dataset, but has no {}", object.address, what);
  return *found;
}

/// Fails if the layout says another size than shape and datatype: the library writes all three at once.
void check_sizes(const Dataset& dataset) {
  const Layout& layout = dataset.layout;
  if (layout.kind == Layout::Kind::chunked && layout.element_size != dataset.type.size)
    damaged("its elements have {} bytes, but those of its chunks {}", dataset.type.size, layout.element_size);
  const bool is_contiguous = layout.kind == Layout::Kind::contiguous && layout.size != not_stored;
  if (!is_contiguous && layout.kind != Layout::Kind::compact) return;
  const uint64_t needed = checked_mul(dataset.space.count(), dataset.type.size, "a dataset");
  if (needed != layout.size) {
    damaged("the shape {} of {} needs {} bytes, but {} are allocated", to_string(dataset.space.shape()),
            dataset.type.describe(), needed, layout.size);
  }
}

}  // namespace

Dataset read_dataset(const Objects& objects, const ObjectHeader& object) {
  const Image& image = objects.image();
  Dataset dataset;
  dataset.type = objects.datatype(only(object, MessageType::datatype, "datatype"));
  const Message& space = only(object, MessageType::dataspace, "dataspace");
  Cursor in(objects.content(space), image.sizes(), "a dataspace");
  dataset.space = read_dataspace(in);
  const Message& layout = only(object, MessageType::layout, "data layout");
  dataset.layout = read_layout(Cursor(layout.body, image.sizes(), "a data layout"));
  for (const Message& message : object.messages) {
    const auto body = [&] { return Cursor(objects.content(message), image.sizes(), "a dataset"); };
    if (message.type == MessageType::filters) {
      Cursor list = body();
      dataset.filters = read_filters(list);
    } else if (message.type == MessageType::fill_value) {
      dataset.fill = read_fill(body(), false);
    } else if (message.type == MessageType::old_fill_value && dataset.fill.empty()) {
      dataset.fill = read_fill(body(), true);
    } else if (message.type == MessageType::external_files) {
      dataset.layout.kind = Layout::Kind::external;
      dataset.layout.pieces = read_external_files(image, body());
    }
  }
  check_sizes(dataset);
  if (dataset.fill.size() != dataset.type.size) dataset.fill.clear();
  return dataset;
}

StoragePtr open_storage(const std::shared_ptr<const Image>& image, const Dataset& dataset,
                        const OpenExternal& external) {
  const Layout& layout = dataset.layout;
  const uint64_t size = checked_mul(dataset.space.count(), dataset.type.size, "a dataset");
  StoragePtr storage;
  switch (layout.kind) {
    case Layout::Kind::compact:
      storage = map_storage(image->file(),
                            static_cast<uint64_t>(layout.data.data() - image->file()->bytes().data()), size);
      break;
    case Layout::Kind::contiguous:
      if (layout.address != undefined_address && size > 0) {
        const uint64_t offset = checked_add(image->base(), layout.address, "the place of the data");
        const ByteView inside = image->file()->slice(offset, size, "the data");
        image->refuse_superblock(offset, offset + size);
        storage = map_storage(image->file(), offset, inside.size());
      } else {
        storage = std::make_shared<ChunkedStorage>(image, dataset);
      }
      break;
    case Layout::Kind::chunked:
      if (layout.index == Layout::Index::extensible_array)
        fail(Errc::unsupported, "its chunks are in an extensible array");
      storage = std::make_shared<ChunkedStorage>(image, dataset);
      break;
    case Layout::Kind::external:
      storage = open_external(layout, size, external);
      break;
    case Layout::Kind::virtual_:
      fail(Errc::unsupported, "a virtual dataset: its data is in other datasets");
  }
  return dataset.type.is_swapped() ? swapped_storage(std::move(storage), dataset.type.component_size())
                                   : storage;
}

}  // namespace cbk::hdf5
