#include "host/formats/tensorflow/index.hpp"

#include <algorithm>
#include <tuple>

#include "host/base/utf8.hpp"
#include "host/formats/tensorflow/proto.hpp"
#include "host/formats/tensorflow/table.hpp"

namespace cbk::tensorflow {
namespace {

constexpr int producer = 1;  // the version of the format
constexpr int most_dims = 254;
// A short file can unpack to a long one, and a byte of it can become a large structure.
constexpr size_t most_entries = 400'000;
constexpr size_t most_extents = 4'000'000;  // of all shapes and slices
constexpr size_t largest_message = 1 << 20;
constexpr uint64_t entry_bytes = 240;  // in memory, about
constexpr uint64_t key_copies = 2;     // here, and in the tree
constexpr uint64_t extent_bytes = 48;

std::string name_of_key(std::string_view key) {
  if (key.empty()) return "the header";
  if (!is_slice_key(key)) return quote(key);
  const auto name = name_in_slice_key(key);
  return name ? "a slice of " + quote(*name) : "a slice";
}

template <typename Message>
Message parse(std::string_view bytes) {
  Message message;
  if (bytes.size() > largest_message) fail(Errc::format, "an entry of {}", format_size(bytes.size()));
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    fail(Errc::format, "it is not an entry of a TensorFlow checkpoint");
  }
  return message;
}

/// Without the variables.
Index read_header(std::string_view value) {
  const auto header = parse<proto::Header>(value);
  const auto& bad = header.version().bad_consumers();
  if (header.version().min_consumer() > producer)
    fail(Errc::unsupported, "it needs a newer reader (version {})", header.version().min_consumer());
  if (std::find(bad.begin(), bad.end(), producer) != bad.end())
    fail(Errc::unsupported, "it refuses readers of version {}, which this is (bad_consumers)", producer);
  if (header.num_shards() < 1) fail(Errc::format, "{} data files", header.num_shards());
  if (header.endianness() != 0 && header.endianness() != 1) {
    fail(Errc::format, "an unknown byte order ({})", header.endianness());
  }
  Index index;
  index.shards = static_cast<uint32_t>(header.num_shards());
  index.big_endian = header.endianness() == 1;
  return index;
}

Shape read_shape(const proto::Shape& shape) {
  if (shape.unknown_rank()) fail(Errc::format, "its shape is not known");
  if (shape.dim_size() > most_dims) fail(Errc::format, "{} dimensions", shape.dim_size());
  Shape out;
  uint64_t count = 1;
  for (const auto& dim : shape.dim()) {
    if (dim.size() < 0) fail(Errc::format, "an extent of {}", dim.size());
    count = checked_mul(count, std::max<uint64_t>(1, static_cast<uint64_t>(dim.size())),
                        "the number of elements");
    out.push_back(dim.size());
  }
  checked_mul(count, 16, "the number of bytes");
  return out;
}

std::vector<Extent> read_extents(const proto::Slice& slice, const Shape& shape) {
  if (static_cast<size_t>(slice.extent_size()) != shape.size()) {
    fail(Errc::format, "a slice of {} dimensions of a variable of {}", slice.extent_size(), shape.size());
  }
  std::vector<Extent> extents;
  for (const auto& extent : slice.extent()) {
    const int64_t whole = shape[extents.size()];
    if (!extent.has_length() || extent.length() < 0) {
      extents.push_back({});
      continue;
    }
    if (extent.start() < 0 || extent.start() > whole || extent.length() > whole - extent.start()) {
      fail(Errc::format, "a slice from {} of length {} in a dimension of {}", extent.start(), extent.length(),
           whole);
    }
    extents.push_back({extent.start(), extent.length()});
  }
  return extents;
}

void read_place(const proto::Entry& message, uint32_t shards, Entry& entry) {
  if (message.shard_id() < 0 || static_cast<uint32_t>(message.shard_id()) >= shards) {
    fail(Errc::format, "its bytes should be in data file {}, but there are {}, counted from 0",
         message.shard_id(), shards);
  }
  if (message.offset() < 0 || message.size() < 0) {
    fail(Errc::format, "{} bytes at byte {}", message.size(), message.offset());
  }
  entry.shard = static_cast<uint32_t>(message.shard_id());
  entry.offset = static_cast<uint64_t>(message.offset());
  entry.size = static_cast<uint64_t>(message.size());
  entry.crc = message.crc32c();
  const auto count = static_cast<uint64_t>(numel_of(entry.shape));
  if (entry.dtype->kind == DTypeInfo::Kind::plain || entry.dtype->kind == DTypeInfo::Kind::quantized) {
    if (const uint64_t wanted = count * size_of(entry.dtype->dtype); wanted != entry.size) {
      fail(Errc::format, "{} {} takes {} bytes, not {}", entry.dtype->name, to_string(entry.shape), wanted,
           entry.size);
    }
  } else if (entry.dtype->kind == DTypeInfo::Kind::string && count > entry.size) {
    fail(Errc::format, "{} texts in {} bytes", count, entry.size);
  }
}

size_t extents_in(const proto::Entry& message) {
  auto count = static_cast<size_t>(message.shape().dim_size());
  for (const auto& slice : message.slices()) count += 1 + static_cast<size_t>(slice.extent_size());
  return count;
}

Entry read_entry(const proto::Entry& message, uint32_t shards) {
  Entry entry;
  entry.dtype = find(message.dtype());
  entry.dtype_number = message.dtype();
  if (entry.dtype == nullptr) entry.dtype = &unknown_dtype;
  entry.shape = read_shape(message.shape());
  for (const auto& slice : message.slices()) entry.slices.push_back(read_extents(slice, entry.shape));
  if (entry.slices.empty()) read_place(message, shards, entry);
  return entry;
}

/// Fails for variables, or slices of them, that share a part of their bytes.
void refuse_overlaps(const Index& index) {
  struct Place {
    const Entry* entry;
    std::string_view key;
  };
  std::vector<Place> order;
  const auto add = [&](const Entry& entry, std::string_view key) {
    if (entry.size > 0) order.push_back({&entry, key});
  };
  for (const Entry& entry : index.variables) add(entry, entry.name);
  for (const auto& [key, entry] : index.slices) add(entry, key);
  std::ranges::sort(order, {}, [](const Place& p) {
    return std::tuple(p.entry->shard, p.entry->offset, p.entry->size, p.key);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Entry& before = *order[i - 1].entry;
    const Entry& next = *order[i].entry;
    const bool is_same = before.offset == next.offset && before.size == next.size;
    if (before.shard == next.shard && !is_same && next.offset - before.offset < before.size) {
      fail(Errc::format, "the bytes of {} and {} overlap, at byte {} of data file {}",
           name_of_key(order[i - 1].key), name_of_key(order[i].key), next.offset, next.shard);
    }
  }
}

void check_name(std::string_view name) {
  if (!is_strict_utf8(name)) fail(Errc::format, "the name {} is not UTF-8", quote(name));
}

}  // namespace

Index read_index(const MappedFile& file, MemoryBudget& memory) {
  std::optional<Index> index;
  size_t entries = 0;
  size_t extents = 0;
  const auto visit = [&](std::string_view key, std::string_view value) {
    if (!index) {
      if (!key.empty()) fail(Errc::format, "the index has no header");
      index = within("the header of the index", [&] { return read_header(value); });
      return;
    }
    const auto context = [&] { return is_slice_key(key) ? name_of_key(key) : "variable " + quote(key); };
    Entry entry = within(context, [&] {
      const auto message = parse<proto::Entry>(value);
      const size_t more = extents_in(message);
      extents += more;
      memory.charge(entry_bytes + key_copies * key.size() + more * extent_bytes);
      if (++entries > most_entries || extents > most_extents) {
        fail(Errc::format, "the index has more than {} entries, or {} extents", most_entries, most_extents);
      }
      return read_entry(message, index->shards);
    });
    if (is_slice_key(key)) {
      if (!entry.slices.empty()) fail(Errc::format, "{} consists of slices itself", name_of_key(key));
      index->slices.emplace(key, std::move(entry));
    } else {
      check_name(key);
      entry.name = key;
      index->variables.push_back(std::move(entry));
    }
  };
  read_table(file.bytes(), name_of_key, visit, memory);
  if (!index) fail(Errc::format, "the index has no header");
  refuse_overlaps(*index);
  return std::move(*index);
}

std::string write_index(uint32_t shards, const std::vector<Entry>& variables) {
  std::vector<std::pair<std::string, std::string>> entries;
  proto::Header header;
  header.set_num_shards(static_cast<int32_t>(shards));
  header.mutable_version()->set_producer(producer);
  entries.emplace_back("", header.SerializeAsString());
  for (const Entry& variable : variables) {
    proto::Entry message;
    message.set_dtype(variable.dtype->number);
    proto::Shape& shape = *message.mutable_shape();
    for (const int64_t extent : variable.shape) shape.add_dim()->set_size(extent);
    message.set_shard_id(static_cast<int32_t>(variable.shard));
    message.set_offset(static_cast<int64_t>(variable.offset));
    message.set_size(static_cast<int64_t>(variable.size));
    message.set_crc32c(variable.crc);
    entries.emplace_back(variable.name, message.SerializeAsString());
  }
  return write_table(entries);
}

}  // namespace cbk::tensorflow
