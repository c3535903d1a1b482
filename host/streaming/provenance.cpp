#include "host/streaming/provenance.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "host/base/blake3.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr uint64_t header_bytes = 64ULL << 10;
constexpr uint64_t smallest_recorded = 64ULL << 10;
constexpr std::string_view provenance_ending = ".provenance.json";

/// The output of a provenance.
fs::path output_of(const fs::path& provenance) {
  std::string text = provenance.string();
  text.resize(text.size() - provenance_ending.size());
  return text;
}

uint64_t size_of_file(int fd, const fs::path& path) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) fail_errno("look at", path.string());
  return static_cast<uint64_t>(found.st_size);
}

/// Adds the bytes [begin, end) of a file.
void add_range(Blake3& digest, int fd, uint64_t begin, uint64_t end, const fs::path& path) {
  Scratch buffer(std::min(io_piece, end - begin));
  while (begin < end) {
    check_interrupt();
    const std::span<std::byte> piece =
        buffer.bytes().first(std::min<uint64_t>(buffer.bytes().size(), end - begin));
    const ssize_t got =
        retried([&] { return ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(begin)); });
    if (got < 0) fail_errno(fmt::format("read byte {} of", begin), path.string());
    if (got == 0) fail(Errc::format, "'{}' ends at byte {}", path.string(), begin);
    digest.add(piece.first(static_cast<size_t>(got)));
    begin += static_cast<uint64_t>(got);
  }
}

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The digest of what is in none of the ranges.
std::string digest_of_rest(int fd, std::vector<Range> ranges, const fs::path& path) {
  std::ranges::sort(ranges, {}, &Range::begin);
  ranges.push_back({size_of_file(fd, path), 0});
  Blake3 digest;
  uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin > at) add_range(digest, fd, at, range.begin, path);
    at = std::max(at, range.end);
  }
  return to_hex(digest.digest());
}

/// "82146480 256 4194304 e4d3… float32 [64] model.norm.weight"; "-" in place of an offset.
std::string line_of(const ItemDigest& one) {
  const Tensor& tensor = one.item->tensor;
  return fmt::format("{} {} {} {} {} [{}] {}", one.item->pieces ? "-" : std::to_string(one.slot.offset),
                     tensor.nbytes(), one.block_bytes, to_hex(one.digest), name_of(tensor.dtype()),
                     fmt::join(tensor.shape(), ","), one.item->key);
}

struct RecordedItem {
  std::optional<uint64_t> offset;
  uint64_t bytes = 0;
  uint64_t block_bytes = 0;
  std::string digest;
  std::string key;
};

/// Errors: `format`.
RecordedItem item_of(std::string_view line, const fs::path& path) {
  const auto word = [&] {
    const size_t end = line.find(' ');
    if (end == std::string_view::npos)
      fail(Errc::format, "'{}' is no provenance of cbk: an item is cut short", path.string());
    const std::string_view out = line.substr(0, end);
    line.remove_prefix(end + 1);
    return out;
  };
  const auto number_in = [&](std::string_view text) {
    uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size())
      fail(Errc::format, "'{}' is no provenance of cbk: {} is no number", path.string(), quote(text));
    return out;
  };
  RecordedItem out;
  if (const std::string_view offset = word(); offset != "-") out.offset = number_in(offset);
  out.bytes = number_in(word());
  out.block_bytes = std::max<uint64_t>(number_in(word()), 1);
  out.digest = word();
  word();
  word();
  out.key = line;
  return out;
}

const Value& member(const Value& dict, const char* name, Value::Kind kind, const fs::path& path) {
  const Value* found = dict.find(name);
  if (found == nullptr || !found->is(kind))
    fail(Errc::format, "'{}' is no provenance of cbk: '{}' is missing", path.string(), name);
  return *found;
}

uint64_t number(const Value& dict, const char* name, const fs::path& path) {
  const int64_t found = member(dict, name, Value::Kind::integer, path).as_int();
  if (found < 0) fail(Errc::format, "'{}' has a negative '{}'", path.string(), name);
  return static_cast<uint64_t>(found);
}

std::vector<RecordedItem> items_of(const Value& file, const fs::path& path) {
  std::vector<RecordedItem> out;
  for (const Value& line : member(file, "items", Value::Kind::sequence, path).as_sequence().items)
    out.push_back(item_of(line.as_string(), path));
  return out;
}

/// Where a file is now that a provenance names: below the output, which may have got another name. A
/// provenance may come from anywhere.
fs::path place_of(const std::string& name, const std::string& recorded, const fs::path& output) {
  const fs::path plain = fs::path(name).lexically_normal();
  if (plain.is_absolute() || plain.empty() || *plain.begin() == "..")
    fail(Errc::value, "{} is not in the folder of the provenance", quote(name));
  const std::string now = (output.has_filename() ? output : output.parent_path()).filename().string();
  const std::string first = plain.begin()->string();
  if (!first.starts_with(recorded))
    fail(Errc::format, "{} is not a file of the output {}", quote(name), quote(recorded));
  fs::path renamed = now + first.substr(recorded.size());  // "model.ckpt" and ".index"
  for (auto part = std::next(plain.begin()); part != plain.end(); ++part) renamed /= *part;
  return folder_of(output.has_filename() ? output : output.parent_path()) / renamed;
}

/// Items are one after another, in blocks of some size: what takes memory is bounded by the file.
void check_ranges(std::vector<Range> ranges, const fs::path& provenance) {
  std::ranges::sort(ranges, {}, &Range::begin);
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end)
      fail(Errc::format, "'{}' is no provenance of cbk: two items have the same bytes", provenance.string());
  }
}

/// A block of an item, of which the digest is computed.
struct Task {
  size_t item;
  Range range;
};

}  // namespace

fs::path provenance_of(const fs::path& target) {
  const fs::path plain = target.has_filename() ? target : target.parent_path();
  return plain.string() + std::string(provenance_ending);
}

std::string source_ends(const MappedFile& source) {
  const uint64_t size = std::min(source.size(), header_bytes);
  Bytes ends(2 * size);
  source.read(0, std::span(ends).first(size));
  source.read(source.size() - size, std::span(ends).last(size));
  Blake3 digest;
  digest.add(ends);
  return to_hex(digest.digest());
}

Value origin(const std::string& version, const std::vector<std::string>& command,
             const SourceFiles& sources) {
  Value out = Value::dict();
  Dict& dict = out.as_dict();
  dict.set("cbk", version);
  const Value words = Value::list();
  for (const std::string& word : command) words.as_sequence().items.emplace_back(word);
  dict.set("command", words);
  dict.set("folder", fs::current_path().string());
  std::map<std::string, Value> by_path;
  for (const auto& source : sources) {
    const Value one = Value::dict();
    one.as_dict().set("path", fs::absolute(source->path()).string());
    one.as_dict().set("size", static_cast<int64_t>(source->size()));
    one.as_dict().set("modified", source->modified());
    one.as_dict().set("ends", source_ends(*source));
    by_path.emplace(source->path().string(), one);
  }
  const Value known = Value::list();
  for (const auto& [path, one] : by_path) known.as_sequence().items.push_back(one);
  dict.set("sources", known);
  return out;
}

std::string origin_text(const ProvenanceOptions& options, const SourceFiles& sources) {
  return to_json(origin(options.version, options.command, sources), {});
}

std::string provenance_text(const ProvenanceOptions& options, const SourceFiles& sources,
                            const fs::path& file, const std::vector<ItemDigest>& items) {
  const Value out = origin(options.version, options.command, sources);
  std::vector<StagedFile*> order;
  std::map<StagedFile*, std::vector<const ItemDigest*>> by_file;
  for (const ItemDigest& one : items) {
    if (by_file[one.slot.file].empty()) order.push_back(one.slot.file);
    by_file[one.slot.file].push_back(&one);
  }
  const Value files = Value::list();
  for (StagedFile* staged : order) {
    const Value list = Value::list();
    std::vector<Range> ranges;
    for (const ItemDigest* one : by_file[staged]) {
      const uint64_t bytes = one->item->pieces ? 0 : one->item->tensor.nbytes();
      if (bytes > 0) ranges.push_back({one->slot.offset, one->slot.offset + bytes});
      list.as_sequence().items.emplace_back(line_of(*one));
    }
    const Value one = Value::dict();
    const fs::path folder = fs::absolute(folder_of(file));
    one.as_dict().set("file", fs::absolute(staged->target()).lexically_relative(folder).string());
    one.as_dict().set("size", static_cast<int64_t>(size_of_file(staged->fd(), staged->target())));
    one.as_dict().set("rest", digest_of_rest(staged->fd(), ranges, staged->target()));
    one.as_dict().set("items", list);
    files.as_sequence().items.push_back(one);
  }
  out.as_dict().set("output", fs::absolute(output_of(file)).string());
  out.as_dict().set("files", files);
  JsonWriteOptions indented;
  indented.indent = 1;
  return to_json(out, indented) + "\n";
}

std::vector<std::string> differences(const fs::path& provenance, const fs::path& output) {
  const Value all = parse_json(read_file(provenance));
  std::vector<std::string> out;
  const std::string recorded =
      fs::path(member(all, "output", Value::Kind::string, provenance).as_string()).filename().string();
  const auto& files = member(all, "files", Value::Kind::sequence, provenance).as_sequence().items;
  if (files.empty()) fail(Errc::format, "'{}' is no provenance of cbk: it has no files", provenance.string());
  for (const Value& file : files) {
    const std::string& recorded_name = member(file, "file", Value::Kind::string, provenance).as_string();
    const fs::path path = place_of(recorded_name, recorded, output);
    const std::string name = path.lexically_relative(folder_of(output)).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      out.push_back(fmt::format("{} is missing", quote(name)));
      continue;
    }
    const auto opened = MappedFile::open(path);
    const int fd = opened->fd();
    const uint64_t size = opened->size();
    if (size != number(file, "size", provenance)) {
      out.push_back(
          fmt::format("{} has {} bytes instead of {}", quote(name), size, number(file, "size", provenance)));
      continue;
    }
    const std::vector<RecordedItem> items = items_of(file, provenance);
    std::vector<Range> ranges;
    std::vector<Task> tasks;
    for (const auto& [offset, bytes, block, digest, key] : items) {
      if (!offset) continue;
      if (*offset > size || bytes > size - *offset)
        fail(Errc::format, "'{}' has an item beyond the end of {}", provenance.string(), quote(name));
      if (block < std::min(bytes, smallest_recorded))
        fail(Errc::format, "'{}' is no provenance of cbk: blocks of {} bytes", provenance.string(), block);
      if (bytes > 0) ranges.push_back({*offset, *offset + bytes});
    }
    check_ranges(ranges, provenance);
    for (size_t i = 0; i < items.size(); ++i) {
      const uint64_t offset = items[i].offset.value_or(0), bytes = items[i].offset ? items[i].bytes : 0;
      for (uint64_t at = 0, next = 0; at < bytes; at = next) {
        next = at + std::min(items[i].block_bytes, bytes - at);
        tasks.push_back({i, {offset + at, offset + next}});
      }
    }
    std::vector<Digest> found(tasks.size());
    parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      Blake3 digest;
      const Range& range = tasks[static_cast<size_t>(i)].range;
      add_range(digest, fd, range.begin, range.end, path);
      found[static_cast<size_t>(i)] = digest.digest();
    });
    size_t task = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      Blake3 digest;
      for (; task < tasks.size() && tasks[task].item == i; ++task) digest.add(found[task]);
      if (!items[i].offset || items[i].bytes == 0 || to_hex(digest.digest()) == items[i].digest) continue;
      out.push_back(fmt::format("{}: {} has other bytes", quote(name), quote(items[i].key)));
    }
    if (digest_of_rest(fd, ranges, path) != member(file, "rest", Value::Kind::string, provenance).as_string())
      out.push_back(fmt::format("{}: what is beside the tensors has other bytes", quote(name)));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> recorded_digests(const fs::path& provenance) {
  const Value all = parse_json(read_file(provenance));
  std::vector<std::pair<std::string, std::string>> out;
  for (const Value& file : member(all, "files", Value::Kind::sequence, provenance).as_sequence().items)
    for (const RecordedItem& item : items_of(file, provenance)) out.emplace_back(item.key, item.digest);
  return out;
}

RecordedCommand recorded_command(const fs::path& provenance) {
  const Value all = parse_json(read_file(provenance));
  RecordedCommand out;
  out.folder = member(all, "folder", Value::Kind::string, provenance).as_string();
  out.output = member(all, "output", Value::Kind::string, provenance).as_string();
  for (const Value& word : member(all, "command", Value::Kind::sequence, provenance).as_sequence().items)
    out.words.push_back(word.as_string());
  return out;
}

}  // namespace cbk
