#include "host/formats/zip/archive.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "host/base/interrupt.hpp"
#include "host/formats/zip/records.hpp"
#include "host/tensor/checked_storage.hpp"
#include "host/tensor/inflated_storage.hpp"

namespace cbk::zip {
namespace {

using Decompressor = std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)>;

/// Deflate cannot pack better than this; a larger claim is false and would only waste memory.
constexpr uint64_t best_ratio = 1032;

constexpr std::string_view member_mark = "PK\x03\x04", directory_mark = "PK\x01\x02";

/// Where a member or the directory may begin in `file`, from byte `at` on; its end if that is nowhere.
uint64_t next_header(std::string_view file, uint64_t at) {
  for (uint64_t found = at; (found = file.find("PK", found)) != std::string_view::npos; ++found) {
    const std::string_view mark = file.substr(found, member_mark.size());
    if (mark == member_mark || mark == directory_mark) return found;
  }
  return file.size();
}

// The memory of a member, and of a storage for it; measured.
constexpr uint64_t entry_bytes = 144;
constexpr uint64_t storage_bytes = 256;

uint32_t crc_of(ByteView bytes) {
  constexpr size_t piece = 8ULL << 20;
  uint32_t crc = 0;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    if (at > 0) check_interrupt();
    const ByteView part = bytes.subspan(at, std::min(piece, bytes.size() - at));
    crc = extended(Checksum::crc32, crc, part);
  }
  return crc;
}

Bytes inflate(ByteView packed, const Entry& entry) {
  Bytes bytes(entry.size);
  const Decompressor decompressor(libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  size_t made = 0;
  const auto result = libdeflate_deflate_decompress(decompressor.get(), packed.data(), packed.size(),
                                                    bytes.data(), bytes.size(), &made);
  if (result != LIBDEFLATE_SUCCESS || made != entry.size) {
    fail(Errc::format, "the compressed archive member {} is damaged", quote(entry.name));
  }
  return bytes;
}

std::string member_name(const Entry& entry) {
  return fmt::format("the archive member {}", quote(entry.name));
}

/// The CRC-32 of a deflated member, without keeping its content.
uint32_t crc_of_inflated(ByteView packed, const Entry& entry) {
  InflateStream stream(packed, Deflated::raw);
  Bytes block(std::min<uint64_t>(entry.size + 1, 1ULL << 20));
  uint32_t crc = 0;
  while (const size_t count = within(member_name(entry), [&] { return stream.read(block); })) {
    check_interrupt();
    crc = extended(Checksum::crc32, crc, ByteView(block).first(count));
    if (stream.position() > entry.size) break;
  }
  if (stream.position() != entry.size) {
    fail(Errc::format, "{} does not unpack to its {} bytes", member_name(entry), entry.size);
  }
  return crc;
}

/// Little-endian fields at fixed places of a record whose length was checked.
class Fields {
 public:
  explicit Fields(ByteView bytes) : bytes_(bytes) {}
  [[nodiscard]] uint16_t u16(size_t at) const { return load_le<uint16_t>(bytes_.data() + at); }
  [[nodiscard]] uint32_t u32(size_t at) const { return load_le<uint32_t>(bytes_.data() + at); }
  [[nodiscard]] uint64_t u64(size_t at) const { return load_le<uint64_t>(bytes_.data() + at); }

 private:
  ByteView bytes_;
};

/// Fails for an end record that counts fewer members on its disk than in all, or more.
void check_counts(uint64_t here, uint64_t total) {
  if (here != total) {
    fail(Errc::format, "the end record of the zip archive counts {} members here, and {} in all", here,
         total);
  }
}

/// Checks what is known of a member without reading it. Errors: `format`, `unsupported`.
void check_sizes(const MappedFile& file, const Entry& entry) {
  if (entry.method != stored && entry.method != deflated) {
    fail(Errc::unsupported, "the archive member {} is compressed with method {}", quote(entry.name),
         entry.method);
  }
  const bool is_lie = entry.method == stored ? entry.size != entry.compressed_size
                                             : entry.size / best_ratio > entry.compressed_size;
  if (is_lie) {
    fail(Errc::format, "the archive member {} cannot hold {} in {}", quote(entry.name),
         format_size(entry.size), format_size(entry.compressed_size));
  }
  const uint64_t total = file.size();
  if (entry.compressed_size > total || entry.header_offset > total - entry.compressed_size) {
    fail(Errc::format, "the archive member {} of {} at offset {} reaches beyond the file's end",
         quote(entry.name), format_size(entry.compressed_size), entry.header_offset);
  }
}

/// Replaces those of the three values that refer to the zip64 extra field, which holds only these, in this
/// order.
void apply_zip64(ByteView extra, Entry& entry) {
  const std::array<uint64_t*, 3> values = {&entry.size, &entry.compressed_size, &entry.header_offset};
  const bool is_needed = std::ranges::any_of(values, [](const uint64_t* v) { return *v == in_zip64; });
  while (is_needed && extra.size() >= 4) {
    const Fields fields(extra);
    const size_t length = std::min<size_t>(fields.u16(2), extra.size() - 4);
    if (fields.u16(0) != zip64_extra) {
      extra = extra.subspan(4 + length);
      continue;
    }
    size_t at = 4;
    for (uint64_t* value : values) {
      if (*value != in_zip64 || at + 8 > 4 + length) continue;
      *value = fields.u64(at);
      at += 8;
    }
    return;
  }
}

/// The start of a member's bytes; only the header before them has it.
uint64_t data_offset(const MappedFile& file, const Entry& entry) {
  const Fields local(file.slice(entry.header_offset, local_size, "a zip member's header"));
  if (local.u32(0) != local_signature) {
    fail(Errc::format, "the archive member {} has no header at offset {}", quote(entry.name),
         entry.header_offset);
  }
  return entry.header_offset + local_size + local.u16(26) + local.u16(28);
}

/// The same for a member that will be read: other programs may believe its header, not the directory.
uint64_t checked_data_offset(const MappedFile& file, const Entry& entry) {
  const uint64_t offset = data_offset(file, entry);
  const ByteView header =
      file.slice(entry.header_offset, offset - entry.header_offset, "a zip member's header");
  const Fields local(header);
  const size_t name_size = local.u16(local_name_length);
  if (const auto name = as_text(header.subspan(local_size, name_size)); name != entry.name) {
    fail(Errc::format, "the archive member {} is called {} in the header before its data", quote(entry.name),
         quote(name));
  }
  Entry said{entry.name, 0, local.u32(18), local.u32(22)};
  apply_zip64(header.subspan(local_size + name_size), said);
  const bool is_behind = (local.u16(6) & has_descriptor) != 0;  // the header then has zeros
  const auto differs = [&](uint64_t value, uint64_t expected) {
    return value != expected && !(is_behind && value == 0);
  };
  if (differs(said.size, entry.size) || differs(said.compressed_size, entry.compressed_size)) {
    fail(
        Errc::format,
        "the archive member {} has {} bytes ({} packed) in the header before its data, and {} ({} packed) in "
        "the directory",
        quote(entry.name), said.size, said.compressed_size, entry.size, entry.compressed_size);
  }
  if (differs(local.u32(local_crc), entry.crc32) || local.u16(local_method) != entry.method) {
    fail(
        Errc::format,
        "the archive member {} has the CRC-32 {:08x} and method {} in the header before its data, and {:08x} "
        "and {} in the directory",
        quote(entry.name), local.u32(local_crc), local.u16(local_method), entry.crc32, entry.method);
  }
  return offset;
}

/// A member that is not compressed. Its header is read with the first byte: 20,000 headers are
/// on as many pages.
class StoredMember final : public Storage {
 public:
  StoredMember(std::shared_ptr<const MappedFile> file, const Entry& entry)
      : file_(std::move(file)), entry_(entry) {}

  [[nodiscard]] uint64_t size() const override { return entry_.size; }
  [[nodiscard]] ByteView view() const override {
    const ByteView all = file_->addressable();
    return all.empty() ? all : all.subspan(start(), entry_.size);
  }
  void read(uint64_t offset, std::span<std::byte> out) const override { file_->read(start() + offset, out); }
  void expect() const noexcept override { file_->expect(entry_.header_offset, entry_.size); }
  void drop(uint64_t offset, uint64_t length) const noexcept override {
    const uint64_t start = start_;
    if (start == 0) return;
    const uint64_t begin = offset == 0 ? entry_.header_offset : start + offset;
    file_->drop(begin, start + offset + length - begin);
  }
  [[nodiscard]] Place place() const override { return {file_->path().string(), file_->begin() + start()}; }
  [[nodiscard]] std::optional<FileRange> file_range() const override {
    return FileRange{file_->fd(), file_->begin() + start()};
  }
  void add_files(SourceFiles& files) const override { files.insert(file_); }

 private:
  [[nodiscard]] uint64_t start() const {
    if (start_ == 0) {
      const uint64_t offset = checked_data_offset(*file_, entry_);
      (void)file_->slice(offset, entry_.size, "a tensor's data");
      start_ = offset;
    }
    return start_;
  }

  std::shared_ptr<const MappedFile> file_;
  Entry entry_;
  mutable std::atomic<uint64_t> start_{0};  // 0: not looked up yet
};

/// Reads the descriptor after a member that was written before its sizes were known: signature, checksum and
/// sizes, in 4 or 8 bytes. Sets them, and returns the end of the descriptor; UINT64_MAX if it is missing.
uint64_t find_descriptor(ByteView file, uint64_t start, Entry& entry) {
  constexpr std::string_view signature = "PK\x07\x08";
  const std::string_view text = as_text(file);
  for (size_t at = text.find(signature, start); at != std::string_view::npos;
       at = text.find(signature, at + 1)) {
    check_interrupt();
    const uint64_t size = at - start;
    for (const bool is_large : {true, false}) {
      const uint64_t length = is_large ? 24 : 16;
      if (length > text.size() - at) continue;
      const Fields fields(file.subspan(at, length));
      if ((is_large ? fields.u64(8) : fields.u32(8)) != size) continue;
      entry.compressed_size = size;
      entry.size = is_large ? fields.u64(16) : fields.u32(12);
      entry.crc32 = fields.u32(4);
      return at + length;
    }
  }
  return UINT64_MAX;
}

/// `what` should begin at byte `said` if the archive begins with the file, and begins at byte `found`.
void check_place(std::string_view what, uint64_t said, uint64_t found) {
  if (said == found) return;
  if (said > found) fail(Errc::format, "{} is not at byte {}, where it is expected", what, said);
  fail(
      Errc::format,
      "the zip archive begins at byte {} of the file, not at byte 0: other data is before it, as in the "
      "files "
      "of a torch.distributed.checkpoint folder (*.distcp), which hold an archive for each piece of a tensor",
      found - said);
}

}  // namespace

Archive::Archive(std::shared_ptr<const MappedFile> file, MemoryPtr memory, bool salvage)
    : file_(std::move(file)), memory_(or_own(std::move(memory), file_->size())) {
  if (const auto directory = find_directory(salvage)) {
    read_directory(*directory);
    refuse_prefix();
  } else if (salvage) {
    scan_headers();
  } else {
    throw Error(Errc::format, {.problem = "the zip archive has no end record: the file is cut off or damaged",
                               .advice = "'cbk copy --salvage' takes the tensors that are whole"});
  }
  has_checksums_ = !checksums_are_left_out();
}

std::optional<Archive::Directory> Archive::find_directory(bool may_be_followed) const {
  const uint64_t total = file_->size();
  const uint64_t window = std::min<uint64_t>(total, end_size + 0xffff);
  std::optional<uint64_t> followed;  // an end record with more behind it than its comment
  for (uint64_t back = end_size; back <= window; ++back) {
    const uint64_t at = total - back;
    const Fields end(file_->slice(at, end_size, "the zip archive's end"));
    if (end.u32(0) != end_signature) continue;
    const uint64_t comment = end.u16(20);
    if (comment == back - end_size) return directory_of(at);
    if (comment < back - end_size && !followed) followed = at;
  }
  if (!followed) return std::nullopt;
  if (!may_be_followed) {
    throw Error(
        Errc::format,
        {.problem = fmt::format("the zip archive ends at byte {} of {}: what is behind it is not part of it",
                                *followed + end_size, total),
         .advice = "'cbk copy --salvage' takes the archive alone"});
  }
  return directory_of(*followed);
}

/// The beginning of the zip64 end record. It ends at its locator, which has its place if the file begins with
/// the archive.
uint64_t Archive::place_of_end64(uint64_t locator_at) const {
  const uint64_t said = Fields(file_->slice(locator_at, locator64_size, "the zip64 locator")).u64(8);
  const auto begins_at = [&](uint64_t at) {
    const Fields end64(file_->slice(at, end64_size, "the zip64 end record"));
    return end64.u32(0) == end64_signature && end64.u64(4) == locator_at - at - end64_head;
  };
  if (said < locator_at && locator_at - said >= end64_size && begins_at(said)) return said;
  if (locator_at >= end64_size && begins_at(locator_at - end64_size)) {
    check_place("the zip64 end record", said, locator_at - end64_size);
  }
  fail(Errc::format, "the zip64 end record is missing where it is expected");
}

/// The directory that ends at the end record at byte `at`, or at the one of zip64 before it.
Archive::Directory Archive::directory_of(uint64_t at) const {
  const Fields end(file_->slice(at, end_size, "the zip archive's end"));
  Directory directory{end.u32(16), end.u32(12), end.u16(10)};
  check_counts(end.u16(8), directory.count);
  uint64_t behind = at;
  if (at >= locator64_size) {
    const Fields locator(file_->slice(at - locator64_size, locator64_size, "the zip64 locator"));
    if (locator.u32(0) == locator64_signature) {
      behind = place_of_end64(at - locator64_size);
      const Fields end64(file_->slice(behind, end64_size, "the zip64 end record"));
      const uint64_t count = end64.u64(32);
      check_counts(end64.u64(24), count);
      if (directory.count != counted_in_zip64) check_counts(directory.count, count);
      directory = {end64.u64(48), end64.u64(40), count};
    }
  }
  if (directory.size > behind)
    fail(Errc::format, "the zip directory of {} bytes is larger than the file", directory.size);
  check_place("the zip directory", directory.offset, behind - directory.size);
  return directory;
}

/// Fails for data before the archive: offsets may then count from the file's beginning.
void Archive::refuse_prefix() const {
  const auto first = std::ranges::min_element(entries_, {}, &Entry::header_offset);
  if (first != entries_.end()) check_place("the first archive member", 0, first->header_offset);
}

void Archive::read_directory(const Directory& directory) {
  ByteView rest = file_->slice(directory.offset, directory.size, "the zip directory");
  if (directory.count > directory.size / central_size) {
    fail(Errc::format, "the zip directory announces {} members in {} bytes", directory.count, directory.size);
  }
  memory_->charge(directory.count * entry_bytes);
  entries_.reserve(directory.count);
  by_name_.reserve(directory.count);
  for (uint64_t i = 0; i < directory.count; ++i) {
    const Fields fields(rest);
    if (rest.size() < central_size || fields.u32(0) != central_signature) {
      fail(Errc::format, "the zip directory is damaged at member {}", i);
    }
    const size_t name_size = fields.u16(28);
    const size_t extra_size = fields.u16(30);
    const size_t length = central_size + name_size + extra_size + fields.u16(32);
    if (length > rest.size()) fail(Errc::format, "the zip directory is damaged at member {}", i);
    Entry entry{as_text(rest.subspan(central_size, name_size)),
                fields.u32(42),
                fields.u32(20),
                fields.u32(24),
                fields.u32(16),
                fields.u16(10)};
    apply_zip64(rest.subspan(central_size + name_size, extra_size), entry);
    if ((fields.u16(8) & 1) != 0)
      fail(Errc::unsupported, "the archive member {} is encrypted", quote(entry.name));
    add(entry);
    rest = rest.subspan(length);
  }
  if (!rest.empty()) {
    fail(Errc::format, "the zip directory has {} bytes behind the {} members that its end record counts",
         rest.size(), directory.count);
  }
  refuse_overlaps();
}

/// Fails for members that share bytes: a few bytes could unpack to any amount.
void Archive::refuse_overlaps() const {
  std::vector<const Entry*> order;
  order.reserve(entries_.size());
  for (const Entry& entry : entries_) order.push_back(&entry);
  std::ranges::sort(order, {}, &Entry::header_offset);
  for (size_t i = 1; i < order.size(); ++i) {
    const Entry& before = *order[i - 1];
    const uint64_t room = order[i]->header_offset - before.header_offset;
    if (room < local_size || before.compressed_size > room - local_size) {
      fail(Errc::format, "the archive members {} and {} overlap", quote(before.name), quote(order[i]->name));
    }
  }
}

void Archive::add(const Entry& entry) {
  if (!by_name_.emplace(entry.name, entries_.size()).second)
    fail(Errc::format, "the archive has two members called {}", quote(entry.name));
  entries_.push_back(entry);
}

/// Reads the headers one after the other. Bytes that are no header are passed over, and `unknown_from` says
/// so: members in them are lost, and so are those behind the file's end, unless the directory begins there.
void Archive::scan_headers() {
  is_salvaged_ = true;
  const std::string_view text = as_text(file_->bytes());
  const uint64_t total = text.size();
  uint64_t at = 0;
  for (;;) {
    check_interrupt();
    const uint64_t skipped = next_header(text, at) - at;
    const bool is_descriptor = skipped == 16 || skipped == 24;  // of a member whose sizes were known
    if (skipped > 0 && !is_descriptor) unknown_from_ = unknown_from_.value_or(at);
    at += skipped;
    if (text.substr(at).starts_with(directory_mark)) return;
    if (at + local_size > total) break;
    const Fields local(file_->slice(at, local_size, "a zip member's header"));
    const uint64_t name_size = local.u16(local_name_length);
    const uint64_t extra_size = local.u16(local_name_length + 2);
    const uint64_t start = at + local_size + name_size + extra_size;
    if (start > total) break;
    Entry entry{as_text(file_->slice(at + local_size, name_size, "a name")),
                at,
                local.u32(18),
                local.u32(22),
                local.u32(local_crc),
                local.u16(local_method)};
    apply_zip64(file_->slice(at + local_size + name_size, extra_size, "an extra field"), entry);
    entry.header_offset = at;
    memory_->charge(entry_bytes);
    uint64_t end = start;
    if ((local.u16(6) & has_descriptor) != 0 && entry.compressed_size == 0) {
      end = find_descriptor(file_->bytes(), start, entry);
    } else if (__builtin_add_overflow(start, entry.compressed_size, &end)) {
      end = UINT64_MAX;
    }
    if (end == UINT64_MAX)
      entry.compressed_size = entry.size = total;  // cut, and nobody knows how long it was
    add(entry);
    at = std::min(end, total);
  }
  unknown_from_ = unknown_from_.value_or(at);
}

bool Archive::is_cut(const Entry& entry) const {
  return is_salvaged_ && (entry.compressed_size > file_->size() ||
                          data_offset(*file_, entry) > file_->size() - entry.compressed_size);
}

const Entry* Archive::find(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

ByteView Archive::packed(const Entry& entry) const {
  check_sizes(*file_, entry);
  const uint64_t offset = checked_data_offset(*file_, entry);
  const bool inside = offset <= file_->size() && entry.compressed_size <= file_->size() - offset;
  // The message is built only if it is needed: an archive may have 20,000 members.
  return file_->slice(offset, entry.compressed_size,
                      inside ? std::string() : fmt::format("the archive member {}", quote(entry.name)));
}

Content Archive::read(const Entry& entry, uint64_t limit) const {
  if (entry.size > limit) {
    fail(Errc::format, "the archive member {} has {}", quote(entry.name), format_size(entry.size));
  }
  Content content{packed(entry), std::nullopt, MemoryLoan(*memory_)};
  if (entry.method == deflated) {
    if (entry.size > memory_->left()) {
      fail(Errc::format,
           "{} would unpack from {} to {}, and the limit for a file of {} is {}; save it again without "
           "compression",
           member_name(entry), format_size(entry.compressed_size), format_size(entry.size),
           format_size(file_->size()), format_size(memory_->limit()));
    }
    content.memory.grow(entry.size);
    content.unpacked = inflate(content.stored, entry);
  }
  if (has_checksums_ && crc_of(as_bytes(content.text())) != entry.crc32) {
    fail(Errc::format, "the archive member {} is damaged: its CRC-32 does not match", quote(entry.name));
  }
  return content;
}

StoragePtr Archive::storage(const Entry& entry) const {
  check_sizes(*file_, entry);
  memory_->charge(storage_bytes);
  StoragePtr member;
  if (entry.method == deflated) {
    member = inflated_storage(file_, packed(entry), Deflated::raw, entry.size, member_name(entry));
  } else {
    member = std::make_shared<StoredMember>(file_, entry);
  }
  if (!has_checksums_) return member;
  return checked_storage(std::move(member), {Checksum::crc32, entry.crc32, "archive member",
                                             std::string(entry.name), "directory"});
}

void Archive::verify(const Entry& entry) const {
  if (crc_of_member(entry) != entry.crc32) {
    fail(Errc::format, "the archive member {} is damaged: its CRC-32 does not match", quote(entry.name));
  }
}

void Archive::verify_if_small() const {
  constexpr uint64_t small = 16ULL << 20;
  if (!has_checksums_ || file_->size() > small) return;
  uint64_t unpacked = 0;
  for (const Entry& entry : entries_) {
    if (is_cut(entry)) continue;
    unpacked = checked_add(unpacked, entry.size, "the archive");
    if (unpacked <= 4 * small) verify(entry);
  }
}

uint32_t Archive::crc_of_member(const Entry& entry) const {
  const ByteView bytes = packed(entry);
  return entry.method == deflated ? crc_of_inflated(bytes, entry) : crc_of(bytes);
}

bool Archive::checksums_are_left_out() const {
  if (is_salvaged_) return false;
  const auto all_zero = std::ranges::all_of(entries_, [](const Entry& entry) { return entry.crc32 == 0; });
  if (!all_zero) return false;
  // Only the data shows whether a checksum is 0 or was not computed: check the first small
  // member.
  const auto first = std::ranges::find_if(entries_, [](const Entry& entry) { return entry.size > 0; });
  if (first == entries_.end() || first->size > (16ULL << 20)) return first != entries_.end();
  return crc_of_member(*first) != 0;
}

}  // namespace cbk::zip
